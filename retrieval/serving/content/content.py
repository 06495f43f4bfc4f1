"""One state of what is served, how it is opened, and how it is warmed."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.encoders.encoder import encodes, hooks_of
from sluice.encoders.foundation.disk.generations import MODEL_FILES
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.lexical.bm25 import BM25Encoder
from sluice.encoders.model_files.registry import open_encoder
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.documents.text import CHARACTERS
from sluice.retrieval.experiments.experiment import Experiment, load_pipeline, open_experiment
from sluice.retrieval.experiments.output.changes import retrievers_of
from sluice.retrieval.experiments.output.folder import RETRIEVERS, SETTINGS, open_built
from sluice.retrieval.pipelines.rerank import Rerank
from sluice.retrieval.pipelines.saving import PIPELINE
from sluice.retrieval.pipelines.scorer import ScorerHooks
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.folder import HEAD, Head
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.retrievers.shards.workers.crew import ShardWorkers
from sluice.retrieval.serving.faults import Fault

PAIR_TOKENS = 256  # that a reranker is taken to read of a query and a document
SIGMOID = (1.0, 0.0)  # the scale and the bias of a score that none were fitted to


@dataclass(frozen=True, slots=True)
class Content:
    """Stages by name, the models that can be asked themselves, and the documents.

    ``number`` counts the states. ``heads`` are those of all retrievers, by name; ``source`` is what
    was opened, which the next state takes loaded models from.
    """

    number: int
    stages: Mapping[str, Stage]
    encoders: Mapping[str, Any]
    scorers: Mapping[str, Any]
    heads: Mapping[str, Head]
    texts: Mapping[str, str] = field(default_factory=dict)  # of pipelines, as they were written
    fingerprints: Mapping[str, str] = field(default_factory=dict)  # of encoders
    source: Any = None

    @property
    def default(self) -> str | None:
        """The pipeline of a request that names none: the last."""
        return list(self.stages)[-1] if self.stages else None

    def stage(self, name: str | None) -> tuple[str, Stage]:
        """Return a stage and its name; a ``Fault`` for an unknown one."""
        name = self.default if name is None else name
        if name is None:
            raise Fault(
                404, "not_found", "nothing here searches: a model is served, without documents"
            )
        if name not in self.stages:
            raise unknown("pipeline", name, self.stages)
        return name, self.stages[name]

    def encoder(self, name: str | None, *, sparse: bool) -> tuple[str, Any]:
        """Return an encoder of dense or sparse vectors, the first unless it is named."""
        fitting = {n: e for n, e in self.encoders.items() if is_sparse(e) == sparse}
        kind = "sparse" if sparse else "dense"
        if not fitting:
            raise Fault(404, "not_found", f"nothing here makes {kind} vectors", param="model")
        name = next(iter(fitting)) if name is None else name
        if name in self.encoders and name not in fitting:
            other = "/embed" if sparse else "/embed_sparse"
            raise Fault(
                400, "invalid_request",
                f"model: {name} makes no {kind} vectors; ask {other} for its vectors",
                param="model",
            )  # fmt: skip
        if name not in fitting:
            raise unknown("model", name, fitting)
        return name, fitting[name]

    def scorer(self, name: str | None) -> tuple[str, Any]:
        """Return a scorer of pairs, the first unless it is named."""
        if not self.scorers:
            raise Fault(404, "not_found", "no reranker is served here", param="model")
        name = next(iter(self.scorers)) if name is None else name
        if name not in self.scorers:
            raise unknown("model", name, self.scorers)
        return name, self.scorers[name]

    def probability(self, scorer: str) -> tuple[float, float]:
        """Return scale and bias of the probability that a pipeline, the last, gives its scores."""
        reranks = [
            each
            for stage in self.stages.values()
            for each in stages_in(stage)
            if isinstance(each, Rerank) and each.scorer is self.scorers[scorer]
        ]
        return next((each.probability for each in reversed(reranks) if each.probability), SIGMOID)

    @property
    def store(self) -> DocumentStore | None:
        """The documents: those of the default pipeline."""
        stores = [self.stages[self.default].documents] if self.default else []
        return next((store for store in stores if isinstance(store, DocumentStore)), None)


def unknown(what: str, name: str, known: Mapping[str, Any]) -> Fault:
    """Return the fault of a name that is not served."""
    names = ", ".join(known)
    return Fault(
        404, "not_found",
        f"{what}: no {name[:80]!r} is served; known: {names}{suggest(name, known)}", param=what,
    )  # fmt: skip


def is_sparse(encoder: Any) -> bool:
    """Return whether an encoder names terms, or a whole vocabulary is its width."""
    return hooks_of(encoder).terms is not None


def is_neural(encoder: Any) -> bool:
    """Return whether encoding takes a model, rather than counting words."""
    return hooks_of(encoder).learner is None


def stages_in(stage: Stage) -> Iterator[Stage]:
    """Yield a stage and all stages that it is made of, those of scorers included."""
    yield stage
    base = stage.base_retriever
    if not stage.inner and base is not None and base is not stage:
        yield base
    for part in stage.inner:
        yield from stages_in(part)


def needs_model(stage: Stage) -> bool:
    """Return whether a search asks a model, and so belongs to the thread of the models."""
    return any(
        isinstance(each, Rerank)
        or (isinstance(each, Retriever) and is_neural(each.encoder))
        or bool(each.ranking_models)
        for each in stages_in(stage)
    )


def reranks(stage: Stage) -> bool:
    """Return whether a time limit has an effect on the stage."""
    return any(isinstance(each, Rerank) for each in stages_in(stage))


def query_cost(stage: Stage, query: str) -> int:
    """Return about how many tokens the models read for a query."""
    own, total = tokens_of(query), 0
    for each in stages_in(stage):
        if isinstance(each, Retriever):
            total += own
        elif isinstance(each, Rerank):
            total += each.depth * PAIR_TOKENS
    return max(1, total)


def tokens_of(text: str, most: int | None = None) -> int:
    """Return about how many tokens a text has, at most as many as are read."""
    tokens = 2 + len(text) // CHARACTERS
    return tokens if most is None else min(tokens, most)


def encodable(model: Any) -> bool:
    """Return whether a model turns texts into vectors: SEAL writes n-grams for queries."""
    return encodes(model) and hooks_of(model).decode_queries is None


TEXTS = ("gold in the river", "a river of stone", "stone and gold")


def change_documents(content: Content) -> None:
    """Add, replace and delete documents of an index of its own, if one here is inverted."""
    if not any(is_sparse(encoder) for encoder in content.encoders.values()):
        return
    first, second, third = (Document(str(number), "", text) for number, text in enumerate(TEXTS))
    with tempfile.TemporaryDirectory(prefix="sluice-warm-") as place:
        retriever = Retriever.build(BM25Encoder(), [first], path=Path(place) / "bm25")
        retriever.add([second, third])
        retriever.update([Document(first.id, "", TEXTS[1])])
        retriever.delete([second.id])


WARM = "a query to warm up with"


@dataclass(frozen=True, slots=True)
class Kind:
    """What a folder is: its ``name``, and whether documents can be written to it."""

    name: str
    writable: bool


RETRIEVER, EXPERIMENT = Kind("retriever", True), Kind("experiment", True)
SAVED, MODEL = Kind("pipeline", False), Kind("model", False)


def kind_of(folder: Path) -> Kind:
    """Return what a folder is; ``ConfigError`` for one that cannot be served."""
    if (folder / HEAD).exists():
        return RETRIEVER
    if (folder / PIPELINE).exists():
        return SAVED
    if (folder / SETTINGS).exists():
        return EXPERIMENT
    if any((folder / name).exists() for name in MODEL_FILES):
        return MODEL
    parts = sorted(file.parent.name for file in folder.glob(f"datasets/*/{SETTINGS}"))
    if parts:
        raise ConfigError(
            f"{folder}: is an evaluation of several datasets; serve one of them: "
            f"{folder}/datasets/NAME ({', '.join(parts)})"
        )
    raise ConfigError(
        f"{folder}: nothing to serve; expected an experiment's output, a retriever's, a pipeline's "
        "or a model's folder, or documents to index"
    )


def heads_in(folder: Path) -> list[Path]:
    """Return the files whose change is a change of the documents."""
    if (folder / HEAD).exists():
        return [folder / HEAD]
    return sorted(folder.glob(f"{RETRIEVERS}/*/{HEAD}"))


def open_content(
    folder: Path,
    number: int = 1,
    *,
    pipelines: Sequence[str] = (),
    allow: Collection[str] = (),
    before: Content | None = None,
    shard_workers: ShardWorkers | None = None,
) -> Content:
    """Open a folder's current state, and load and try all that a request may need.

    ``pipelines`` names those that are served, by default all, with the retrievers. Models that
    ``before`` has loaded are shared. ``shard_workers`` search what is in shards.
    """
    kind = kind_of(folder)
    if kind is MODEL:
        if shard_workers is not None:
            raise ConfigError(f"--shard-workers: {folder} is a model and has no shards")
        return _of_model(folder, number, pipelines, allow)
    if kind is EXPERIMENT:
        return _of_experiment(folder, number, pipelines, allow, before, shard_workers)
    stage: Stage
    if kind is RETRIEVER:
        models = {} if before is None else models_of(before)
        stage = open_built(folder, allow, models)
        name = stage.name or folder.name
    else:
        stage, name = load_pipeline(folder, allow=allow), folder.absolute().name
    _known(pipelines, [name])
    _share_out({name: stage}, shard_workers)
    return _content(number, {name: stage}, {}, {}, stage, tried=before is None)


def models_of(content: Content) -> dict[str, Any]:
    """Return the encoders that no document changes, by fingerprint."""
    return {
        retriever.head.encoder_fingerprint: retriever.encoder
        for stage in content.stages.values()
        for retriever in retrievers_of(stage)
        if retriever.head.encoder_generation is None
    }


def _of_model(
    folder: Path, number: int, pipelines: Sequence[str], allow: Collection[str]
) -> Content:
    if pipelines:
        raise ConfigError(f"--pipeline {pipelines[0]}: {folder} is a model and has no pipelines")
    model = open_encoder(folder, allow=allow)
    name = folder.absolute().name
    if encodable(model):
        fingerprints = {name: str(model.fingerprint)}
        return Content(number, {}, {name: model}, {}, {}, fingerprints=fingerprints)
    return Content(number, {}, {}, {name: model}, {})


def _of_experiment(
    folder: Path,
    number: int,
    pipelines: Sequence[str],
    allow: Collection[str],
    before: Content | None,
    shard_workers: ShardWorkers | None,
) -> Content:
    experiment = open_experiment(folder, allow=allow)
    if before is not None and isinstance(before.source, Experiment):
        experiment.share_models(before.source)
    config = experiment.config
    names = [*(name for name in config.retrievers if name not in config.pipelines)]
    names += list(config.pipelines)
    _known(pipelines, names)
    served = [name for name in names if not pipelines or name in pipelines]
    stages = {name: experiment.stage(name) for name in served}
    _share_out(stages, shard_workers)
    scorers = {}
    if not pipelines:
        opened = {name: experiment.scorer(name) for name in config.rerankers}
        scorers = {name: each for name, each in opened.items() if ScorerHooks(each).scores_pairs}
    texts = {name: text for name, text in config.pipelines.items() if name in stages}
    return _content(number, stages, scorers, texts, experiment, tried=before is None)


def _share_out(stages: Mapping[str, Stage], workers: ShardWorkers | None) -> None:
    """Let workers search every retriever that is in shards; ``ConfigError`` where none is."""
    if workers is None:
        return
    parted = [
        each
        for stage in stages.values()
        for each in retrievers_of(stage)
        if each.head.shards is not None
    ]
    if not parted:
        raise ConfigError(
            f"--shard-workers: nothing here is in shards ({', '.join(stages)}); part a retriever "
            "first: sluice reshard FOLDER 4"
        )
    for each in parted:
        if each.state.workers is not workers:
            each.use_workers(workers)


def _known(pipelines: Iterable[str], names: Sequence[str]) -> None:
    for name in pipelines:
        if name not in names:
            known = f"known: {', '.join(names)}{suggest(name, names)}"
            raise ConfigError(f"--pipeline {name}: no such pipeline or retriever; {known}")


def _content(
    number: int,
    stages: Mapping[str, Stage],
    scorers: Mapping[str, Any],
    texts: Mapping[str, str],
    source: Any,
    *,
    tried: bool,
) -> Content:
    retrievers = {each.name: each for stage in stages.values() for each in retrievers_of(stage)}
    heads = {}
    for name, retriever in retrievers.items():
        _ = retriever.documents  # opens what a later change deletes
        _try(retriever)
        heads[name] = retriever.head
    if tried:
        for stage in stages.values():
            _try(stage)
    encoders = {name: each.encoder for name, each in retrievers.items() if encodable(each.encoder)}
    own = dict(scorers) or {
        stage.name: stage.scorer
        for pipeline in stages.values()
        for stage in stages_in(pipeline)
        if isinstance(stage, Rerank) and ScorerHooks(stage.scorer).scores_pairs
    }
    fingerprints = {name: head.encoder_fingerprint for name, head in heads.items()}
    return Content(number, dict(stages), encoders, own, heads, texts, fingerprints, source)


def _try(stage: Stage) -> None:
    """Search once: what is loaded or compiled at first use is then there."""
    stage.run({"warm": WARM}, None, 10)
