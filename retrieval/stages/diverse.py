"""Results without repetition: near-duplicates are dropped, the others ordered by what they add."""

from __future__ import annotations

import copy
from typing import Annotated

import numpy as np
from annotated_types import Ge, Interval
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import finite_number, whole_number
from sluice.retrieval.documents.likeness import cosines, text_likeness, varied
from sluice.retrieval.documents.where import Where
from sluice.retrieval.pipelines.rerank import merged
from sluice.retrieval.pipelines.saving import NameOf, options_text
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.pipelines.tracing import note
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.stages.rerankers.stored_vectors import (
    check_single_vectors,
    retriever_state,
)


class Diverse(Stage):
    """What ``diverse`` returns: orders the first ``depth`` documents of each list anew.

    A trace has what was dropped for which better document.
    """

    needs_candidates = True

    def __init__(
        self, weight: float, retriever: Stage | None, duplicates: float, depth: int
    ) -> None:
        self.weight = finite_number(weight, "diverse: weight", 0, 1)
        self.duplicates = finite_number(duplicates, "diverse: duplicates", 0)
        self.depth = whole_number(depth, "diverse: depth", 1)
        self.retriever = retriever
        by = "" if retriever is None else f", {retriever.name}"
        self.name = f"diverse({self.weight:g}{by})"
        self._documents: Texts | None = None

    @property
    def leaves(self) -> frozenset[str]:
        """Its own name: it finds no documents."""
        return frozenset(["diverse"])

    def attached(self, documents: Texts) -> Stage:
        """Return the stage with a store to read texts from."""
        copied = copy.copy(self)
        copied._documents = documents
        return copied

    def filtered(self, where: Where) -> Stage:
        """Return the stage itself: its candidates were filtered before."""
        return self

    def written(self, name_of: NameOf) -> str:
        """Return ``diverse(weight, duplicates=..)``."""
        by = [] if self.retriever is None else [self.retriever.written(name_of)]
        options = options_text({"duplicates": self.duplicates, "depth": self.depth})
        return f"diverse({', '.join([repr(self.weight), *by, options])})"

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Order the given run anew; queries it lacks get an empty ranking."""
        if given is None:
            raise ConfigError(
                f"{self.name}: needs candidates; put a retriever before it: retriever >> "
                f"{self.name}"
            )
        rankings, dropped = dict[str, Ranking](), dict[str, dict[str, tuple[str, float]]]()
        for query in queries:
            ranking = given.get(query, Ranking([], []))
            ids = list(ranking.doc_ids[: self.depth])
            found = varied(
                ranking.scores[: len(ids)], self._alike(ids), self.weight, self.duplicates
            )
            left = [*found.places, *range(len(ids), len(ranking))]
            ordered = Ranking([ranking.doc_ids[place] for place in left], ranking.scores[left])
            rankings[query] = merged(ordered, np.array(found.worths, np.float32))
            dropped[query] = {
                ids[place]: (ids[of], round(likeness, 3)) for place, of, likeness in found.dropped
            }
        note({"dropped": dropped})
        return Run(rankings, name=self.name)

    def _alike(self, ids: list[str]) -> NDArray[np.float64]:
        """Return how alike documents are, ``[n, n]``; those without a vector are like no other."""
        if not ids:
            return np.zeros((0, 0))
        if self.retriever is None:
            if self._documents is None:
                raise ConfigError(
                    f"{self.name}: compares texts, and the stage before it has no documents; give "
                    "a retriever, whose vectors are compared: diverse(0.7, dense)"
                )
            return text_likeness(self._documents.texts(ids))
        state = retriever_state(self.retriever, "diverse")
        check_single_vectors(state, "diverse")
        rows = state.store.rows(ids)
        known = np.flatnonzero(rows >= 0)
        alike = np.eye(len(ids))
        alike[np.ix_(known, known)] = cosines(state.index.documents(rows[known]))
        return alike


def diverse(
    weight: Annotated[float, Interval(ge=0, le=1)] = 0.7,
    retriever: Stage | None = None,
    /,
    *,
    duplicates: Annotated[
        float, Ge(0), "Documents at least so like a better one are dropped; above 1 none is."
    ] = 0.8,
    depth: Annotated[int, Ge(1), "The first documents that are ordered anew."] = 100,
) -> Diverse:
    """Return a stage that drops near-duplicates and orders the others by what they add.

    Written ``bm25 >> diverse(0.7)``. ``weight`` is the share of relevance, the rest novelty
    (maximal marginal relevance, see ``sluice.retrieval.documents.likeness.varied``). How alike two
    documents are is the share of words that they have in common, by MinHash; with ``retriever``, as
    in ``diverse(0.7, dense)``, the cosine of the vectors that it has stored.
    """
    if retriever is not None and not isinstance(retriever, Stage):
        raise ConfigError("diverse: expected a retriever, whose vectors are compared")
    return Diverse(weight, retriever, duplicates, depth)
