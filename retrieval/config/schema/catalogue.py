"""What a config may name, with one line each: from the schema's file, the tables, the data."""

from __future__ import annotations

import functools
import json
import os
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.build import Core, types_listed
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.table import ENCODERS, TUNINGS
from sluice.indexing.table import INDEXES
from sluice.retrieval.config.component_types import EXAMPLES
from sluice.retrieval.config.schema.arguments import (
    Description,
    Schema,
    component,
    components,
    first_sentence,
)
from sluice.retrieval.config.yaml_file import CORE as CORE_RECIPES, SCHEMA, configs, recipes
from sluice.retrieval.pipelines.table import SCORERS, STAGES
from sluice.training.losses import LOSSES

OF_SCHEMA = (  # kinds that are in the schema's file, so that listing them imports nothing
    "losses", "encoders", "rerankers", "indexes", "examples", "negatives", "tunings", "rankers",
    "teachers", "executors", "launchers",
)  # fmt: skip
TABLES: Mapping[str, Mapping[str, str]] = {
    "losses": LOSSES, "encoders": ENCODERS, "rerankers": SCORERS, "indexes": INDEXES,
    "examples": EXAMPLES, "tunings": TUNINGS, "stages": STAGES,
}  # fmt: skip
OPERATORS = {
    "a | b": "Fuse by reciprocal ranks.",
    "a % 100": "Keep the first 100.",
    "a >> b": "Give what a finds to b, a reranker: cross(depth=50), a name under rerankers.",
}
WIDTH = 100  # columns of a component's page
Entries = dict[str, str]  # names and what each is, in one line


@functools.cache
def published() -> Schema:
    """Return the schema that comes with the package."""
    schema: Schema = json.loads((configs() / SCHEMA).read_text(encoding="utf-8"))
    return schema


def kinds() -> list[str]:
    """Return the kinds of things that ``entries`` lists."""
    return [*OF_SCHEMA, *_others()]


def core(kind: str) -> list[str]:
    """Return the names of a kind that most people need; all where no few are marked."""
    if kind == "recipes":
        return [name for name in recipes() if name in CORE_RECIPES]
    table = TABLES.get(kind, {})
    marked = [name for name, place in table.items() if isinstance(place, Core)]
    return ([*OPERATORS, *marked] if kind == "stages" else marked) or list(entries(kind))


def entries(kind: str) -> Entries:
    """Return the names of a kind and one line about each; ``ConfigError`` for an unknown kind."""
    _check(kind)
    if kind in OF_SCHEMA:
        return {each.name: each.summary for each in _of_schema(kind).values()}
    return _others()[kind]()


def entry(kind: str, name: str) -> Description:
    """Return the arguments of one component, or of a function of pipelines.

    ``module:Class`` describes one of your own. Raises ``ConfigError`` for a name that does not
    exist, and for kinds that have no arguments.
    """
    _check(kind)
    if ":" in name:
        try:
            return component(name, name)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise ConfigError(f"{name}: cannot be imported: {error}") from None
    known = _of_schema(kind) if kind in OF_SCHEMA else _functions() if kind == "stages" else {}
    names = known or entries(kind)
    if name not in names:
        known_by = types_listed(TABLES.get(kind, dict.fromkeys(names, "")))
        raise ConfigError(f"{kind}: no {name!r}{suggest(name, names)}; known: {known_by}")
    return known[name] if known else Description(name, entries(kind)[name], {})


def shown(each: Description, kind: str) -> str:
    """Return a component's line and its arguments, with types and defaults, as text."""
    call = f"{each.name}({', '.join(each.parts)}, ...)" if kind == "stages" else each.name
    lines = [f"{call}: {each.summary}"]
    width = max(map(len, each.arguments), default=0)
    for key, place in each.arguments.items():
        head = f"  {key.ljust(width)}  {_values(place)}"
        if key in each.required:
            head += ", required"
        elif place.get("default") is not None:
            head += f", default {json.dumps(place['default'], ensure_ascii=False)}"
        margin = " " * (width + 6)
        about = textwrap.fill(place["description"], WIDTH, initial_indent=margin,
                              subsequent_indent=margin, break_on_hyphens=False)  # fmt: skip
        lines += [head, about]
    return "\n".join(lines)


def _others() -> dict[str, Callable[[], Entries]]:
    return {"stages": _stages, "measures": _measures, "datasets": _datasets, "recipes": recipes}


def _check(kind: str) -> None:
    if kind not in kinds():
        raise ConfigError(
            f"{kind}: not a list; expected one of {', '.join(kinds())}{suggest(kind, kinds())}"
        )


def _of_schema(kind: str) -> dict[str, Description]:
    """Read the components of a kind from the schema's file."""
    definitions = published()["$defs"]
    found = {}
    for full, schema in definitions.items():
        owner, _, name = full.partition(".")
        if owner != kind or not name:
            continue
        if "$ref" in schema:
            schema = definitions[schema["$ref"].rpartition("/")[2]]
        arguments = {key: place for key, place in schema["properties"].items() if key != "type"}
        found[name] = Description(name, schema["description"], arguments, schema["required"])
    return found


def _functions() -> dict[str, Description]:
    return {each.name: each for each in components(STAGES)}


def _stages() -> Entries:
    return OPERATORS | {name: each.summary for name, each in _functions().items()}


def _measures() -> Entries:
    from sluice.retrieval.evaluation.measure_table import MEASURES

    lines = {}
    for name, measure in MEASURES.items():
        text = first_sentence((measure.values.__doc__ or "").removeprefix("Return "))
        example = f"{name}@10" if measure.cutoff == "needed" else name
        lines[f"{name}@0.1" if measure.at else example] = text
    return lines


def _datasets() -> Entries:
    """Return the datasets that are at hand, and the forms that name others."""
    from sluice.retrieval.datasets.beir import beir_folders
    from sluice.retrieval.datasets.dataset import DATA_FOLDER

    data = os.environ.get(DATA_FOLDER)
    local = beir_folders(expanded(data)) if data else []
    keys = published()["$defs"]["dataset"]["properties"]
    return {
        "pydocs": "The documentation of Python's standard library, made on first use.",
        **{name: f"A folder under ${DATA_FOLDER}." for name in local},
        "FOLDER": "A folder in BEIR layout: corpus.jsonl, queries.jsonl, qrels/test.tsv.",
        "hf:OWNER/NAME": "BEIR layout on the Hugging Face hub.",
        "ir_datasets:ID": "A dataset of ir_datasets, such as ir_datasets:beir/scifact.",
        "{corpus: FILE}": keys["corpus"]["description"],
        "{name: NAME, ...}": f"With further keys: {', '.join(keys)}.",
    }


def _values(place: Mapping[str, Any]) -> str:
    """Return the values that an argument takes: types, or the choices."""
    if "enum" in place:
        return " | ".join(json.dumps(each).strip('"') for each in place["enum"])
    if "anyOf" in place:
        return " | ".join(_values(each) for each in place["anyOf"])
    if "$ref" in place:
        return "{type: ...}"
    kinds = place.get("type", "any")
    return kinds if isinstance(kinds, str) else " | ".join(kinds)
