"""Reads YAML files, says in plain words what is wrong with one, and finds the package's own."""

from __future__ import annotations

import importlib.resources
import re
from pathlib import Path
from typing import Any

import yaml

from sluice.encoders.foundation.bounded_input import LARGEST, PlainLoader, load_yaml, read_whole
from sluice.encoders.foundation.errors import ConfigError, DataError

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
