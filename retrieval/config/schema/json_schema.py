"""The JSON schema of the YAML files: sections from pydantic, components from their signatures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

from pydantic.json_schema import models_json_schema

from sluice.encoders.foundation.build import Table, declared, resolve
from sluice.encoders.table import ENCODERS, KNOWN, RERANKERS, TUNINGS
from sluice.indexing.table import AUGMENTATIONS, INDEXES
from sluice.retrieval.config import component_types as types
from sluice.retrieval.config.component_types import COMPONENT, EXAMPLES
from sluice.retrieval.config.schema.arguments import (
    Description,
    Schema,
    component,
    components,
    first_sentence,
)
from sluice.retrieval.config.schema.settings import (
    DATASET,
    ENSEMBLE,
    LIVE,
    MINED,
    SPARSITY,
    START,
    TRAINER,
)
from sluice.retrieval.config.schema.words import described
from sluice.retrieval.config.sections import (
    CachedEncoding,
    ExperimentConfig,
    TrainConfig,
    TuneConfig,
)
from sluice.retrieval.execution.executor import EXECUTORS
from sluice.retrieval.execution.group import LAUNCHERS
from sluice.retrieval.pipelines.table import SCORERS
from sluice.retrieval.retrievers.corpus.passages import Passages
from sluice.training.losses import LOSSES

CONFIGS = (ExperimentConfig, TrainConfig, TuneConfig)
MINING = "sluice.training.negatives.settings:Mining"
RANKERS: Final[Table] = resolve("sluice.retrieval.stages.ltr.ranker:RANKERS")  # a higher floor
TABLES: Final[Mapping[str, Table]] = {
    "encoders": ENCODERS,
    "rerankers": SCORERS,
    "indexes": INDEXES,
    "augmentations": AUGMENTATIONS,
    "losses": LOSSES,
    "tunings": TUNINGS,
    "examples": EXAMPLES,
    "rankers": RANKERS,
    "executors": EXECUTORS,
    "launchers": LAUNCHERS,
}
CLOSED = (  # kinds without classes of your own
    "negatives", "augmentations", "rankers", "executors", "launchers",
)  # fmt: skip
TEACHERS = tuple(sorted(name for name, each in KNOWN.items() if each.teaches))
OWN = {"type": "string", "pattern": ":", "description": "A class of your own, module:Class."}
# Arguments that are components themselves, by the kind of component they belong to.
INNER: Final[Mapping[tuple[str, str], str]] = {
    ("encoders", "query"): "encoders",
    ("encoders", "document"): "encoders",
    ("indexes", "inner"): "indexes",
    ("indexes", "first"): "indexes",
    ("indexes", "augmentation"): "augmentations",
    ("losses", "loss"): "losses",
    ("losses", "base"): "losses",
}


def json_schema() -> Schema:
    """Return the JSON schema of the YAML files, for editors; every component is imported for it.

    `configs/sluice.schema.json` has it as a file. A file with ``tune`` is one of `sluice tune`, one
    with an ``encoder`` or a ``loss`` of its own one of `sluice train`, any other an experiment.
    """
    names, made = models_json_schema([(kind, "validation") for kind in CONFIGS], title="Sluice")
    definitions: Schema = {**made["$defs"], **dict(_definitions())}
    for kind in (Passages, CachedEncoding):
        _describe(definitions[kind.__name__], kind)
    definitions[TuneConfig.__name__]["required"].append("tune")
    for each in CONFIGS[::2]:  # an experiment and a tuning may have several datasets
        place = definitions[each.__name__]["properties"]["dataset"]
        several = {"type": "array", "minItems": 1, "items": {COMPONENT: "dataset"}}
        text = place.pop("description")
        place_of = dict(place)
        place.clear()
        place |= {"anyOf": [place_of, several], "description": text}
    experiment, training, tuning = (names[kind, "validation"] for kind in CONFIGS)
    alone: Schema = {"anyOf": [{"required": ["encoder"]}, {"required": ["loss"]}]}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Sluice",
        "description": "A YAML file of Sluice: an experiment, one training run, or a tuning.",
        "type": "object",
        "if": {"required": ["tune"]},
        "then": tuning,
        "else": {"if": alone, "then": training, "else": experiment},
        "$defs": dict(sorted(definitions.items())),
    }
    linked: Schema = _linked(schema)
    return linked


def mined() -> Description:
    """Describe mined negatives: where they come from, and which are kept."""
    keys = component(types.MINED, MINING)
    modes = list(resolve("sluice.training.negatives.settings:MODES"))
    own = {**MINED, "mode": {**MINED["mode"], "enum": modes}}
    return Description(keys.name, keys.summary, {**own, **keys.arguments}, ["retriever"])


def live() -> Description:
    """Describe live negatives, which are found by searching while training."""
    appended = get_args(resolve("sluice.training.loop.objective:Append"))
    own = {**LIVE, "append": {**LIVE["append"], "enum": list(appended)}}
    return Description(types.LIVE, "The hits of a frozen index, searched at every step.", own)


def _definitions() -> Iterator[tuple[str, Schema]]:
    """Yield the definition of each kind of component, and of each component."""
    described_by_kind = {kind: list(components(table)) for kind, table in TABLES.items()}
    described_by_kind["negatives"] = [live(), mined()]
    trained = [*described_by_kind["encoders"], *components(RERANKERS)]
    described_by_kind["trained_encoders"] = [_started(each) for each in trained]
    for name in TEACHERS:
        kind = "encoders" if name in ENCODERS else "rerankers"
        yield f"teachers.{name}", {"$ref": f"#/$defs/{kind}.{name}"}
    yield f"teachers.{types.ENSEMBLE}", ENSEMBLE.as_schema()
    yield "teachers", _kind("teachers", [*TEACHERS, types.ENSEMBLE])
    for kind, every in described_by_kind.items():
        for each in every:
            yield f"{kind}.{each.name}", _with_inner(kind, each)
        yield kind, _kind(kind, [each.name for each in every])
    yield "dataset", DATASET
    yield "sparsity", SPARSITY
    yield "trainer", TRAINER


def _started(encoder: Description) -> Description:
    """Return the encoder as training takes it: it may begin without a trained model or head."""
    arguments = {**encoder.arguments, "start": START}
    required = [key for key in encoder.required if key != "model"]
    return Description(encoder.name, encoder.summary, arguments, required)


def _with_inner(kind: str, each: Description) -> Schema:
    schema = each.as_schema()
    for key, place in schema["properties"].items():
        inner = INNER.get((kind.removeprefix("trained_"), key))
        if inner is not None and not (kind == "encoders" and KNOWN[each.name].fitted):
            schema["properties"][key] = {
                "description": place["description"], "$ref": f"#/$defs/{inner}",
            }  # fmt: skip
        if (kind, key) == ("losses", "losses"):
            place["items"] = {"type": "object", "required": ["type"]}
    return schema


def _kind(kind: str, names: list[str]) -> Schema:
    """Return the schema of ``{type: name, ...}``; a type decides which other keys there are."""
    alternatives: list[Schema] = [
        {"if": {"properties": {"type": {"const": name}}, "required": ["type"]},
         "then": {"$ref": f"#/$defs/{kind}.{name}"}}
        for name in names
    ]  # fmt: skip
    types: list[Schema] = [{"enum": names}]
    if kind not in CLOSED:
        types.append(OWN)
    if kind == "examples":
        file = {"if": {"not": {"required": ["type"]}}, "then": {"$ref": "#/$defs/examples.file"}}
        alternatives.append(file)
    return {
        "type": "object",
        "properties": {
            "type": {"anyOf": types, "description": f"Which of the {kind.replace('_', ' ')}."}
        },
        "required": [] if kind == "examples" else ["type"],
        "allOf": alternatives,
    }


def _describe(schema: Schema, kind: type) -> None:
    """Give the properties of a dataclass's schema descriptions, from its docstring."""
    docs = [base.__doc__ or "" for base in kind.__mro__ if base is not object]
    schema["description"] = first_sentence(docs[0])
    own = declared(kind)
    for key, place in schema["properties"].items():
        place["description"] = own[key].sentence or described(key, docs)


def _linked(value: Any) -> Any:
    """Replace the marks of components by what they are; leave out pydantic's titles."""
    if isinstance(value, list):
        return [_linked(each) for each in value]
    if not isinstance(value, dict):
        return value
    if COMPONENT in value:
        rest = {k: v for k, v in value.items() if k not in (COMPONENT, "any_text", "lists")}
        return {**_marked(value), **rest}
    kept = {}
    for key, inner in value.items():
        if key == "title" and isinstance(inner, str) and "properties" not in value:
            continue
        if key == "properties":
            kept[key] = {name: _linked(each) for name, each in inner.items()}
        else:
            kept[key] = _linked(inner)
    return kept


def _marked(mark: Schema) -> Schema:
    """Return the schema of a component's place: a mapping, or a text that stands for one."""
    kind = mark[COMPONENT]
    mapping = {"$ref": f"#/$defs/{kind}"}
    texts: list[Schema] = [{"type": "string"}]
    if kind in ("sparsity", "trainer"):
        return mapping
    if mark.get("lists"):
        member = {"anyOf": [texts[0], mapping]} if kind == "teachers" else texts[0]
        texts.append({"type": "array", "items": member, "minItems": 1})
    if mark.get("any_text") or kind in ("dataset", "teachers"):
        return {"anyOf": [*texts, mapping]}
    if kind == "rankers":
        return {"anyOf": [{"enum": ["auto", *RANKERS]}, mapping]}
    if kind == "negatives":
        names = list(types.NEGATIVES)
    elif kind == "trained_encoders":
        names = [*ENCODERS, *RERANKERS]
    else:
        names = list(TABLES[kind])
    own = [] if kind in CLOSED and kind != "negatives" else [OWN]
    return {"anyOf": [{"enum": sorted(names)}, *own, mapping]}
