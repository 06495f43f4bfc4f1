"""The arguments of a component's factory as JSON schema, from its signature and docstrings."""

from __future__ import annotations

import inspect
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from sluice.encoders.foundation.build import Table, declared, declared_hints, resolve
from sluice.retrieval.config.schema.words import SUMMARIES, described

Schema = dict[str, Any]


PLAIN: Mapping[Any, Schema] = {
    str: {"type": "string"}, int: {"type": "integer"}, float: {"type": "number"},
    bool: {"type": "boolean"}, Path: {"type": "string"}, type(None): {"type": "null"},
    None: {"type": "null"},
}  # fmt: skip


BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


ARRAYS = (list, tuple, set, frozenset, Sequence)


@dataclass(frozen=True, slots=True)
class Description:
    """A component or a function of pipelines: its name, what it is, and its arguments by name.

    An argument's schema has its description, and its default if it may be left out; ``parts`` are
    the stages and scorers that a function of pipelines is called with.
    """

    name: str
    summary: str
    arguments: dict[str, Schema]
    required: list[str] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)

    def as_schema(self) -> Schema:
        """Return the schema of ``{type: name, ...arguments}``, which has no other keys."""
        kind: Schema = {"const": self.name, "description": self.summary}
        return {
            "type": "object",
            "title": self.name,
            "description": self.summary,
            "properties": {"type": kind, **self.arguments},
            "required": self.required,
            "additionalProperties": False,
        }


def components(table: Table) -> Iterator[Description]:
    """Describe every component of a table, in the order of their names."""
    for name in sorted(table):
        yield component(name, table[name])


def component(name: str, target: str) -> Description:
    """Describe the component of that name; ``target`` is ``module:Class`` or ``...:Class.method``.

    An argument that has nothing but a position is a part of a function of pipelines.
    """
    make = resolve(target)
    module, _, names = target.partition(":")
    owner = resolve(f"{module}:{names.split('.')[0]}")
    docs = [inspect.getdoc(owner) or "", inspect.getdoc(make) or ""]
    arguments: dict[str, Schema] = {}
    required: list[str] = []
    parts: list[str] = []
    hints = declared_hints(make)
    for key, each in declared(make).items():
        parameter = each.parameter
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            parts.append(key if parameter.kind is parameter.POSITIONAL_ONLY else f"{key}...")
            continue
        text = each.sentence or described(key, docs)
        arguments[key] = {**of_hint(hints.get(key, Any)), "description": text}
        if parameter.default is parameter.empty:
            required.append(key)
        else:
            arguments[key]["default"] = plain(parameter.default)
    return Description(
        name,
        SUMMARIES.get(target) or SUMMARIES.get(name) or _summary(owner, make),
        arguments,
        required,
        parts,
    )


def of_hint(hint: Any) -> Schema:
    """Return the JSON schema of a type hint; an empty one where only the factory can judge."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        limits = {
            word: bound
            for note in notes for name, word in BOUNDS.items()
            if (bound := getattr(note, name, None)) is not None
        }  # fmt: skip
        return {**of_hint(inner), **limits}
    origin = get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _any_of([of_hint(option) for option in get_args(hint)])
    if origin is Literal:
        return {"enum": list(get_args(hint))}
    if hint in PLAIN:
        return dict(PLAIN[hint])
    if origin in ARRAYS or hint in ARRAYS:
        items = _any_of([of_hint(each) for each in get_args(hint) if each is not Ellipsis])
        return {"type": "array", "items": items} if items else {"type": "array"}
    if isinstance(origin or hint, type) and issubclass(origin or hint, Mapping):
        return {"type": "object"}
    return {}


def plain(value: Any) -> Any:
    """Return a default as JSON has it."""
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (str, int, float, bool, dict, type(None))) else str(value)


def _any_of(options: list[Schema]) -> Schema:
    """Join options; one that says nothing says it for all."""
    if not options or {} in options:
        return {}
    distinct = [each for place, each in enumerate(options) if each not in options[:place]]
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


def _summary(owner: Any, make: Any) -> str:
    """Return one line: a loss's ``summary``, else the first sentence of the class's docstring."""
    own = getattr(owner, "summary", "")
    text = own if isinstance(own, str) and own else inspect.getdoc(owner) or inspect.getdoc(make)
    return first_sentence(text or "")


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring on one line, without its marks of code."""
    paragraph = " ".join(text.split("\n\n")[0].split()).replace("``", "`")
    sentence = re.split(r"(?<=[.!?]) (?=[A-Z`(])", paragraph)[0]
    if sentence.split(" ")[0].islower():
        sentence = sentence[:1].upper() + sentence[1:]
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
