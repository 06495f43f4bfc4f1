"""A graph of documents for queries that are unlike documents, linked by training queries."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.numbers import whole_number
from sluice.indexing.checks import Dense, checked_dense
from sluice.indexing.graph.index import GraphIndex
from sluice.indexing.graph.neighbours import Best, Build, Score, SearchSettings, best_first_walk
from sluice.indexing.graph.projected import ProjectedLinks
from sluice.indexing.live_rows import Mask, Rows
from sluice.indexing.storage.rows import DenseRows, fact

log = logging.getLogger("sluice")

NEIGHBOURS, ENTRIES, CANDIDATES, DEPTH = 32, 16, 64, 32  # where they are not set
TAKES: Final = ("mode", "entries", "candidates", "budget")


class QueryGraphIndex(GraphIndex):
    """Documents linked by what training queries find together, for queries unlike documents.

    Where queries come from another distribution than documents (questions and code, texts and
    images), the documents that answer a query are not near each other, and a graph of nearest
    documents leads from one to the next by detours. ``learn`` takes training queries before the
    first search; without any a warning is logged, and the nearest alone are linked. Each is
    searched for exactly; documents among its ``depth`` best are linked, beside the nearest
    (``ProjectedLinks``): ``neighbours`` links of a document's own, and at most as many to it.

    A search begins with ``entries`` documents that training queries find first, and scores the
    links of the best document whose links were not scored yet, as long as that is among the
    ``candidates`` best (or k, if that is more); ``budget`` bounds the documents scored. Scores are
    inner products. Added documents are linked as in a new build, at the next search; the rest is
    as in ``GraphIndex``.
    """

    type_name = "query_graph"

    def __init__(
        self,
        *,
        neighbours: Annotated[
            int, "Links of a document's own; as many others lead to it at most."
        ] = NEIGHBOURS,
        depth: Annotated[
            int, "Hits of each training query that are linked with each other."
        ] = DEPTH,
        build: Annotated[
            Build, "How the nearest documents are found: exact, or faiss, faster for many."
        ] = "exact",
        entries: Annotated[
            int, "Documents that a walk begins with, those that training queries find."
        ] = ENTRIES,
        candidates: Annotated[
            int, "The best documents so far whose links a walk scores, one by one."
        ] = CANDIDATES,
        budget: Annotated[
            int | None, "Documents that a walk may score, at most; left out, all it reaches."
        ] = None,
        seed: int = 13,
    ) -> None:
        super().__init__(
            build=build, entries=entries, candidates=candidates, budget=budget, seed=seed
        )
        degree, depth = whole_number(neighbours, "neighbours", 1), whole_number(depth, "depth", 2)
        self._links = ProjectedLinks(degree, self._graph.build, depth)
        self._graph = self._links

    @property
    def neighbours(self) -> int:
        """How many links of its own a document has; as many others lead to it at most."""
        return self._links.degree

    @property
    def training_queries(self) -> int:
        """How many training queries link the documents."""
        return len(self._links.queries)

    @property
    def size_bytes(self) -> int:
        """Bytes of the vectors, the training queries, what they find, and both kinds of links."""
        links = self._links
        stored = links.queries.nbytes + 4 * len(links.queries) * links.depth
        return self._vectors.nbytes + stored + 2 * 4 * self.rows * links.count

    def empty(self) -> Self:
        """Return an index without documents that has the settings and the training queries."""
        links, settings = self._links, self.settings
        made = type(self)(
            neighbours=links.degree, depth=links.depth, build=links.build,
            entries=settings.entries or ENTRIES, candidates=settings.candidates or CANDIDATES,
            budget=settings.budget, seed=self.seed,
        )  # fmt: skip
        if len(links.queries):
            made.learn(links.queries)
        return made

    def learn(self, queries: Any) -> None:
        """Take training queries ``[n, dim]``, which link the documents; before any is linked.

        Raises ``DataError`` without a query, and for vectors of another width than the documents';
        ``ConfigError`` where documents are linked already.
        """
        vectors = checked_dense(queries, self.width, "training queries")
        if not len(vectors):
            raise DataError("training queries: none, and they link the documents; give some")
        if len(self._links):
            raise ConfigError(
                f"{type(self).__name__}: its documents are linked already; make a new index and "
                "learn before the first search"
            )
        self._links.queries = np.array(vectors)
        self._links.found = np.full((len(vectors), self._links.depth), -1, np.int32)

    def link(self) -> None:
        """Bring the links up to date; without training queries by the nearest alone, and warn."""
        if self.rows and not len(self._links) and not len(self._links.queries):
            log.warning(
                "query_graph: no training queries were given: %s documents are linked with their "
                "nearest alone; call learn(queries) before the first search",
                f"{self.rows:,}",
            )
        super().link()

    def _checked(self, vectors: Any, what: str) -> Dense:
        width = self.width
        if width is None and what != "queries" and len(self._links.queries):
            width = self._links.queries.shape[1]
        return checked_dense(vectors, width, what)

    def _search_parameters(self) -> tuple[str, ...]:
        return TAKES

    def _walk(
        self, score: Score, settings: SearchSettings, best: Best, allowed: Mask | None
    ) -> None:
        best_first_walk(score, self._links, self._entries(), settings, best, allowed)

    def _entries(self) -> Rows:
        """Return all rows: those that training queries find first, then the others at random."""
        if self._order is None:
            rng = np.random.default_rng(self.seed)
            pivots, others = rng.permutation(self._links.pivots()), rng.permutation(self.rows)
            self._order = np.concatenate([pivots, others[~np.isin(others, pivots)]])
        return self._order

    def _write(self, folder: Path) -> dict[str, Any]:
        if self.rows:
            self.link()
        self._links.write(folder, self._vectors)
        links, settings = self._links, self.settings
        return {
            "neighbours": links.degree, "depth": links.depth, "build": links.build,
            "entries": settings.entries, "candidates": settings.candidates,
            "budget": settings.budget, "seed": self.seed, "queries": len(links.queries),
            "query_width": int(links.queries.shape[1]), **self._vectors.write(folder),
        }  # fmt: skip

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        names = ("neighbours", "depth", "build", "entries", "candidates", "budget", "seed")
        try:
            index = cls(**{name: facts.get(name) for name in names})  # type: ignore[arg-type]
        except ConfigError as error:
            raise IndexFormatError(f"{folder}: {error}") from None
        queries, width = (fact(facts, name, int, folder) for name in ("queries", "query_width"))
        index._vectors = DenseRows.read(folder, facts)
        if queries and index.width not in (None, width):
            raise IndexFormatError(
                f"{folder}: training queries of {width} dimensions, and documents of "
                f"{index.width}; rebuild the index"
            )
        index._links.restore(folder, index._vectors, queries, width)
        return index
