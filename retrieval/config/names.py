"""What the values of a config name: one walk, which says of each text what it means.

Keys, trust, needs and checks are read from it, so a key that names a file is declared once: here,
for keys mean the same wherever they stand, in components of one's own too. Nothing is imported for
it, since folders of strangers are walked as well.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.table import ENCODERS, RERANKERS
from sluice.retrieval.config.component_types import EXAMPLES
from sluice.retrieval.datasets.beir import is_beir_folder
from sluice.retrieval.documents.readers.source import is_source
from sluice.retrieval.pipelines.expression import place_in, text_options
from sluice.retrieval.pipelines.table import READ, READ_BY_ALL, REMOTE, WRITTEN


class Role(Enum):
    """What the text of a key names."""

    MODEL = "a model: one trained here, a folder, an id of the hub; of a teacher a run's file too"
    FILE = "a file or folder, whose contents decide what is made"
    LISTS = "ranked lists: a retriever or pipeline of this file, a folder, a run's file"
    JUDGE = "a judge: a reranker of this file, or a model"
    EXAMPLES = "training examples: a type, or a file"
    SETTING = "a file that decides nothing that is made"
    WRITTEN = "a file or folder that is written"
    DATABASE = "the folder of a database, which trust asks about by its type"


ROLES: Final[Mapping[str, Role]] = {
    **dict.fromkeys(("encoder", "model", "teacher", "teachers"), Role.MODEL),
    **dict.fromkeys(
        ("adapter", "answered", "file", "propensities", "queries", "scores", "vocabulary"),
        Role.FILE,
    ),
    "retriever": Role.LISTS,
    "judge": Role.JUDGE,
    "examples": Role.EXAMPLES,
    **dict.fromkeys(
        ("api_key_file", "deepspeed", "fsdp_config", "accelerator_config"), Role.SETTING
    ),
    "cache": Role.WRITTEN,
    "path": Role.DATABASE,
}
# Texts of a key that name nothing; those of a key that is not listed all do.
WORDS: Final[Mapping[str, Sequence[str]]] = {
    "encoder": (*ENCODERS, *RERANKERS),
    "teacher": ("bm25", "examples"),
    "teachers": ("bm25", "examples"),
    "retriever": ("self", "random"),
}
NOT_FOLDERS: Final = ("clicks", *REMOTE)  # types whose ``model`` is a name of another kind


class Place(NamedTuple):
    """A value of a config: its path of keys, its own key, and the mapping that it stands in."""

    where: str
    key: str
    value: Any
    spec: Mapping[str, Any]

    @property
    def role(self) -> Role | None:
        """What its text names; None where it is not a text, or names nothing."""
        text = self.value if isinstance(self.value, str | Path) else ""
        if not text or text in WORDS.get(self.key, ()):
            return None
        other = self.key == "model" and self.spec.get("type") in NOT_FOLDERS
        return None if other else ROLES.get(self.key)


def places(
    value: Any, where: str = "", key: str = "", spec: Mapping[str, Any] | None = None
) -> Iterator[Place]:
    """Yield every value of a config with its place, outer ones first.

    Of a component its model comes first and parts of it last, in whichever order they are written;
    an item of a list has the list's key.
    """
    spec = {} if spec is None else spec
    yield Place(where, key, value, spec)
    if isinstance(value, Mapping):
        for name in sorted(value, key=lambda name: _rank(name, value[name])):
            yield from places(value[name], f"{where}.{name}".lstrip("."), str(name), value)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from places(inner, f"{where}[{number}]", key, spec)


def _rank(key: Any, value: Any) -> tuple[bool, bool, bool]:
    return (key != "model", isinstance(value, Mapping | list | tuple), key == "document")


log = logging.getLogger("sluice")
PARTS = ("corpus", "queries", "qrels", "allow")  # of a dataset

NO_FILES = ("bm25", "examples", "random", "self", *EXAMPLES, *ENCODERS, *RERANKERS)
NAMED_PARTS = ("train", "retrievers", "rerankers", "pipelines")
OTHERS = ("datasets", "evaluate", "output", "ranker", "tune", "dataset", *NAMED_PARTS)
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*))")


def found_beside(values: dict[str, Any], file: Path, *, variables: bool = False) -> dict[str, Any]:
    """Return a config's values with relative paths as seen from the current folder.

    A path that does not exist from there, and does exist beside ``file``, is replaced by the
    latter; a log line says so. ``variables`` puts the values of ``$NAME`` and ``${NAME}`` into
    paths; ``ConfigError`` for one that is not set.
    """
    return _Beside(values, file, variables=variables).found(values)


class _Beside:
    def __init__(self, values: Mapping[str, Any], file: Path, *, variables: bool) -> None:
        self.file, self.folder, self.variables = file, file.parent, variables
        parts = [values.get(kind) for kind in NAMED_PARTS]
        own = {name for part in parts if isinstance(part, Mapping) for name in part}
        self.names: Collection[str] = {*NO_FILES, *own}
        self.choices: Mapping[str, Any] = {}  # of a tuning's templates

    def found(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of the whole config."""
        found = {**values, **self._section(values, "")}
        if isinstance(values.get("output"), str):
            found["output"] = self._made(values["output"], "output")
        for key in ("dataset", "datasets"):
            if key in values:
                found[key] = self._dataset(values[key], key)
        for kind in ("train", "retrievers", "rerankers"):
            if isinstance(values.get(kind), Mapping):
                found[kind] = {
                    name: self._part(part, f"{kind}.{name}") for name, part in values[kind].items()
                }
        if isinstance(values.get("pipelines"), Mapping):
            found["pipelines"] = {
                name: self._expression(text, f"pipelines.{name}")
                for name, text in values["pipelines"].items()
            }
        tune = values.get("tune")
        if isinstance(tune, Mapping) and isinstance(tune.get("pipelines"), list):
            choices = tune.get("choices")
            self.choices = choices if isinstance(choices, Mapping) else {}
            texts = [self._expression(text, "tune.pipelines") for text in tune["pipelines"]]
            found["tune"] = {**tune, "pipelines": texts}
        return found

    def _part(self, part: Any, where: str) -> Any:
        """Return a named training run, retriever or reranker; a text names a model."""
        if not isinstance(part, Mapping):
            return self._value(part, where, "model")
        found = {**part, **self._section(part, f"{where}.")}
        if "datasets" in part:
            found["datasets"] = self._dataset(part["datasets"], f"{where}.datasets")
        return found

    def _section(self, section: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return what a section holds but for its datasets, outputs and named parts."""
        skipped = (*OTHERS, "model") if section.get("type") in NOT_FOLDERS else OTHERS
        return {
            key: self._value(value, f"{where}{key}", key)
            for key, value in section.items()
            if key not in skipped
        }

    def _value(self, value: Any, where: str, key: str) -> Any:
        if isinstance(value, Mapping):
            return {**value, **self._section(value, f"{where}.")}
        if isinstance(value, list):
            return [self._value(each, f"{where}[{place}]", key) for place, each in enumerate(value)]
        role = ROLES.get(key) if isinstance(value, str) else None
        if role in (Role.WRITTEN, Role.DATABASE):
            return self._made(value, where)
        named = role not in (Role.FILE, Role.SETTING) and value in self.names
        return value if role is None or named else self._file(value, where)

    def _expression(self, text: Any, where: str) -> Any:
        if not isinstance(text, str):
            return text
        return with_files(text, lambda name: self._file(name, where))

    def _file(self, name: str, where: str) -> str:
        """Return a path, or that beside the config; with choices of a tuning if all are there."""
        name = self._written(name, where)
        meant = [name]
        for key, values in self.choices.items():
            each = values if isinstance(values, list) else [values]
            if f"{{{key}}}" in name:
                meant = [text.replace(f"{{{key}}}", str(v)) for text in meant for v in each]
        if not name or any(_exists(Path(each)) for each in meant):
            return name
        there = all(_exists(self.folder / each) for each in meant)
        return self._said(name, self.folder / name, where) if there else name

    def _dataset(self, dataset: Any, where: str) -> Any:
        if isinstance(dataset, list):
            return [self._dataset(each, f"{where}[{n}]") for n, each in enumerate(dataset)]
        if isinstance(dataset, Mapping):
            found = dict(dataset)
            if isinstance(found.get("name"), str) and "corpus" not in found:
                found["name"] = self._collection(found["name"], f"{where}.name")
            for part in PARTS:
                found |= (
                    {part: self._texts(found[part], f"{where}.{part}")} if part in found else {}
                )
            return found
        return self._collection(dataset, where) if isinstance(dataset, str) else dataset

    def _collection(self, name: str, where: str) -> str:
        """Return a dataset's name, or the folder or file beside the config that it names."""
        name = self._written(name, where)
        beside = self.folder / name
        if not name or expanded(name).exists():
            return name
        there = is_beir_folder(beside) or beside.is_file()
        return self._said(name, beside, where) if there else name

    def _texts(self, path: Any, where: str) -> Any:
        if isinstance(path, Mapping):
            return {split: self._texts(each, f"{where}.{split}") for split, each in path.items()}
        if isinstance(path, list):
            return [self._texts(each, where) for each in path]
        if not isinstance(path, str) or not path or is_source(path):
            return path
        path = self._written(path, where)
        beside = self.folder / path
        return self._said(path, beside, where) if is_source(beside) else path

    def _made(self, path: str, where: str) -> str:
        """Return the path of what is written, whose ``~`` no reader replaces."""
        path = self._written(path, where)
        return str(expanded(path)) if self.variables and path.startswith("~") else path

    def _written(self, path: str, where: str) -> str:
        """Return a path with the values of its variables; one that exists as it is stays so."""

        def value(found: re.Match[str]) -> str:
            name = found[1] or found[2]
            if name not in os.environ:
                raise ConfigError(
                    f"{where}: ${name} is not set; export it, or write the path in full"
                )
            return os.environ[name]

        return VARIABLE.sub(value, path) if self.variables and not _exists(Path(path)) else path

    def _said(self, name: str, beside: Path, where: str) -> str:
        log.info(
            "%s: %s: %s is not in the current folder; using %s", self.file, where, name, beside
        )
        return str(beside)


def _exists(path: Path) -> bool:
    """Return whether there is such a path; what no path can be, its reader refuses."""
    try:
        return expanded(path).exists()
    except (ConfigError, OSError, ValueError):
        return False


def with_files(text: str, find: Callable[[str], str]) -> str:
    """Return an expression with what ``find`` returns for each file or folder that it reads.

    A text that cannot be parsed is returned unchanged: the parser names its fault.
    """
    text = text.strip()
    try:
        calls = list(text_options(text, where="pipeline"))
    except ConfigError:
        return text
    changes = []
    for call, options in calls:
        written = {o for name, o, other in WRITTEN if name == call and (other or o) in options}
        read = {*READ_BY_ALL, *(option for name, option in READ if name == call)} - written
        for option in read & options.keys():
            name = str(options[option].value)
            if (found := find(name)) != name:
                changes.append((place_in(text, options[option]), found))
    for place, found in sorted(changes, key=lambda change: change[0].start, reverse=True):
        text = f"{text[: place.start]}{found!r}{text[place.stop :]}"
    return text
