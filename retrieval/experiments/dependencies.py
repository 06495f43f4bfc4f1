"""What in an experiment is made from what, and the keys that decide whether it is rebuilt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.model_files.registry import ASKING
from sluice.encoders.vectors.forms import EXACT
from sluice.indexing.table import KNOWN as INDEX_TYPES
from sluice.retrieval.config.components import towers_in
from sluice.retrieval.config.file_keys import (
    Keys,
    corpus_contents,
    normalised_dataset,
    path_contents,
    training_contents,
)
from sluice.retrieval.config.sections import (
    ExperimentConfig,
    PruneSection,
    RetrieverSection,
    TrainingSection,
)
from sluice.retrieval.config.trust import without_keys
from sluice.retrieval.pipelines.expression import names_in
from sluice.retrieval.pipelines.table import REMOTE, STORED
from sluice.retrieval.retrievers.candidate_lists import NOT_OPENED, listed
from sluice.retrieval.training_data.example_sources import example_source, searched_with
from sluice.retrieval.training_data.refreshing.miner import decisive
from sluice.retrieval.training_data.teachers.spec import teacher_spec

# Training settings that were added later, by their section ("" is the training's own).
LATER: dict[str, dict[str, Any]] = {
    "": {
        "answered": None, "datasets": None, "sampling_temperature": None, "scoring": None,
        "xtr_top_k": None,
    },
    "evaluate": {"shares": [], "margin": 1.0, "by": None},
}  # fmt: skip

# Indexes that are chosen by queries, or learn from them.
OF_QUERIES = tuple(name for name, each in INDEX_TYPES.items() if each.by_queries)

# Keys of `trainer` that decide what is reported, and nothing that is learnt.
REPORTING = ("logging_", "log_", "report_to", "disable_tqdm", "run_name", "project")


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
            self._recipes[node] = self._recipe_of(self._section(node), self.needs(node))
        return self._recipes[node]

    def built_keys(self, section: RetrieverSection) -> Keys:
        """Return the keys of a retriever's folder, which ``search`` does not change."""
        return self.keys_of(section.as_built)

    def built_recipe(self, section: RetrieverSection) -> str:
        """Return the recipe of a retriever's folder; no file is looked at."""
        return self._recipe_of(section.as_built, list(self._needs_of(section)))

    def keys_of(self, section: Any, needs: Iterable[str] | None = None) -> Keys:
        """Return the keys of a section: the config's own, an inline retriever, or training's."""
        needed = list(self._needs_of(section) if needs is None else needs)
        recipe = self._recipe_of(section, needed)
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
        for encoder in _encoders(section):
            if encoder.get("model") in self.config.train:
                yield f"train.{encoder['model']}"
        prune = section.prune if isinstance(section, RetrieverSection) else None
        if prune is not None and prune.model in self.config.train:
            yield f"train.{prune.model}"
        for lists in _lists(section):
            for kind in ("pipelines", "retrievers"):
                if lists in getattr(self.config, kind):
                    yield f"{kind}.{lists}"
                    break
        if isinstance(section, Mapping) and (read := read_by(section)) in self.config.retrievers:
            yield f"retrievers.{read}"
        for judge in _judges(section):
            if judge in self.config.rerankers:
                yield f"rerankers.{judge}"
            elif judge in self.config.train:
                yield f"train.{judge}"

    def _recipe_of(self, section: Any, needs: Iterable[str]) -> str:
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
            if (section.index or {}).get("type") in OF_QUERIES:
                files.append(training_contents(self.config.dataset))
            files += [] if section.prune is None else [self._quality(section.prune)]
        elif isinstance(section, TrainingSection):
            dataset = self.config.dataset  # {}: of a training run without one
            trained = section.datasets or ([dataset] if dataset else [])
            files += [training_contents(each) for each in trained]
            source = example_source(section.examples)
            files += [path_contents(str(each)) for each in (*source.paths, *source.models)]
            files += [path_contents(folder) for folder in _adapters(section.loss)]
            if section.answered is not None:
                files += [path_contents(file) for file in listed(section.answered)]
        for encoder in _encoders(section):
            model = encoder.get("model")
            files.append(None if model in self.config.train else path_contents(model))
            if encoder.get("vocabulary") is not None:
                files.append(path_contents(encoder["vocabulary"]))
        named = [*self.config.pipelines, *self.config.retrievers]
        lists = _lists(section)
        files += [path_contents(each) for each in lists if each not in named]
        files += [None] if not lists else []
        known = [*self.config.rerankers, *self.config.train]
        files += [path_contents(judge) for judge in _judges(section) if judge not in known]
        return files

    def _quality(self, prune: PruneSection) -> str | None:
        """Return a hash of what scores documents; None for a model trained here."""
        named = prune.scores if prune.model is None else prune.model
        return None if prune.model in self.config.train else path_contents(named)

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


def _lists(section: Any) -> list[str]:
    """Return the names or paths that negatives are mined from and examples searched with."""
    named = _named_lists(section)
    return [each for each in named if isinstance(each, str) and each not in NOT_OPENED]


def _judges(section: Any) -> list[str]:
    """Return the names or paths of the judges of negatives."""
    judges = _of_negatives(section, "judge")
    return [each for each in judges if isinstance(each, str)]


def _adapters(loss: Any) -> Iterator[str]:
    """Yield the folders of adapters that a loss, or one inside it, begins with."""
    parts = loss.values() if isinstance(loss, Mapping) else loss if isinstance(loss, list) else ()
    if isinstance(loss, Mapping) and loss.get("adapter"):
        yield str(loss["adapter"])
    for part in parts:
        yield from _adapters(part)


def _named_lists(section: Any) -> list[Any]:
    searching = searched_with(section.examples) if isinstance(section, TrainingSection) else None
    return [*_of_negatives(section, "retriever"), *([] if searching is None else [searching])]


def _of_negatives(section: Any, key: str) -> list[Any]:
    """Return what a key of a section ``negatives`` names, as a list."""
    negatives = section.negatives if isinstance(section, TrainingSection) else None
    named = (negatives or {}).get(key)
    return named if isinstance(named, list) else [] if named is None else [named]


def _encoders(section: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the encoder components of a section (none in a pipeline), and their towers."""
    for encoder in _components(section):
        yield encoder
        yield from towers_in(encoder).values()


def _components(section: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(section, (RetrieverSection, TrainingSection)):
        yield section.encoder
    elif isinstance(section, Mapping):
        yield section
    if isinstance(section, TrainingSection):
        if isinstance(section.encoder.get("ids_by"), Mapping):
            yield section.encoder["ids_by"]
        for lists in _named_lists(section):
            if isinstance(lists, Mapping) and isinstance(lists.get("encoder"), Mapping):
                yield lists["encoder"]  # a name alone, as bm25, has no model
        judges = [each for each in _of_negatives(section, "judge") if isinstance(each, Mapping)]
        for spec in [*([] if section.teacher is None else [section.teacher]), *judges]:
            yield from ({"model": name} for name in teacher_spec(spec).sources)


def _drop_later(plain: dict[str, Any]) -> None:
    """Leave out training settings that came later, where they are the default.

    So a model that was trained before there were such settings is not trained again.
    """
    for place, defaults in LATER.items():
        section = plain if place == "" else plain.get(place) or {}
        for key, default in defaults.items():
            if key in section and section[key] == default:
                del section[key]
