"""Reads a YAML file, applies overrides, and checks it; errors name file, key and nearest name."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import yaml
from pydantic import ValidationError

from sluice.encoders.foundation.bounded_input import load_yaml
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.retrieval.config.component_types import OWN_TYPE, REFUSED, Section
from sluice.retrieval.config.names import found_beside
from sluice.retrieval.config.other_names import TRAINER_NAMES
from sluice.retrieval.config.yaml_file import SUFFIXES, Loader, read_yaml, recipe_or_file, recipes

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
        inner += [each for option in inner for each in get_args(option)]  # dict[str, X] | None
        for option in inner:
            option = get_args(option)[0] if get_origin(option) is Annotated else option
            if is_dataclass(option):
                return [each.name for each in fields(option)]
            if isinstance(option, type) and issubclass(option, Section):
                kind = option
                break
    return list(kind.model_fields)


ConfigSource = str | Path | Mapping[str, Any]  # a YAML file, or its content


SHOWN = 20  # faults of a config that one error lists


Config = TypeVar("Config", bound=Section)


def config_of(
    source: ConfigSource, kind: type[Config], overrides: Sequence[str] = ()
) -> tuple[Config, Path | None]:
    """Return the user's config, from a file with overrides or from values, and the file if any.

    A name without a suffix is a config that comes with the package, see ``recipe_or_file``.

    Modules that its ``type: module:Class`` name may lie in the current folder or beside the file.
    """
    if isinstance(source, Mapping):
        find_own_modules(source, None)
        _refuse_other_kind(source, kind, None)
        return checked(source, kind), None
    if not isinstance(source, str | Path):
        raise ConfigError(
            f"a {type(source).__name__} is not a config, nor the name of its file; of documents "
            "write: retriever = Retriever.build(documents)"
        )
    file = recipe_or_file(source)
    values = load_values(file, overrides)
    find_own_modules(values, file)
    with named_file(file):
        _refuse_other_kind(values, kind, source)
        return checked(values, kind), file


def _refuse_other_kind(
    values: Mapping[str, Any], kind: type[Section], source: str | Path | None
) -> None:
    """Raise ``ConfigError`` if an experiment is given for a training run, or the reverse."""

    def reader(verb: str) -> str:
        return f"{verb}()" if source is None else f"`sluice {verb} {source}`"

    keys = kind.model_fields
    if "loss" in keys and values.keys() & {"retrievers", "pipelines"} and "loss" not in values:
        raise ConfigError(
            f"an experiment, not one training run (it has no loss); {reader('run')} reads it, and "
            "trains what its section train holds"
        )
    if "retrievers" in keys and {"encoder", "loss"} <= values.keys():
        raise ConfigError(
            "one training run, not an experiment (it has encoder and loss); "
            f"{reader('train')} reads it"
        )


def find_own_modules(values: Mapping[str, Any], file: Path | None) -> None:
    """Let Python find the modules that a user's own config names: here, and beside the file.

    Never for a saved folder's config, which somebody else may have written. The folders come last
    on ``sys.path``, so that a local file hides no installed package.
    """
    if not any(OWN_TYPE.fullmatch(text) for text in _texts(values)):
        return
    for folder in (Path.cwd(), *([] if file is None else [file.absolute().parent])):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a config's values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def load_config(path: str | Path, kind: type[Config], overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file, apply ``key.path=value`` overrides, and check it.

    It may be somebody else's: variables of the environment are not looked up. Raises
    ``ConfigError`` that names the file, the key path, the value and the nearest valid name.
    """
    with named_file(path):
        return checked(load_values(path, overrides, variables=False), kind)


def load_values(
    path: str | Path, overrides: Sequence[str] = (), *, variables: bool = True
) -> dict[str, Any]:
    """Return the values of a YAML file with the overrides, unchecked; errors as above.

    Relative paths of what is read are found from the current folder, or beside the file;
    with ``variables``, ``$NAME`` in a path is that of the environment.
    """
    file = recipe_or_file(path)
    with named_file(file):
        values = _overridden(_read(file), overrides)
        return found_beside(values, file, variables=variables)


@contextlib.contextmanager
def named_file(file: str | Path | None) -> Iterator[None]:
    """Put the config file's name before the message of a ``ConfigError`` raised inside."""
    try:
        yield
    except ConfigError as error:
        if file is None or str(error).startswith(f"{file}: "):
            raise
        raise ConfigError(f"{file}: {error}") from error


def checked(values: Mapping[str, Any], kind: type[Config]) -> Config:
    """Return the values as a config of ``kind``, or raise ``ConfigError`` with every fault."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        faults = messages(error.errors(), kind)
        more = [f"and {len(faults) - SHOWN:,} more"] if len(faults) > SHOWN else []
        raise ConfigError("; ".join(faults[:SHOWN] + more)) from None


def _read(file: Path) -> dict[str, Any]:
    try:
        return read_yaml(file)
    except FileNotFoundError:
        known = [p.name for p in file.parent.glob("*.y*ml")]
        near = suggest(file.name, known if file.suffix in SUFFIXES else [*known, *recipes()])
        raise ConfigError(f"no such file{near}") from None


def _overridden(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    for override in overrides:
        key, sign, text = override.partition("=")
        if not sign or not key:
            raise ConfigError(f"override {override!r}: expected key.path=value")
        *parents, last = key.split(".")
        place = values
        for parent in parents:
            below = place.setdefault(parent, {})
            if not isinstance(below, dict):
                raise ConfigError(f"override {override!r}: {parent} is a value, not a section")
            place = below
        try:
            place[last] = load_yaml(text, Loader)
        except (ConfigError, yaml.YAMLError, ValueError, RecursionError):
            place[last] = text
    return values
