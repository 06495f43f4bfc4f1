"""Feedback for dense retrievers: the query's vector moves towards the first documents' vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import finite_number, whole_number
from sluice.indexing.checks import Dense
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.stages.feedback.stage import Feedback, Lists, places_in

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.state import RetrieverState


Places = NDArray[np.int64]  # [queries, most]: places of documents, -1 for none
Moved = NDArray[np.float64]


def averaged(queries: Dense, documents: Dense, top: Places, *, unit: bool = False) -> Moved:
    """Return the mean of each query and its feedback documents, float64 ``[n, dim]``.

    With k documents that is Rocchio's sum with ``alpha = 1 / (k + 1)``, ``beta = k / (k + 1)``.
    The rest is as in ``rocchio``. (Li et al., 2021, arXiv 2108.11044: vector PRF.)
    """
    found = np.count_nonzero(top >= 0, axis=1) + 1.0
    none = np.full((len(queries), 0), -1, np.int64)
    return _moved(queries, documents, top, none, 1 / found, 1 - 1 / found, 0.0, unit=unit)


def rocchio(
    queries: Dense,
    documents: Dense,
    top: Places,
    bottom: Places,
    *,
    alpha: float,
    beta: float,
    gamma: float,
    unit: bool = False,
) -> Moved:
    """Return ``alpha q + beta mean(top) - gamma mean(bottom)`` of each query, float64 ``[n, dim]``.

    ``top`` and ``bottom`` are places in ``documents`` ``[m, dim]``. The mean of no documents is 0;
    a query that no document moves stays what it was, ``alpha`` or not. ``unit`` is for cosines:
    queries and documents are scaled to unit length before, the sum after; a sum of length 0 leaves
    the query as it was. Costs ``n x most x dim`` additions and keeps one ``[n, dim]`` beside the
    result. (Rocchio, 1971; over dense vectors Li et al., 2021, arXiv 2108.11044.)
    """
    count = len(queries)
    weights = np.full(count, alpha), np.full(count, beta)
    return _moved(queries, documents, top, bottom, *weights, gamma, unit=unit)


def _moved(
    queries: Dense,
    documents: Dense,
    top: Places,
    bottom: Places,
    alpha: Moved,
    beta: Moved,
    gamma: float,
    *,
    unit: bool,
) -> Moved:
    before = queries.astype(np.float64)
    held = documents.astype(np.float64)
    own = before
    if unit:
        own, held = _unit(before), _unit(held)
    moved: Moved = alpha[:, None] * own
    moved += beta[:, None] * _means(held, top, own.shape[1])
    moved -= gamma * _means(held, bottom, own.shape[1])
    if unit:
        moved = _unit(moved)
    pulled = (beta != 0) & (top >= 0).any(axis=1)
    pushed = (bottom >= 0).any(axis=1) if gamma else np.zeros(len(own), np.bool_)
    kept = ~(pulled | pushed)
    if unit:
        kept |= ~moved.any(axis=1)
    moved[kept] = before[kept]
    return moved


def _means(documents: Moved, places: Places, width: int) -> Moved:
    """Return the mean of each query's documents, added up in the order of their places."""
    sums = np.zeros((len(places), width))
    for column in places.T:
        there = np.flatnonzero(column >= 0)
        sums[there] += documents[column[there]]
    found = np.count_nonzero(places >= 0, axis=1)
    sums /= np.maximum(found, 1)[:, None]
    return sums


def _unit(vectors: Moved) -> Moved:
    """Return the vectors at length 1, zeros as they are."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    scaled: Moved = vectors / np.where(lengths > 0, lengths, 1.0)[:, None]
    return scaled


KINDS = ("average", "rocchio")
ROCCHIO = {"alpha": 0.4, "beta": 0.6, "gamma": 0.1}


class VectorFeedback(Feedback):
    """Searches a dense retriever with a mixture of the query's and its first documents' vectors.

    ``kind="average"``: the mean of the query and the first ``k`` documents of the list.
    ``kind="rocchio"``: ``alpha q + beta mean(first k) - gamma mean(last bottom)``, the last being
    those of the list's first ``depth`` that are not among the first ``k``; alpha, beta and gamma
    are 0.4, 0.6 and 0.1 unless given, gamma counting only with a ``bottom``. Documents that the
    retriever does not hold are left out of the means. ``k=0`` (without ``bottom``) and
    ``beta = gamma = 0`` are the retriever itself.

    Document vectors are those the index stores: decoded ones of quantised indexes. Where the
    encoder or the index compares by cosine, queries and documents count at unit length and the new
    query is scaled to unit length, so scores are cosines again; otherwise nothing is normalised.
    (Li et al., 2021, arXiv 2108.11044; defaults are its usual ones, k 3 to 5.)
    """

    def __init__(
        self,
        retriever: Stage,
        /,
        *,
        k: Annotated[int, "Documents at the head of the list that are taken as relevant."] = 3,
        kind: Annotated[
            Literal["average", "rocchio"],
            "average of the query and the first documents, or rocchio.",
        ] = "average",
        alpha: Annotated[float | None, "The query's weight in rocchio."] = None,
        beta: Annotated[float | None, "The first documents' weight in rocchio."] = None,
        gamma: Annotated[float | None, "The last documents' weight in rocchio."] = None,
        bottom: Annotated[int, "Documents at the end of the list that count against."] = 0,
        depth: Annotated[int, "Hits that the last documents are taken from."] = 100,
    ) -> None:
        if kind not in KINDS:
            raise ConfigError(
                f"prf: kind {kind!r}; known: {', '.join(KINDS)}{suggest(str(kind), KINDS)}"
            )
        given = {"alpha": alpha, "beta": beta, "gamma": gamma}
        asked = [f"{name}={value:g}" for name, value in given.items() if value is not None]
        asked += [f"bottom={bottom}"] if bottom else []
        if kind == "average" and asked:
            raise ConfigError(
                f"prf: {asked[0]} is for kind='rocchio', and kind is 'average'; set kind='rocchio' "
                "or leave it out"
            )
        weights = {name: ROCCHIO[name] if value is None else value for name, value in given.items()}
        self.alpha, self.beta, self.gamma = (
            finite_number(value, f"prf: {name}", 0) for name, value in weights.items()
        )
        self.k = whole_number(k, "prf: k", 0)
        self.kind = kind
        self.bottom = whole_number(bottom, "prf: bottom", 0)
        whole_number(depth, "prf: depth", 1)
        if self.bottom and depth < self.k + self.bottom:
            raise ConfigError(
                f"prf: depth={depth} has no room for the first {k} and the last {bottom}; "
                f"expected {k + bottom} or more"
            )
        shown = ", ".join([f"k={k}", *([] if kind == "average" else [kind, *asked])])
        depth = depth if self.bottom else self.k
        super().__init__(retriever, depth=depth, function="prf", options=shown)

    def _check(self, state: RetrieverState, vectors: Any) -> None:
        super()._check(state, vectors)
        if hooks_of(state.encoder).one_way:
            raise ConfigError(
                f"{self.name}: the vectors of {state.path}'s queries and documents are of two "
                "kinds, which have no mean; take the feedback of another retriever"
            )
        if not isinstance(vectors, np.ndarray):
            raise ConfigError(
                f"{self.name}: {state.path} has sparse vectors; use rm3({state.name}) for feedback "
                "by terms"
            )

    def _moved(self, state: RetrieverState, vectors: Any, lists: Lists) -> Any:

        top = lists.rows[:, : self.k]
        last = lists.lengths[:, None] - self.bottom + np.arange(self.bottom)
        bottom = np.take_along_axis(lists.rows, np.maximum(last, 0), axis=1)
        bottom = np.where(last >= self.k, bottom, -1)
        rows, places = places_in(np.concatenate([top, bottom], axis=1))
        if not len(rows):
            return vectors
        documents = state.index.documents(rows)
        top, bottom = places[:, : self.k], places[:, self.k :]
        unit = by_cosine(state)
        if self.kind == "average":
            moved = averaged(vectors, documents, top, unit=unit)
        else:
            weights = {"alpha": self.alpha, "beta": self.beta, "gamma": self.gamma}
            moved = rocchio(vectors, documents, top, bottom, **weights, unit=unit)
        return moved.astype(np.float32)

    def _joined(self, parts: Sequence[Any]) -> Any:
        return np.concatenate(parts)


def by_cosine(state: RetrieverState) -> bool:
    """Say whether a retriever's vectors are compared by cosine."""
    return "cosine" in (hooks_of(state.encoder).similarity, state.index.metric)


prf = VectorFeedback  # ``prf(dense, k=3)`` in a pipeline
