"""Feedback for dense retrievers: moves the query's vector towards the first documents' vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import finite_number, whole_number
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.stages.feedback.stage import Feedback, Lists, places_in

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.state import RetrieverState

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
        k: int = 3,
        kind: Literal["average", "rocchio"] = "average",
        alpha: float | None = None,
        beta: float | None = None,
        gamma: float | None = None,
        bottom: int = 0,
        depth: int = 100,
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
        from sluice.retrieval.stages.feedback.rocchio import averaged, rocchio

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
