"""What a training run did, for people: a few lines, kept in its manifest, and the model card."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.numbers import duration, plural
from sluice.encoders.foundation.provenance import provenance
from sluice.encoders.model_files.layout import RUN_THERE, own_modules
from sluice.encoders.table import KNOWN, RANKERS, RERANKERS, TYPES
from sluice.encoders.transformer.from_scratch import is_untrained
from sluice.retrieval.config.components import START_KEY, towers_in, trained_kind
from sluice.retrieval.experiments.training.dev_evaluation import dev_measure
from sluice.retrieval.experiments.training.parts import judged, judged_by
from sluice.retrieval.training_data.example_sources import example_source, source_of

if TYPE_CHECKING:
    from sluice.retrieval.config.sections import TrainingSection
    from sluice.retrieval.experiments.training.parts import Part
    from sluice.retrieval.training_data.contamination import Contamination
    from sluice.training.fit_encoder import FitReport


KEY: Final = "summary"  # of the manifest


def facts_of(
    section: TrainingSection,
    parts: Sequence[Part],
    examples: int,
    report: FitReport,
    seconds: float,
    overlap: Contamination,
    peak_memory: int,
) -> dict[str, Any]:
    """Return the facts that the summary and the model card tell, as JSON-ready values.

    ``loss`` and ``dev`` are the first value that was logged and the last or best one.
    """
    own = str(section.encoder.get("type"))
    kind = str(trained_kind(section.encoder) or own)
    named = [KNOWN[each] for each in (own, kind) if each in KNOWN]
    measure = dev_measure(section.evaluate) if section.evaluate is not None else None
    measured = _series(report.history, f"eval_{measure}")
    age = report.negatives_age
    losses = _series(report.history, "loss") or _series(report.history, "train_loss")
    return {
        "kind": next((each.called for each in named if each.called), kind),
        "towers": bool(own in KNOWN and KNOWN[own].sides),
        "type": own if named and named[0].learns_as else kind,
        "base": base_of(section),
        "loss_type": section.loss["type"],
        "source": source_words(section, " and ".join(part.data.train.name for part in parts)),
        "examples": examples,
        "examples_type": (source_of(section) or {}).get("type"),
        "held_out": sum(len(p.data.dev.queries) for p in parts if p.data.held_out),
        "left_out": sum(len(part.data.left_out) for part in parts),
        "sparsity": section.sparsity is not None,
        "judged": any(judged(part, section) for part in parts),
        "judged_by": judged_by(parts) if section.evaluate is not None else None,
        "overlap": overlap.as_dict() if overlap.queries else None,
        "steps": report.steps,
        "seconds": round(seconds, 2),
        "peak_memory_bytes": peak_memory,
        "loss": [losses[0], losses[-1]] if losses else None,
        "measure": measure,
        "dev": [measured[0], report.best_value] if measured else None,
        "best_step": report.best_step,
        "share": report.share,
        "gain": report.gain,
        "error": report.error,
        "negatives_age": age._asdict() if age is not None else None,
    }


def training_summary(model_path: Path) -> str:
    """Return what made a trained model, from its manifest, in ten lines at most."""
    facts = read_json(model_path / MANIFEST).get(KEY)
    if facts is None:  # of an earlier version
        return str(model_path)
    towers = " in two towers" if facts["towers"] else ""
    lines = [
        f"{facts['kind']}{towers} from {facts['base']}, trained with {facts['loss_type']}",
        f"  examples  {facts['examples']:,} from {facts['source']}",
        f"  training  {plural(facts['steps'], 'step')} in {duration(facts['seconds'])}",
    ]
    if facts.get("peak_memory_bytes"):
        lines[2] += f", at most {facts['peak_memory_bytes'] / 1e9:.1f} GB of memory"
    if facts["held_out"]:
        lines[1] += f"; {plural(facts['held_out'], 'query')} held out for dev"
    if facts["loss"]:
        first, last = facts["loss"]
        lines.append(f"  loss      {first:.3g} -> {last:.3g}")
    if facts["dev"]:
        first, best = facts["dev"]
        lines.append(
            f"  {facts['measure']:<8}  {first:.4f} -> {best:.4f} on dev{_kept_words(facts)}"
        )
    if facts.get("negatives_age"):
        lines.append(f"  negatives {age_words(facts['negatives_age'])}")
    if facts.get("left_out"):
        lines.append(f"  judged by {facts['judged_by']}")
    if facts.get("overlap"):
        lines.append(f"  overlap   {overlap_words(facts['overlap'])}")
    lines += [f"  model     {model_path}", f"  next      {_next(facts, model_path)}"]
    return "\n".join(lines)


def _kept_words(facts: Mapping[str, Any]) -> str:
    """Return which weights were kept and why, after the dev measure."""
    at = "" if facts["best_step"] is None else f", best at step {facts['best_step']:,}"
    share, judged = facts.get("share", 1), facts.get("judged", True)
    if not judged and (share == 0 or facts.get("sparsity")):
        kept = "the last weights are kept" if share else "the start is kept"
        return f": no judgement, {kept}"
    if share == 0 and (facts.get("gain") or 0) > 0:
        gain = f"{facts['gain']:.4f}"
        gain += "" if facts["error"] is None else f" ± {facts['error']:.4f}"
        return f": a gain of {gain} may be chance, the start is kept"
    if share == 0:
        return ": training did not help, the start is kept"
    return at if share == 1 else f"{at}, {share:.0%} of the way there from the start"


def age_words(age: Mapping[str, Any]) -> str:
    """Return how often negatives were mined again, and how old they were, in a line."""
    words = (
        f"mined again {plural(age['refreshes'], 'time')}; by encoders {age['mean']:.1f} steps old, "
        f"at most {age['max']:,}"
    )
    if age["restarts"]:
        words += f"; {plural(age['restarts'], 'miner')} lost and replaced"
    return words


def overlap_words(overlap: Mapping[str, Any]) -> str:
    """Return what training texts hold of the tested queries, in a line."""
    counts = [
        f"{overlap[key]:,} in training {what}"
        for key, what in (("in_queries", "queries"), ("in_documents", "documents"))
        if overlap[key]
    ]
    queries = f"of {plural(overlap['queries'], 'tested query')}"
    if not counts:
        return f"{queries} none is in a training text"
    query, text, _ = overlap["examples"][0]
    return f"{queries} {', '.join(counts)} (such as {query}: {text!r:.60})"


def _next(facts: Mapping[str, Any], model_path: Path) -> str:
    named = "towers" if facts["towers"] else facts["type"]
    if facts.get("examples_type") == "quality":
        return f"leave out what answers nothing: prune: {{model: {model_path}, share: 0.3}}"
    if facts["type"] in RERANKERS:
        return f"rerank with it: {{type: {named}, model: {model_path}}} under rerankers:"
    return f"search with it: {{encoder: {{type: {named}, model: {model_path}}}}} under retrievers:"


def base_of(section: TrainingSection) -> str:
    """Return what a training run starts from: a hub id, the name of a folder, or neither."""
    if is_untrained(section.encoder.get(START_KEY)):
        return "random weights"
    towers = towers_in(section.encoder)
    models = [tower.get("model") for tower in towers.values()] or [section.encoder.get("model")]
    names = [without_folders(str(model)) for model in models if model is not None]
    return " and ".join(dict.fromkeys(names)) or "no model"


def source_words(section: TrainingSection, dataset: str) -> str:
    """Return where the examples are from: files, a corpus, or a dataset's judgements."""
    spec = source_of(section)
    files = example_source(spec).paths
    if files:
        return ", ".join(path.name for path in files)
    return dataset if spec is None else f"{spec.get('type')} over {dataset}"


def without_folders(value: Any) -> Any:
    """Return a setting with the names of files and folders in place of this machine's paths."""
    if isinstance(value, Mapping):
        return {key: without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_folders(inner) for inner in value]
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, str) and re.match(r"/|~|\.\.?[/\\]|[A-Za-z]:[/\\]|\\\\", value):
        return re.split(r"[/\\]", value.rstrip("/\\"))[-1] or value
    return value


def _series(history: Sequence[Mapping[str, float]], name: str) -> list[float]:
    return [float(line[name]) for line in history if line.get(name) is not None]


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
