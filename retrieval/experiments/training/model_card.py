"""The model card: README.md of a trained model's folder, as model hubs show it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.provenance import provenance
from sluice.encoders.model_files.layout import RUN_THERE, own_modules
from sluice.encoders.table import KNOWN, RANKERS, RERANKERS, TYPES
from sluice.retrieval.experiments.training.summary import without_folders

if TYPE_CHECKING:
    from sluice.retrieval.config.sections import TrainingSection

CARD: Final = "README.md"
HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")
MEASURED: Final = 20  # lines of dev measures at most
THEIRS: Final = """\
from sentence_transformers import {name}

model = {name}("FOLDER")
queries = model.encode_query(["a question"])
documents = model.encode_document(["a text"])
print(model.similarity(queries, documents))"""
THEIR_SCORES: Final = """\
from sentence_transformers import {name}

model = {name}("FOLDER")
print(model.predict([("a question", "a text")]))"""
SEARCH: Final = """\
{imports}

encoder = {name}.from_pretrained("FOLDER"{expert})
retriever = Retriever.build(encoder, [Document("1", "a title", "a text")])
for hit in retriever.search("a question", k=3):
    print(hit.score, hit.doc_id)"""
RERANK: Final = """\
from {module} import {name}

model = {name}.from_pretrained("FOLDER")
print(model.score([("a question", "a text")]))"""

ORDER: Final = """\
from {module} import ListwiseRanker

model = ListwiseRanker.from_pretrained("FOLDER")
print(model.order("a question", ["a text", "another text"]))  # places, the best first"""


def model_card(
    folder: Path,
    section: TrainingSection,
    facts: Mapping[str, Any],
    encoder: Any,
    history: Sequence[Mapping[str, float]],
    seed: int,
) -> str:
    """Return the card of a trained model, in Markdown with the metadata that model hubs read.

    ``facts`` are those of ``summary.facts_of``. It holds no path of this machine.
    """
    own = own_modules(folder)
    known = KNOWN.get(facts["type"])
    loads = known is not None and bool(known.theirs) and own <= RUN_THERE
    parts = [_metadata(facts, loads=loads), _head(section, facts, encoder, seed)]
    measures = _measures(history)
    if measures:
        parts.append(f"## Measures on the dev queries\n\n{measures}")
    parts.append(f"## Use\n\n{_use(facts, encoder, loads=loads, trusted=bool(own))}")
    settings = without_folders(section.model_dump(exclude_defaults=True))
    settings = {k: v for k, v in settings.items() if k not in ("output", "seed")}
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    packages = provenance({})["packages"].items()
    versions = ", ".join(f"{name} {version}" for name, version in packages)
    parts.append(f"## Settings\n\n```yaml\n{text}```\n\nMade with {versions}.")
    return "\n\n".join(parts) + "\n"


def _metadata(facts: Mapping[str, Any], *, loads: bool) -> str:
    values: dict[str, Any] = {"tags": ["sluice", "retrieval", str(facts["type"])]}
    if loads:
        values = {"library_name": "sentence-transformers", **values}
        values["tags"].insert(0, "sentence-transformers")
    known = KNOWN.get(facts["type"])
    if known and known.task:
        values["pipeline_tag"] = known.task
    if HUB_ID.fullmatch(facts["base"]):
        values["base_model"] = facts["base"]
    return f"---\n{yaml.safe_dump(values, sort_keys=False)}---"


def _head(section: TrainingSection, facts: Mapping[str, Any], encoder: Any, seed: int) -> str:
    kind = f"{facts['kind']}, two towers" if facts["towers"] else facts["kind"]
    rows = {
        "base model": facts["base"],
        "trained on": f"{facts['examples']:,} examples from {facts['source']}",
        "held out": f"{facts['held_out']:,} dev queries" if facts["held_out"] else None,
        "loss": f"`{facts['loss_type']}`",
        "training": f"{facts['steps']:,} steps, seed {seed}",
        "loss, first and last": _pair(facts["loss"], ".3g"),
        f"{facts['measure']} on dev, first and best": _pair(facts["dev"], ".4f"),
        "vectors": _vectors(encoder, facts),
        "tokens read": _lengths(encoder, facts),
    }
    table = "\n".join(f"| {name} | {text} |" for name, text in rows.items() if text)
    title = f"# {kind[0].upper()}{kind[1:]} trained with {section.loss['type']}"
    return f"{title}\n\n| | |\n|---|---|\n{table}"


def _pair(values: Sequence[float] | None, form: str) -> str | None:
    return None if values is None else f"{values[0]:{form}}, {values[1]:{form}}"


def _vectors(encoder: Any, facts: Mapping[str, Any]) -> str | None:
    hooks = hooks_of(encoder)
    if facts["type"] in RERANKERS or hooks.dim is None:
        return None
    several = {"tokens": " of each token", "pseudo_queries": " of each pseudo-query"}
    each = several.get(hooks.kind, "")
    if hooks.q_nets is not None:
        width = hooks.q_nets.shape.width
        return f"{hooks.dim:,} dimensions of a document, a network of {width:,} of a query"
    return f"{hooks.dim:,} dimensions{each}, compared by {hooks.similarity}"


def _lengths(encoder: Any, facts: Mapping[str, Any]) -> str | None:
    from sluice.encoders import CrossEncoder

    if isinstance(encoder, CrossEncoder):
        return f"{encoder.max_length:,} of a pair"
    lengths = hooks_of(encoder).lengths
    return ", ".join(f"{count:,} of a {side}" for side, count in lengths.items()) or None


def _measures(history: Sequence[Mapping[str, float]]) -> str:
    lines = [line for line in history if any(name.startswith("eval_") for name in line)]
    names = [n for n in dict.fromkeys(n for line in lines for n in line) if n.startswith("eval_")]
    if not lines:
        return ""
    shown = lines[-MEASURED:]
    head = ["step", *(name.removeprefix("eval_") for name in names)]
    rows = [[f"{line['step']:,.0f}", *(f"{line[n]:.4f}" for n in names)] for line in shown]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---:"] * len(head), *rows])


def _use(facts: Mapping[str, Any], encoder: Any, *, loads: bool, trusted: bool) -> str:
    parts = []
    kind = "towers" if facts["towers"] else str(facts["type"])
    if kind in RANKERS and RANKERS[kind].writes:
        code = ORDER.format(module=type(encoder).__module__)
        parts.append(f"With Sluice:\n\n```python\n{code}\n```")
    elif kind in RERANKERS:
        made = type(encoder)
        module = "sluice" if RANKERS[kind].core else made.__module__
        code = RERANK.format(module=module, name=made.__name__)
        parts.append(f"With Sluice:\n\n```python\n{code}\n```")
    elif kind in TYPES and not TYPES[kind].heads:
        name = TYPES[kind].class_name
        imports = f"from sluice import {', '.join(sorted([name, 'Document', 'Retriever']))}"
        if not TYPES[kind].core:
            own = f"from sluice.encoders import {name}"
            imports = f"from sluice import Document, Retriever\n{own}"
        named = encoder.mixture.names if TYPES[kind].experts else ()
        expert = f", expert={named[0]!r}" if named else ""
        code = SEARCH.format(imports=imports, name=name, expert=expert)
        parts.append(f"With Sluice:\n\n```python\n{code}\n```")
    else:
        parts.append("With Sluice: `sluice.encoders.model_files.registry.open_encoder(FOLDER)`.")
    if loads:
        known = KNOWN[facts["type"]]
        code = (THEIR_SCORES if known.scores else THEIRS).format(name=known.theirs)
        also = ""
        if trusted:
            code = code.replace('"FOLDER"', '"FOLDER", trust_remote_code=True')
            also = " where Sluice is installed too, whose code it runs"
        parts.append(f"With sentence-transformers, equally{also}:\n\n```python\n{code}\n```")
    else:
        what = "scores" if kind in RERANKERS else "vectors"
        parts.append(f"sentence-transformers does not make the same {what} of this folder.")
    return "\n\n".join(parts)
