"""A graph of documents linked by what training queries find together, and by what is near."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.numbers import whole_number
from sluice.indexing.checks import Dense, checked_dense
from sluice.indexing.flat.index import FlatIndex
from sluice.indexing.hits import Mask, Rows
from sluice.indexing.index import SearchParameters
from sluice.indexing.own.graph.index import GraphIndex
from sluice.indexing.own.graph.neighbours import (
    Best,
    Build,
    Links,
    Neighbours,
    Score,
    SearchSettings,
    best_first_walk,
    check_parameters,
)
from sluice.indexing.storage.rows import DenseRows, fact, write_array

QUERIES_FILE, FOUND_FILE, LINKS_FILE = "queries.npy", "found.npy", "links.npy"
BLOCK = 256  # documents whose candidates are compared with each other at a time
WIDER = 2  # candidates of a kind for each link


class ProjectedLinks(Neighbours):
    """For each row up to ``2 degree`` rows: a bipartite graph of queries and documents, projected.

    ``found`` ``[queries, depth]`` are the best rows of each training query by inner product, exact
    and kept so. Two rows that a query finds at ranks a and b are joined by ``1 / sqrt(a b)``; the
    ``2 degree`` rows joined most with a row, and as many nearest to it, are its candidates.
    ``degree`` of them become links, the nearest first, leaving out one that is nearer to a link
    than to the row, as long as others are left; then each link is made one of both rows, up to
    ``2 degree``. They are what a new build would make, also after changes.
    (Chen et al. 2024, RoarGraph, arXiv 2408.08933; Liu et al. 2024, RetrievalAttention, arXiv
    2409.10516.)
    """

    def __init__(self, degree: int, build: Build, depth: int) -> None:
        super().__init__(WIDER * degree, build)
        self.degree, self.depth = degree, depth
        self.queries: Dense = np.zeros((0, 0), np.float32)
        self.found: Links = np.zeros((0, depth), np.int32)
        self.joined: Links = np.zeros((0, WIDER * degree), np.int32)

    def extend(self, vectors: DenseRows) -> None:
        """Link the rows that came since."""
        known, total = len(self), len(vectors)
        if total == known:
            return
        super().extend(vectors)
        if len(self.queries):
            self._find(vectors, known)
        self._project(vectors)

    def _find(self, vectors: DenseRows, known: int) -> None:
        """Bring what the queries find up to date with the rows from ``known`` on."""
        total = len(vectors)
        newer = FlatIndex("ip")
        newer.add(vectors.gather(np.arange(known, total))[0])
        best = newer.search(self.queries, self.depth).rows
        best = np.where(best >= 0, best + known, -1)
        if known:
            candidates = np.concatenate([self.found.astype(np.int64), best], axis=1)
            best = vectors.rescored(self.queries, candidates, self.depth, "ip").rows
        self.found = best.astype(np.int32)

    def keep_only(self, allowed: Mask, vectors: DenseRows) -> None:
        """Drop rows; queries that lost one find others."""
        super().keep_only(allowed, vectors)
        moved = np.where(allowed, np.cumsum(allowed) - 1, -1).astype(np.int32)
        found = np.where(self.found >= 0, moved[self.found], -1)
        lost = np.flatnonzero(((self.found >= 0) & (found < 0)).any(axis=1))
        self.found = found
        if len(lost) and len(vectors):
            everything = FlatIndex("ip")
            everything.add(vectors.gather(np.arange(len(vectors)))[0])
            self.found[lost] = everything.search(self.queries[lost], self.depth).rows
        self._project(vectors)

    def linked(self, rows: Rows) -> Rows:
        """Return the links of rows, each once."""
        linked = self._known_rows(self.joined[rows])
        return np.unique(linked[linked >= 0]).astype(np.int64)

    def pivots(self) -> Rows:
        """Return the rows that queries find first, in the order of the queries, each once."""
        best = self._known_rows(self.found[:, 0])
        distinct, first = np.unique(best[best >= 0], return_index=True)
        return distinct[np.argsort(first)].astype(np.int64)

    def _project(self, vectors: DenseRows) -> None:
        together = found_together(self.found, len(vectors), self.count)
        candidates = np.concatenate([together, self.links], axis=1)
        self.joined = both_ways(spread(candidates, vectors, self.degree), vectors, self.count)

    def write(self, folder: Path, vectors: DenseRows) -> None:
        """Write the nearest, the queries, what they find, and the links."""
        super().write(folder, vectors)
        write_array(folder / QUERIES_FILE, [self.queries], self.queries.shape, np.float32)
        write_array(folder / FOUND_FILE, [self.found], self.found.shape, np.int32)
        write_array(folder / LINKS_FILE, [self.joined], self.joined.shape, np.int32)

    def restore(self, folder: Path, vectors: DenseRows, queries: int, width: int) -> None:
        """Open what ``write`` wrote."""
        self.links = Neighbours.read(folder, self.count, self.build, vectors).links
        self.queries = open_array(folder / QUERIES_FILE, np.float32, (queries, width))
        self.found = open_array(folder / FOUND_FILE, np.int32, (queries, self.depth))
        self.joined = open_array(folder / LINKS_FILE, np.int32, (len(vectors), self.count))
        if not np.isfinite(self.queries).all():
            raise IndexFormatError(f"{folder / QUERIES_FILE}: has a value that is not finite")
        self._known_rows(self.found)


def found_together(found: Links, rows: int, most: int) -> Links:
    """Return for each row the ``most`` rows that queries find with it, -1 where there are fewer.

    ``found`` ``[queries, depth]``, best first. Rows a and b weigh the sum over queries of
    ``1 / sqrt(rank of a * rank of b)``, ranks from 1; equal weights in the order of the rows.
    """
    together = np.full((rows, most), -1, np.int32)
    asked, places = np.nonzero(found >= 0)
    weights = 1.0 / np.sqrt(places + 1.0)
    ranks = sparse.csr_array((weights, (asked, found[asked, places])), shape=(len(found), rows))
    columns = ranks.T.tocsr()
    for start in range(0, rows, 4_096):
        part = (columns[start : start + 4_096] @ ranks).tocoo()
        line, other, weight = part.row + start, part.col, part.data
        apart = line != other
        line, other, weight = line[apart], other[apart], weight[apart]
        order = np.lexsort((other, -np.round(weight, 12), line))
        line, other = line[order], other[order]
        place = _place_in_line(line)
        together[line[place < most], place[place < most]] = other[place < most]
    return together


def spread(candidates: Links, vectors: DenseRows, degree: int) -> Links:
    """Return of each row's candidates the ``degree`` nearest that are not nearer to each other.

    A candidate nearer to one that was taken than to the row is passed over; if places are left,
    the nearest of those passed over take them. -1 is skipped, and a candidate that comes twice
    counts once.
    """
    chosen = np.full((len(candidates), degree), -1, np.int32)
    for start in range(0, len(candidates), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(candidates)))
        own, _ = vectors.gather(rows)
        line = np.sort(candidates[rows], axis=1)
        line[:, 1:][line[:, 1:] == line[:, :-1]] = -1
        near, _ = vectors.gather(np.maximum(line, 0).ravel().astype(np.int64))
        points = near.reshape(*line.shape, -1).astype(np.float64)
        gaps = np.where(line >= 0, ((points - own[:, None]) ** 2).sum(axis=2), np.inf)
        order = np.lexsort((line, gaps), axis=1)
        line, gaps = np.take_along_axis(line, order, 1), np.take_along_axis(gaps, order, 1)
        points = np.take_along_axis(points, order[:, :, None], 1)
        squares = (points**2).sum(axis=2)
        between = squares[:, :, None] + squares[:, None] - 2 * points @ points.transpose(0, 2, 1)
        taken = np.zeros(line.shape, np.bool_)
        for place in range(line.shape[1]):
            hidden = (taken & (between[:, place] < gaps[:, place, None])).any(axis=1)
            free = taken.sum(axis=1) < degree
            taken[:, place] = ~hidden & free & (line[:, place] >= 0)
        best = np.argsort(~taken, axis=1, kind="stable")[:, :degree]
        kept = np.take_along_axis(line, best, 1)
        chosen[rows, : kept.shape[1]] = kept
    return chosen


def both_ways(links: Links, vectors: DenseRows, most: int) -> Links:
    """Return the links with each made one of both rows, at most ``most`` of a row.

    A row's own links stay; of the rows that link to it those are taken first that no row has among
    its own, which no walk would reach, then the nearest, equal ones in order of the rows.
    """
    rows, degree = links.shape
    joined = np.full((rows, most), -1, np.int32)
    joined[:, :degree] = links
    start, place = np.nonzero(links >= 0)
    end = links[start, place].astype(np.int64)
    known = np.isin(end * rows + start, start * rows + end)
    start, end = start[~known], end[~known]
    gaps = np.concatenate([
        ((vectors.gather(start[a : a + 65_536])[0] - vectors.gather(end[a : a + 65_536])[0])
         .astype(np.float64) ** 2).sum(axis=1)
        for a in range(0, max(len(start), 1), 65_536)
    ])  # fmt: skip
    reached = np.bincount(links[links >= 0], minlength=rows) > 0
    order = np.lexsort((start, gaps, reached[start], end))
    start, end = start[order], end[order]
    used = (links >= 0).sum(axis=1)
    place = _place_in_line(end) + used[end]
    fits = place < most
    joined[end[fits], place[fits]] = start[fits]
    return joined


def _place_in_line(lines: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each entry of sorted ``lines`` how many entries of its line come before it."""
    starts = np.flatnonzero(np.diff(lines, prepend=-1))
    sizes = np.diff(np.append(starts, len(lines)))
    return np.arange(len(lines)) - np.repeat(starts, sizes)


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

    @property
    def _parameters(self) -> SearchParameters:
        return SearchParameters(TAKES, check_parameters, by_mode=True)

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
