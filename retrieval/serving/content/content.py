"""One state of what is served: it never changes, and a request is answered from one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.encoders.encoder import encodes, hooks_of
from sluice.encoders.foundation.errors import suggest
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.pipelines.rerank import Rerank
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.folder import Head
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.serving.faults import Fault

PAIR_TOKENS = 256  # that a reranker is taken to read of a query and a document
CHARACTERS = 4  # of a token, about


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
    return not hooks_of(encoder).fits_documents


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
