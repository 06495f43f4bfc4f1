"""What is wrong with a config, in words: pydantic's faults by place, with the nearest valid key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin

from sluice.encoders.foundation.errors import suggest
from sluice.retrieval.config.component_types import REFUSED, Section
from sluice.retrieval.config.other_names import TRAINER_NAMES

# What pydantic adds to the place of a fault in a union: the option that did not fit.
OPTIONS = ("str", "bool", "dict", "lax-or-strict", "function-before", "RetrieverSection")


EXPECTED = {  # by pydantic's types of faults
    "bool_type": "true or false",
    "dict_type": "keys and values",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "sequence_str": "a list",
    "string_type": "a text",
    "dataclass_type": "keys and values",
    "model_type": "keys and values",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "a number below {lt}",
    "less_than_equal": "{le} or less",
    "literal_error": "{expected}",
    "too_short": "at least {min_length} in the list",
}


def messages(items: Iterable[Any], kind: type[Section]) -> list[str]:
    """Return one message for each place: of a union's options, what any of them expects."""
    expected: dict[str, list[str]] = {}
    faults: dict[str, str] = {}
    for item in items:
        parts = map(str, item["loc"])
        path = ".".join(part for part in parts if part.split("[")[0] not in OPTIONS)
        if item["type"] in EXPECTED:
            text = EXPECTED[item["type"]].format(**item.get("ctx", {}))
            expected.setdefault(path, []).append(text)
            faults[path] = f"{item['input']!r:.60}; expected {' or '.join(expected[path])}"
        else:
            faults[path] = _fault(item, kind)
    return [f"{path}: {fault}" if path else fault for path, fault in faults.items()]


def _fault(item: Any, kind: type[Section]) -> str:
    if item["type"] == REFUSED:
        return str(item["msg"])
    if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = _keys_at(kind, item["loc"][:-1])
        key = str(item["loc"][-1])
        if "trainer" in known and key in TRAINER_NAMES:
            return f"unknown key; write it under trainer: trainer.{TRAINER_NAMES[key]}"
        near = suggest(key, known)
        return f"unknown key; known here: {', '.join(known)}{near}"
    if item["type"] == "missing":
        return "missing (required)"
    return f"{item['input']!r:.60}: {item['msg'][0].lower()}{item['msg'][1:]}"


def _keys_at(kind: type[Section], path: Sequence[Any]) -> list[str]:
    """Return the keys of the section that ``path`` leads to."""
    for part in path:
        field = kind.model_fields.get(str(part))
        inner = [field.annotation, *get_args(field.annotation)] if field else []
        for option in inner:
            option = get_args(option)[0] if get_origin(option) is Annotated else option
            if is_dataclass(option):
                return [each.name for each in fields(option)]
            if isinstance(option, type) and issubclass(option, Section):
                kind = option
                break
    return list(kind.model_fields)
