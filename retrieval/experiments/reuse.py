"""What in an experiment is made from what, and the keys that decide whether it is rebuilt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError, suggest
from sluice.encoders.model_files.registry import ASKING
from sluice.encoders.table import KNOWN
from sluice.encoders.transformer.from_scratch import is_fresh
from sluice.encoders.vectors.forms import EXACT
from sluice.indexing.table import KNOWN as INDEXES
from sluice.retrieval.config.components import towers_in
from sluice.retrieval.config.file_keys import (
    Keys,
    corpus_contents,
    normalised_dataset,
    path_contents,
    training_contents,
)
from sluice.retrieval.config.names import Place, Role, places
from sluice.retrieval.config.sections import (
    ExperimentConfig,
    RetrieverSection,
    Section,
    TrainingSection,
)
from sluice.retrieval.config.trust import without_keys
from sluice.retrieval.pipelines.expression import names_in
from sluice.retrieval.pipelines.table import LANGUAGE_MODELS, REMOTE, STORED
from sluice.retrieval.retrievers.candidate_lists import check_lists
from sluice.retrieval.retrievers.folder import read_head
from sluice.retrieval.training_data.example_sources import example_source
from sluice.retrieval.training_data.refreshing_miner import decisive
from sluice.retrieval.training_data.teachers.spec import teacher_spec

# The order of what a section names, by how their places begin.
ORDER = (
    "prune", "examples", "loss", "answered", "encoder", "negatives.retriever",
    "examples.retriever", "teacher", "negatives.judge",
)  # fmt: skip
LAST: Mapping[Role | None, int] = {Role.LISTS: 1, Role.JUDGE: 2}
# The sections of a config whose parts a text may name, the first first.
PARTS: Mapping[Role | None, tuple[str, ...]] = {
    Role.MODEL: ("train",), Role.LISTS: ("pipelines", "retrievers"),
    Role.JUDGE: ("rerankers", "train"), None: ("train",),  # what a server runs, where it has a name
}  # fmt: skip
# Types whose `model` is a folder or an id of the hub; that of `http`, say, is not.
WITH_MODELS = (
    *(name for name, each in KNOWN.items() if each.model), STORED,
    *(name for name in LANGUAGE_MODELS if name not in REMOTE),
)  # fmt: skip

# Training settings that were added later, by their section ("" is the training's own).
LATER: dict[str, dict[str, Any]] = {
    "": {
        "answered": None, "by_dataset": None, "datasets": None, "sampling_temperature": None,
        "scoring": None, "xtr_top_k": None,
    },
    "evaluate": {"shares": [], "margin": 1.0, "by": None},
}  # fmt: skip

# Keys of `trainer` that decide what is reported, and nothing that is learnt.
REPORTING = ("logging_", "log_", "report_to", "disable_tqdm", "run_name", "project")


def section_names(section: Any, where: str = "", *, examples: bool = True) -> list[Place]:
    """Return what a retriever, a training run or a reranker's component names, with its places.

    An encoder without a model has a place too. The order is that in which keys hash them; datasets
    are left out, and so are ``examples`` unless their source is to be asked, which imports it.
    """
    values = section.model_dump() if isinstance(section, Section) else section
    named = [
        each
        for each in chain.from_iterable(map(_decisive, places(values)))
        if not re.match(r"datasets?\b|examples\.(?!retriever\b)", each.where)
    ]
    if examples and isinstance(section, TrainingSection):
        source = example_source(section.examples)
        named += [Place("examples.file", "file", str(path), {}) for path in source.paths]
        named += [Place("examples.model", "model", name, {}) for name in source.models]
    return [each._replace(where=f"{where}{each.where}") for each in sorted(named, key=_order)]


def models_in(section: Any, where: str = "") -> Iterator[Place]:
    """Yield the models that a section opens from folders or a hub; some may be trained here."""
    for each in section_names(section, where):
        if each.role not in (Role.MODEL, Role.JUDGE):
            continue
        if each.key == "model" and "type" in each.spec:
            opened = each.spec["type"] in WITH_MODELS and not is_fresh(each.spec.get("start"))
        else:  # a name alone, which may be that of a run's file, or stand for no model
            sources = teacher_spec(each.value).sources
            opened = any(not expanded(name).is_file() and name[0] != "{" for name in sources)
        if opened:
            yield each


def check_named(section: Any, where: str = "", lists: Sequence[str] = ()) -> None:
    """Raise ``ConfigError`` for the first file or list that a section names and is not there.

    ``lists`` are the names of those in its config. What classes of one's own read is theirs to say.
    """
    for each in section_names(section, where):
        own = ":" in str(each.spec.get("type"))
        path = expanded(each.value) if each.role is Role.FILE and not own else None
        if each.role is Role.LISTS:
            check_lists(each.value, each.where, lists)
        if path is not None and not path.exists():
            near = suggest(path.name, [other.name for other in path.parent.glob("*")])
            raise ConfigError(f"{each.where}: no file or folder {each.value}{near}")


def _decisive(each: Place) -> Iterator[Place]:
    """Yield a place that names what decides a section; of an encoder always that of its model.

    The model behind a server may be a folder of this machine, or one trained here.
    """
    if each.role in (Role.MODEL, Role.FILE, Role.LISTS, Role.JUDGE):
        yield each
    encodes = each.key in ("", "encoder", "ids_by", *towers_in(each.spec))
    if encodes and isinstance(each.value, Mapping) and "type" in each.value:
        model = Place(
            f"{each.where}.model".lstrip("."), "model", each.value.get("model"), each.value
        )
        if model.role is None:
            yield model if isinstance(model.value, str) else model._replace(value=None)


def _order(each: Place) -> tuple[int, int]:
    places_of = [place for place, start in enumerate(ORDER) if each.where.startswith(start)]
    return LAST.get(each.role, 0), max(places_of, default=len(ORDER))


class Dependencies:
    """The parts of a config by node (``train.ft``, ``retrievers.bm25``, ...) and their needs.

    In an expression a name is a retriever, a reranker or another pipeline, in this order. As
    ``negatives.retriever`` a name is a pipeline or a retriever. ``models_of`` are those of the
    experiment that trains the models, where it is another one, over another dataset.
    """

    def __init__(self, config: ExperimentConfig, models_of: Dependencies | None = None) -> None:
        self.config = config
        self._models_of = models_of
        self._recipes: dict[str, str] = {}
        self._keys: dict[str, Keys] = {}

    def check(self) -> None:
        """Raise ``ConfigError`` if anything needs itself."""
        done: set[str] = set()
        sections = ("train", "retrievers", "rerankers", "pipelines")
        for node in [f"{s}.{name}" for s in sections for name in getattr(self.config, s)]:
            self._walk(node, [], done)

    def _walk(self, node: str, path: list[str], done: set[str]) -> None:
        if node in path:
            raise ConfigError(
                f"{node}: needs itself: {' -> '.join([*path[path.index(node) :], node])}"
            )
        if node not in done:
            for needed in self.needs(node):
                self._walk(needed, [*path, node], done)
            done.add(node)

    def keys(self, node: str) -> Keys:
        """Return the keys of a node; the files it names must exist."""
        if self._models_of is not None and node.startswith("train."):
            return self._models_of.keys(node)
        if node not in self._keys:
            self._keys[node] = self.keys_of(self._section(node), self.needs(node))
        return self._keys[node]

    def recipe(self, node: str) -> str:
        """Return the hash of the settings that decide a node; no file is read."""
        if node not in self._recipes:
            self._recipes[node] = self.recipe_of(self._section(node), self.needs(node))
        return self._recipes[node]

    def keys_of(self, section: Any, needs: Iterable[str] | None = None) -> Keys:
        """Return the keys of a section: the config's own, an inline retriever, or training's."""
        needed = list(self._needs_of(section) if needs is None else needs)
        recipe = self.recipe_of(section, needed)
        below = [self.keys(node).key for node in needed]
        return Keys(recipe, fingerprint_of(recipe, below, self._files(section)))

    def needs(self, node: str) -> Iterator[str]:
        """Yield the nodes that ``node`` is made from."""
        kind, _, name = node.partition(".")
        section = self._section(node)
        if kind == "pipelines":
            for used in names_in(section, where=node):
                yield self.in_expression(used, within=name)
        else:
            yield from self._needs_of(section)

    def closure(self, node: str) -> Iterator[str]:
        """Yield ``node`` and everything it is made from."""
        for needed in self.needs(node):
            yield from self.closure(needed)
        yield node

    def searched(self, systems: Iterable[str]) -> list[str]:
        """Return the retrievers that pipelines or retrievers search, without those mined from."""
        found: dict[str, None] = {}
        for system in systems:
            if system not in self.config.pipelines:
                found[system] = None
                continue
            for node in self.needs(f"pipelines.{system}"):
                kind, _, name = node.partition(".")
                if kind == "pipelines":
                    found.update(dict.fromkeys(self.searched([name])))
                elif kind == "retrievers":
                    found[name] = None
                elif kind == "rerankers":
                    read = (each.partition(".") for each in self.needs(node))
                    found.update({each: None for of, _, each in read if of == "retrievers"})
        return list(found)

    def in_expression(self, name: str, *, within: str = "") -> str:
        """Return the node that a name in a pipeline means."""
        for section in ("retrievers", "rerankers", "pipelines"):
            if name in getattr(self.config, section) and (section, name) != ("pipelines", within):
                return f"{section}.{name}"
        return f"pipelines.{name}"

    def _needs_of(self, section: Any) -> Iterator[str]:
        named = section_names(section, examples=False)
        for each in sorted(named, key=lambda each: each.where.startswith("prune")):
            if node := self._node(each):
                yield node

    def _node(self, each: Place) -> str:
        """Return the part of this config that a place names; empty where it names another thing."""
        kinds = PARTS.get(each.role, ())
        if each.value == read_by(each.spec):
            kinds = ("retrievers",)
        found = (kind for kind in kinds if each.value in getattr(self.config, kind))
        return next((f"{kind}.{each.value}" for kind in found), "")

    def recipe_of(self, section: Any, needs: Iterable[str] | None = None) -> str:
        """Return the hash of the settings of a section; no file is read."""
        needs = self._needs_of(section) if needs is None else needs
        plain = section
        if isinstance(section, TrainingSection):  # without output and the like of a TrainConfig
            plain = section.model_dump(include=set(TrainingSection.model_fields))
            trainer = plain["trainer"]
            plain["trainer"] = {k: v for k, v in trainer.items() if not k.startswith(REPORTING)}
            if plain["negatives"] and "refresh" in plain["negatives"]:
                plain["negatives"]["refresh"] = decisive(plain["negatives"]["refresh"])
            _drop_later(plain)
        elif isinstance(section, RetrieverSection):
            plain = section.model_dump(exclude={"encoding"})
            for key in ("passages", "prune", "search", "shards", "shard_size"):
                if not getattr(section, key):
                    del plain[key]
            plain["encoder"] = _without_asking(plain["encoder"])
            if section.prune is not None:
                plain["prune"] = section.prune.model_dump(exclude_none=True)
            if "passages" in plain and not plain["passages"]["headings"]:
                del plain["passages"]["headings"]  # as before there was such a setting
            if section.encoding is not None and section.encoding.store != EXACT:
                plain["store"] = section.encoding.store  # all of encoding that changes the vectors
        elif isinstance(section, Mapping):
            plain = _without_asking(section)
        below = [self.recipe(node) for node in needs]
        return fingerprint_of(
            plain, normalised_dataset(self.config.dataset), self.config.seed, below
        )

    def _files(self, section: Any) -> list[str | None]:
        """Return hashes of the files a section names: of the dataset, of models, of lists."""
        files: list[str | None] = []
        if isinstance(section, RetrieverSection):
            files.append(corpus_contents(self.config.dataset))
            index = INDEXES.get(str((section.index or {}).get("type")))
            if index is not None and index.by_queries:
                files.append(training_contents(self.config.dataset))
        elif isinstance(section, TrainingSection):
            dataset = self.config.dataset  # {}: of a training run without one
            trained = section.datasets or ([dataset] if dataset else [])
            files += [training_contents(each) for each in trained]
        named = [(each, self._node(each)) for each in section_names(section)]
        for each, node in named:
            if each.role not in LAST:
                files.append(None if node else path_contents(each.value))
        if isinstance(section, Mapping) or all(each.role is not Role.LISTS for each, _ in named):
            files.append(None)
        last = [each for each, node in named if each.role in LAST and not node]
        return [*files, *(path_contents(each.value) for each in last)]

    def _section(self, node: str) -> Any:
        kind, _, name = node.partition(".")
        return getattr(self.config, kind)[name]


def _without_asking(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a component; one behind HTTP without its key, and without how its server is called."""
    if spec.get("type") not in REMOTE:
        return spec
    return {name: value for name, value in without_keys(spec).items() if name not in ASKING}


def read_by(reranker: Mapping[str, Any]) -> str | None:
    """Return the retriever whose stored token vectors a reranker's component reads, or None."""
    return reranker.get("retriever") if reranker.get("type") == STORED else None


def _drop_later(plain: dict[str, Any]) -> None:
    """Leave out training settings that came later, where they are the default.

    So a model that was trained before there were such settings is not trained again.
    """
    for place, defaults in LATER.items():
        section = plain if place == "" else plain.get(place) or {}
        for key, default in defaults.items():
            if key in section and section[key] == default:
                del section[key]


def saved_config(path: Path) -> dict[str, Any]:
    """Return the config saved in a retriever's folder, keys included."""
    config = read_head(path).origin.get("config")
    return config if isinstance(config, dict) else {}


def is_built_of(path: Path, keys: Keys) -> bool:
    """Return whether a retriever was built from what ``keys`` hash, whatever was changed since.

    Earlier versions took the key away with a change; the recipe stayed.
    """
    saved = saved_config(path)
    key = saved.get("key", "")
    return bool(saved.get("recipe") == keys.recipe if key is None else key == keys.key)


def check_saved(path: Path, saved: Any, recipe: str, file: str | Path | None) -> None:
    """Raise ``IndexFormatError`` unless a part to be opened was made by this recipe.

    ``saved`` is what it notes of its making, None without a part; ``file`` the configuration.
    """
    if not isinstance(saved, Mapping) or saved.get("recipe") != recipe:
        state = "does not exist" if saved is None else "was made with other settings"
        raise IndexFormatError(
            f"{path}: {state}, and searching builds nothing; run `sluice run` with the "
            f"experiment's YAML file (or with {file}) to make it"
        )
