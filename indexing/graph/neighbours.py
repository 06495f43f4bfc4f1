"""The graph: for each row the rows nearest to it, kept exact through changes."""

from __future__ import annotations

import hashlib
import logging
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError, suggest
from sluice.encoders.foundation.numbers import duration
from sluice.indexing.checks import Dense
from sluice.indexing.flat.index import FlatIndex
from sluice.indexing.index import Index
from sluice.indexing.live_rows import Mask, Rows
from sluice.indexing.storage.arrays import write_array
from sluice.indexing.storage.rows import DenseRows

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
        old = self._checked(self.links[allowed])
        links = np.where(old >= 0, moved[old], -1)
        lost = np.flatnonzero(((old >= 0) & (links < 0)).any(axis=1))
        self.links = links
        if len(lost):
            self._search(self.links, lost, vectors, self._index(vectors, first=False))

    def of(self, rows: Rows) -> Rows:
        """Return the neighbours of rows, in their order, each once.

        ``IndexFormatError`` for a row that is not there: the file was edited.
        """
        found = self._checked(self.links[rows]).ravel()
        distinct, first = np.unique(found, return_index=True)
        ordered = distinct[np.argsort(first)]
        return ordered[ordered >= 0].astype(np.int64)

    def _checked(self, links: Links) -> Links:
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
            older = self._checked(self.links[rows]).astype(np.int64)
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
