"""The graph of each row's nearest rows, kept exact through changes, and the greedy walk in it."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError, suggest
from sluice.encoders.foundation.numbers import duration, whole_number
from sluice.indexing.checks import Dense
from sluice.indexing.flat.index import FlatIndex
from sluice.indexing.hits import Mask, Rows, best_first
from sluice.indexing.index import Index
from sluice.indexing.storage.rows import DenseRows, write_array

Scores: TypeAlias = NDArray[np.float32]


class Best:
    """The ``k`` best rows, and those whose score is less than ``margin`` below the k-th.

    ``visited`` counts the rows that were scored, those that may be no hits among them.
    """

    def __init__(self, k: int, margin: float = 0.0) -> None:
        self.k, self.margin = k, margin
        self.rows: Rows = np.zeros(0, np.int64)
        self.scores: Scores = np.zeros(0, np.float32)
        self.visited = 0

    def take(self, rows: Rows, scores: Scores, allowed: Mask | None) -> bool:
        """Add rows that were not there; return whether any is among the k best."""
        self.visited += len(rows)
        if allowed is not None:
            hits = allowed[rows]
            rows, scores = rows[hits], scores[hits]
        enters = len(self.rows) < self.k or bool((scores > self.scores[self.k - 1]).any())
        found = np.concatenate([self.rows, rows])
        values = np.concatenate([self.scores, scores])
        kept = min(self.k, len(found))
        if self.margin and kept:
            least = np.partition(values, len(values) - kept)[len(values) - kept]
            kept = max(kept, int((values >= least - self.margin).sum()))
        self.rows, self.scores = best_first(found, values, kept)
        return enters


Mode = Literal["graph", "exhaustive"]
MODES: Final[tuple[Mode, ...]] = ("graph", "exhaustive")
ENTRIES = 10_000  # at most, where none are set
ENTRY_SHARE = 20  # documents for each entry point, where none are set
FEWEST_ENTRIES = 64
# Candidates, where none are set. Of SciFact's 5,183 documents with 32 neighbours each, 10 find .965
# of the ten best and score 14 % of the documents, 50 find .995 and score 35 %.
CANDIDATES = 50  # at most, as in the paper, which has 8.8 million documents
FEWEST_CANDIDATES = 10
CANDIDATE_SHARE = 500  # documents for each
COUNTS: Final = ("entries", "candidates", "iterations", "budget")
PARAMETERS: Final = ("mode", *COUNTS, "early_stop")  # of one search


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How a graph is walked.

    ``entries`` None: a twentieth of the documents, 64 to 10,000; ``candidates`` None: one for each
    500 documents, 10 to 50; ``budget`` None: as many documents as the walk reaches.
    """

    entries: int | None = None
    candidates: int | None = None
    iterations: int = 16
    budget: int | None = None
    early_stop: bool = True

    def changed(self, parameters: Mapping[str, Any]) -> SearchSettings:
        """Return the settings with those of one search."""
        own = {name: value for name, value in parameters.items() if name != "mode"}
        return replace(self, **own) if own else self

    def entry_count(self, documents: int) -> int:
        """Return at how many of the documents a walk begins."""
        if self.entries is not None:
            return self.entries
        return max(FEWEST_ENTRIES, min(ENTRIES, documents // ENTRY_SHARE))

    def begins_with(self, documents: int, k: int) -> int:
        """Return how many of the documents a walk for k hits scores first."""
        return min(max(self.entry_count(documents), k), self.most(documents, k))

    def most(self, documents: int, k: int) -> int:
        """Return how many documents a walk for k hits may score: never fewer than it returns."""
        return documents if self.budget is None else max(self.budget, k)

    def candidate_count(self, documents: int) -> int:
        """Return of how many documents each step scores the neighbours."""
        if self.candidates is not None:
            return self.candidates
        return max(FEWEST_CANDIDATES, min(CANDIDATES, documents // CANDIDATE_SHARE))


def checked_settings(
    entries: int | None,
    candidates: int | None,
    iterations: int,
    budget: int | None,
    early_stop: bool,
) -> SearchSettings:
    """Return the settings; ``ConfigError`` if one is wrong."""
    given: dict[str, Any] = {
        "entries": entries, "candidates": candidates, "iterations": iterations, "budget": budget,
        "early_stop": early_stop,
    }  # fmt: skip
    check_parameters({name: value for name, value in given.items() if value is not None})
    return SearchSettings(**given)


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for values that a search cannot have."""
    for name in COUNTS:
        if name in parameters:
            whole_number(parameters[name], name, 1)
    if not isinstance(parameters.get("early_stop", True), bool):
        raise ConfigError(f"early_stop is {parameters['early_stop']!r}, expected true or false")
    mode = parameters.get("mode", "graph")
    if mode not in MODES:
        raise ConfigError(
            f"mode is {mode!r}, expected graph or exhaustive{suggest(str(mode), MODES)}"
        )


Build = Literal["exact", "faiss"]
BUILDS: tuple[Build, ...] = ("exact", "faiss")
FILE = "neighbours.npy"
MARK = 8  # first values of the file: which vectors the graph is of
SAMPLE = 1_024  # vectors that the mark is made of
SEARCHED = 4_096  # rows whose neighbours are searched at a time
HNSW = "HNSW32"
LOGGED = 50_000  # rows compared with as many, from which on an exact build logs its time

log = logging.getLogger("sluice")

Links = NDArray[np.int32]


def checked_build(name: str) -> Build:
    """Return ``name`` if it is a way to build a graph."""
    for known in BUILDS:
        if name == known:
            return known
    raise ConfigError(f"build: {name!r}, expected exact or faiss{suggest(str(name), BUILDS)}")


class Neighbours:
    """For each row the ``count`` rows nearest by Euclidean distance, nearest first, ties by row.

    ``links`` is int32 ``[rows, count]``, -1 where there are fewer. A row is not its own neighbour.
    With ``build: exact`` they are those of brute force, also after rows were added or dropped;
    ``faiss`` finds them by an HNSW graph of its own, and rows that are added or lost neighbours are
    linked exactly.
    """

    def __init__(self, count: int, build: Build) -> None:
        self.count, self.build = count, build
        self.links: Links = np.zeros((0, count), np.int32)

    def __len__(self) -> int:
        return len(self.links)

    def extend(self, vectors: DenseRows) -> None:
        """Link the rows that came since: to their nearest, and the older rows to them."""
        known, total = len(self), len(vectors)
        if total == known:
            return
        index = self._index(vectors, first=not known)
        links = np.full((total, self.count), -1, np.int32)
        self._search(links, np.arange(known, total), vectors, index)
        if known:
            links[:known] = self._with_newer(vectors, known)
        self.links = links

    def keep_only(self, allowed: Mask, vectors: DenseRows) -> None:
        """Drop rows; ``vectors`` are those that stay. Rows that lost a neighbour get another."""
        moved = np.where(allowed, np.cumsum(allowed) - 1, -1).astype(np.int32)
        old = self._known_rows(self.links[allowed])
        links = np.where(old >= 0, moved[old], -1)
        lost = np.flatnonzero(((old >= 0) & (links < 0)).any(axis=1))
        self.links = links
        if len(lost):
            self._search(self.links, lost, vectors, self._index(vectors, first=False))

    def linked(self, rows: Rows) -> Rows:
        """Return the neighbours of rows, in their order, each once.

        ``IndexFormatError`` for a row that is not there: the file was edited.
        """
        found = self._known_rows(self.links[rows]).ravel()
        distinct, first = np.unique(found, return_index=True)
        ordered = distinct[np.argsort(first)]
        return ordered[ordered >= 0].astype(np.int64)

    def _known_rows(self, links: Links) -> Links:
        if links.size and (int(links.max()) >= len(self) or int(links.min()) < -1):
            raise IndexFormatError(f"{FILE}: names rows that the index does not have; rebuild it")
        return links

    def _index(self, vectors: DenseRows, *, first: bool) -> Index:
        """Return an index of all vectors that finds the nearest."""
        index: Index = FlatIndex("l2")
        if self.build == "faiss" and first:
            from sluice.indexing.faiss import FaissIndex

            index = FaissIndex(HNSW, metric="l2")
        everything = np.ones(len(vectors), np.bool_)
        for block in vectors.blocks(SEARCHED, everything):
            index.add(np.asarray(block))
        return index

    def _search(self, links: Links, rows: Rows, vectors: DenseRows, index: Index) -> None:
        """Write the neighbours of rows into ``links``; a long exact search says how long."""
        logged = len(rows) * len(vectors) < LOGGED**2 or not isinstance(index, FlatIndex)
        start_time = time.monotonic()
        for start in range(0, len(rows), SEARCHED):
            part = rows[start : start + SEARCHED]
            hits = index.search(vectors.gather(part)[0], self.count + 1)
            links[part] = without_own(hits.rows, part)[:, : self.count]
            left = len(rows) - start - len(part)
            if not logged and left:
                logged = True
                log.warning(
                    "graph: %s documents are each compared with all %s, which takes about %s more; "
                    "build: faiss links new graphs faster, and approximately",
                    f"{len(rows):,}", f"{len(vectors):,}",
                    duration((time.monotonic() - start_time) * left / len(part)),
                )  # fmt: skip

    def _with_newer(self, vectors: DenseRows, known: int) -> Links:
        """Return the neighbours of the first ``known`` rows, with those that came after."""
        newer = FlatIndex("l2")
        newer.add(vectors.gather(np.arange(known, len(vectors)))[0])
        links = np.empty((known, self.count), np.int32)
        for start in range(0, known, SEARCHED):
            rows = np.arange(start, min(start + SEARCHED, known))
            queries = vectors.gather(rows)[0]
            found = newer.search(queries, self.count).rows
            found = np.where(found >= 0, found + known, -1)
            older = self._known_rows(self.links[rows]).astype(np.int64)
            candidates = np.concatenate([older, found], axis=1)
            links[rows] = vectors.rescored(queries, candidates, self.count, "l2").rows
        return links

    def write(self, folder: Path, vectors: DenseRows) -> None:
        """Write the graph, with a mark of the vectors it is of."""
        parts = [mark_of(vectors), self.links.ravel()]
        write_array(folder / FILE, parts, (MARK + self.links.size,), np.int32)

    @classmethod
    def read(cls, folder: Path, count: int, build: Build, vectors: DenseRows) -> Neighbours:
        """Open what ``write`` wrote; ``IndexFormatError`` for a graph of other vectors."""
        graph = cls(count, build)
        size = MARK + len(vectors) * count
        stored = open_array(folder / FILE, np.int32, (size,))
        if (stored[:MARK] != mark_of(vectors)).any():
            raise IndexFormatError(
                f"{folder / FILE}: the graph of other vectors than those beside it; rebuild the "
                "index"
            )
        graph.links = stored[MARK:].reshape(len(vectors), count)
        return graph


def without_own(found: Rows, own: Rows) -> Rows:
    """Return each line without its own row, or without its last one where that is not in it."""
    lines, width = found.shape
    drop = found == own[:, None]
    drop[~drop.any(axis=1), -1] = True
    kept: Rows = found[~drop].reshape(lines, width - 1)
    return kept


def mark_of(vectors: DenseRows) -> NDArray[np.int32]:
    """Return a hash of up to ``SAMPLE`` of the vectors, evenly spaced: int32 ``[MARK]``."""
    total = len(vectors)
    digest = hashlib.sha256(f"{total} {vectors.width}".encode())
    if total:
        rows = np.unique(np.linspace(0, total - 1, min(total, SAMPLE)).astype(np.int64))
        sample: Dense = np.ascontiguousarray(vectors.gather(rows)[0], "<f4")
        digest.update(sample.tobytes())
    made: NDArray[Any] = np.frombuffer(digest.digest(), "<i4", MARK)
    return made.astype(np.int32)


Score = Callable[[Rows], Scores]  # of rows, each once


def walk(
    score: Score,
    graph: Neighbours,
    order: Rows,
    settings: SearchSettings,
    best: Best,
    allowed: Mask | None,
) -> None:
    """Give ``best`` the rows that a walk finds; every row is scored once at most.

    It begins with the first rows of ``order``. Then, ``iterations`` times at most, the neighbours
    of the ``candidates`` best of those scored last are scored, unless they were before. It ends
    where none are left, where ``budget`` rows are scored, or, with ``early_stop``, where a step
    finds none of the best k. (Killingback, Zeng and Zamani 2025, arXiv 2502.05364, section on
    efficient search.) Rows that ``allowed`` excludes are walked through without being hits. Where
    fewer than k hits are found, further rows of ``order`` are scored.
    """
    seen = np.zeros(len(graph), np.bool_)
    room = settings.most(len(graph), best.k)
    frontier = order[: settings.begins_with(len(graph), best.k)]
    for _ in range(1 + settings.iterations):
        frontier = frontier[: room - best.visited]
        if not len(frontier):
            break
        seen[frontier] = True
        scores = score(frontier)
        if not best.take(frontier, scores, allowed) and settings.early_stop:
            break
        near, _ = best_first(frontier, scores, settings.candidate_count(len(graph)))
        reached = graph.linked(near)
        frontier = reached[~seen[reached]]
    _fill(score, order, seen, best, allowed)


def best_first_walk(
    score: Score,
    graph: Neighbours,
    order: Rows,
    settings: SearchSettings,
    best: Best,
    allowed: Mask | None,
) -> None:
    """Give ``best`` the rows that a best-first walk finds; every row is scored once at most.

    It begins with the first rows of ``order``. Then the neighbours of the best row that was not
    expanded before are scored, as long as there is one among the ``candidates`` best scored so far
    (or k, if that is more), and ``budget`` is not spent. (Malkov and Yashunin 2018, algorithm 2.)
    Rows that ``allowed`` excludes are walked through without being hits. Where fewer than k hits
    are found, further rows of ``order`` are scored.
    """
    seen = np.zeros(len(graph), np.bool_)
    room = settings.most(len(graph), best.k)
    width = max(settings.candidate_count(len(graph)), best.k)
    rows = order[: settings.begins_with(len(graph), best.k)]
    near: Rows = np.zeros(0, np.int64)
    scores: Scores = np.zeros(0, np.float32)
    open_rows = np.zeros(0, np.bool_)
    while True:
        rows = rows[: room - best.visited]
        if len(rows):
            seen[rows] = True
            made = score(rows)
            best.take(rows, made, allowed)
            near, scores = np.concatenate([near, rows]), np.concatenate([scores, made])
            open_rows = np.concatenate([open_rows, np.ones(len(rows), np.bool_)])
            first = np.lexsort((near, -scores))[:width]
            near, scores, open_rows = near[first], scores[first], open_rows[first]
        if not open_rows.any() or best.visited >= room:
            break
        place = int(np.argmax(open_rows))
        open_rows[place] = False
        reached = graph.linked(near[place : place + 1])
        rows = reached[~seen[reached]]
    _fill(score, order, seen, best, allowed)


def _fill(score: Score, order: Rows, seen: Mask, best: Best, allowed: Mask | None) -> None:
    """Score further rows of ``order`` where fewer than k hits are found."""
    if len(best.rows) < best.k:
        left = order[~seen[order]]
        left = left if allowed is None else left[allowed[left]]
        left = left[: best.k - len(best.rows)]
        if len(left):
            best.take(left, score(left), allowed)
