"""Reads a YAML file, applies overrides, and checks it; errors name file, key and nearest name."""

from __future__ import annotations

import contextlib
import importlib.resources
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import yaml
from pydantic import ValidationError

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.input.bounded import read_whole
from sluice.encoders.foundation.input.plain_yaml import LARGEST, PlainLoader, load_yaml
from sluice.retrieval.config.component_types import OWN_TYPE, REFUSED, Section
from sluice.retrieval.config.named_files import found_beside
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


SCHEMA = "sluice.schema.json"
EDITOR_LINE = "# yaml-language-server: $schema="  # names the schema to editors
# Those that most people begin with; lists show the others on request.
CORE = ("beir", "bm25", "quickstart", "train-cross-encoder", "train-dense", "train-splade")
SUFFIXES = (".yaml", ".yml")


def configs() -> Path:
    """Return the folder of the configs and of their schema, in a checkout or installed."""
    with importlib.resources.as_file(importlib.resources.files("sluice") / "configs") as folder:
        return folder


def recipes() -> dict[str, str]:
    """Return the names of the configs, each with what its first comment says of it."""
    return {file.stem: summary_of(file) for file in sorted(configs().glob("*.yaml"))}


def recipe_or_file(source: str | Path) -> Path:
    """Return the file of a recipe's name; a path that exists or has a suffix is itself."""
    path = Path(source)
    if path.suffix in SUFFIXES or path.exists() or path.name != str(source):
        return path
    recipe = configs() / f"{path.name}.yaml"
    return recipe if recipe.is_file() else path


def shown(file: str | Path) -> str:
    """Return how a command names a config: by the recipe's name, or by its path."""
    path = Path(file)
    return path.stem if path.parent == configs() else str(file)


def summary_of(file: Path) -> str:
    """Return what the first comment of a config says, without the command that follows."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("# ") and not line.startswith(EDITOR_LINE):
            return line.removeprefix("# ").partition(": ")[0].rstrip(":")
    return ""


def editor_line(file: Path) -> str:
    """Return the comment by which an editor finds the schema of a config at ``file``.

    The path is relative where the package lies below the config's folder, as in a virtual
    environment of the same project; elsewhere it is absolute, and of use on this machine alone.
    """
    schema = (configs() / SCHEMA).absolute()
    folder = file.parent.absolute()
    if schema.is_relative_to(folder):
        return EDITOR_LINE + schema.relative_to(folder).as_posix()
    return EDITOR_LINE + schema.as_uri()


TABLES = (".csv", ".tsv", ".jsonl", ".parquet", ".arrow", ".feather", ".sqlite", ".db")
KINDS = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false"}


class Loader(PlainLoader):
    """Refuses a key that a section has twice, of which YAML keeps the last; reads 2e-5 as a number.

    YAML 1.1 takes that for a text, YAML 1.2 does not.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a node whose keys differ; keys merged by ``<<`` may be replaced."""
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                raise ConfigError(
                    f"line {line}: the key {key.value!r} again; it is in line {lines[key.value]} "
                    "already, so rename or remove one"
                )
            lines[key.value] = line
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


class _Dumper(yaml.SafeDumper):
    """Puts texts in quotes that ``Loader`` would read as numbers."""


for _each in (Loader, _Dumper):
    _each.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )


def yaml_text(values: Any) -> str:
    """Return values as the text that ``read_yaml`` reads them from."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the keys and values of a YAML file.

    Raises ``ConfigError`` with the line for what is not YAML; a missing file stays
    ``FileNotFoundError``.
    """
    if not file.exists():
        raise FileNotFoundError(file)
    if file.is_dir():
        inside = (file / "experiment.yaml").exists()  # an experiment's output
        other = f"`sluice index {file} --output my` makes its files searchable"
        raise ConfigError(
            f"a folder, not a YAML file; {f'give {file}/experiment.yaml' if inside else other}"
        )
    if file.suffix.lower() in TABLES:
        raise ConfigError(
            f"a table, not a YAML file; `sluice config init train dense --pairs {file}` writes a "
            f"YAML file that trains on its pairs, `sluice index {file} --output my` makes its rows "
            "searchable"
        )
    try:
        text = read_whole(file, LARGEST).decode("utf-8-sig").replace("\r\n", "\n")
    except DataError as error:  # too long, a pipe, a folder
        raise ConfigError(str(error).removeprefix(f"{file}: ")) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"not text in UTF-8 (byte {error.start:,}); save it as UTF-8") from None
    if text.lstrip().startswith('{"') and "\n{" in text:
        raise ConfigError(
            f"JSON lines, not YAML; `sluice index {file} --output my` makes them searchable"
        )
    try:
        values = load_yaml(text, Loader)
    except RecursionError:
        raise ConfigError("not valid YAML: nested too deeply") from None
    except yaml.YAMLError as error:
        raise ConfigError(_yaml_file_fault(_in_words(text, error))) from None
    except ValueError as error:  # a date like 2020-13-45
        raise ConfigError(f"not valid YAML: {error}; put the value in quotes") from None
    if values is None:
        raise ConfigError("empty; `sluice config init` writes a first one")
    if not isinstance(values, dict):
        found = KINDS.get(type(values), type(values).__name__)
        raise ConfigError(f"expected keys and values, found {found}; write KEY: VALUE lines")
    return values


def _in_words(text: str, error: yaml.YAMLError) -> yaml.YAMLError:
    """Return the fault as the parser in Python finds it: libyaml's does not say what was there."""
    try:
        yaml.safe_load(text)
    except yaml.YAMLError as plain:
        return plain
    except RecursionError:
        where = getattr(error, "problem_mark", None)
        return yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=where)
    return error


def _yaml_file_fault(error: yaml.YAMLError) -> str:
    """Return what is wrong, with the line."""
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or error).split("\n", maxsplit=1)[0]
    line = "" if mark is None else f"line {mark.line + 1}: "
    if "'\\t'" in problem:
        return f"not valid YAML, {line}a tab; indent with spaces"
    if "mapping values are not allowed" in problem:
        return f"not valid YAML, {line}a second ': ' in the value; put the value in quotes"
    if "<block" in problem:
        return f"not valid YAML, {line}the indentation does not fit the lines above; align the keys"
    return f"not valid YAML, {line}{problem}"


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
