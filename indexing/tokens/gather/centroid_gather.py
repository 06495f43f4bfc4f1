"""Gathers: what each is, and candidates by centroids with the documents near each."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.errors import IndexFormatError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing.hits import Mask, Rows
from sluice.indexing.kernels.calls import in_order, lent
from sluice.indexing.storage.rows import fact, write_array
from sluice.indexing.tokens.gather.centroids import CHUNK, POINTS, Centroids, Floats, centroid_count


class Gather(ABC):
    """Documents by row, as the index has them, and the most promising ones for a query."""

    type_name: ClassVar[str]

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @property
    @abstractmethod
    def trained(self) -> bool:
        """Whether ``train`` was called."""

    @property
    @abstractmethod
    def dim(self) -> int | None:
        """Width of the vectors it learnt from; None before ``train``."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of all arrays."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of documents held."""

    @abstractmethod
    def train(self, sample: TokenVectors, documents: int) -> None:
        """Learn from a sample of the ``documents`` that are expected."""

    @abstractmethod
    def assigned(self, documents: TokenVectors) -> Any:
        """Return what ``append`` needs of documents; changes nothing, and may take long."""

    @abstractmethod
    def append(self, assigned: Any) -> None:
        """Add documents in the next rows."""

    @abstractmethod
    def keep_only(self, allowed: Mask) -> None:
        """Drop the rows that ``allowed`` excludes; the others move up in order."""

    @abstractmethod
    def candidates(
        self,
        query: NDArray[np.float32],
        count: int,
        allowed: Mask | None,
        parameters: Mapping[str, Any],
    ) -> Rows:
        """Return at most ``count`` rows for one query ``[tokens, dim]``, in no order."""

    @abstractmethod
    def write(self, folder: Path) -> dict[str, Any]:
        """Write the arrays into the index's folder; return the facts that describe them."""

    @classmethod
    @abstractmethod
    def read(cls, seed: int, folder: Path, facts: Mapping[str, Any]) -> Self:
        """Open what ``write`` wrote."""


MOST_TOGETHER = 1 << 27  # documents times centroids' entries joined in memory; 512 MiB of rows


class Lists(NamedTuple):
    """The documents of each centroid: ``rows[starts[c] : starts[c + 1]]``, ascending, once each."""

    starts: Any  # int64 [centroids + 1]
    rows: Any  # int32, counted from the segment's first
    documents: int


class CentroidLists:
    """Segments of lists, end to end; a document is in the lists of all its tokens' centroids."""

    def __init__(self, centroids: int) -> None:
        self._centroids = centroids
        self._segments: list[Lists] = []

    def __len__(self) -> int:
        return sum(segment.documents for segment in self._segments)

    @property
    def entries(self) -> int:
        """Number of documents in lists, over all lists."""
        return sum(len(segment.rows) for segment in self._segments)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(part.starts.nbytes + part.rows.nbytes for part in self._segments)

    def segments(self) -> Iterator[tuple[int, Lists]]:
        """Yield each segment with its first row."""
        first = 0
        for segment in self._segments:
            yield first, segment
            first += segment.documents

    def append(self, codes: NDArray[np.int32], bounds: NDArray[np.int64]) -> None:
        """Add documents, given their tokens' centroids."""
        from sluice.indexing.tokens.gather.kernel import fill_lists

        counts = np.zeros(self._centroids, np.int64)
        fill_lists(codes, bounds, self._marks(), counts, np.empty(0, np.int32))
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        rows = np.empty(int(starts[-1]), np.int32)
        fill_lists(codes, bounds, self._marks(), starts[:-1].copy(), rows)
        added = Lists(starts, rows, len(bounds) - 1)
        # Joined like the digits of a binary counter: each entry is copied O(log) times.
        parts = [added]
        while self._segments:
            total = sum(part.documents for part in parts)
            entries = sum(len(part.rows) for part in parts) + len(self._segments[-1].rows)
            if self._segments[-1].documents > total or entries > MOST_TOGETHER:
                break
            parts.insert(0, self._segments.pop())
        self._segments.append(parts[0] if len(parts) == 1 else self._joined(parts))

    def keep_only(self, allowed: Mask) -> None:
        """Drop the rows that ``allowed`` excludes; the others move up in order."""
        remaining = []
        for first, segment in self.segments():
            mask = allowed[first : first + segment.documents]
            if mask.all():
                remaining.append(segment)
            elif mask.any():
                moved = np.cumsum(mask, dtype=np.int64) - 1
                kept = mask[segment.rows]
                passed = np.concatenate([[0], np.cumsum(kept)])
                rows = moved[segment.rows[kept]].astype(np.int32)
                remaining.append(Lists(passed[segment.starts], rows, int(mask.sum())))
        self._segments = remaining

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the lists of all segments; return the facts ``read`` needs."""
        sizes = [part.documents for part in self._segments]
        for name, dtype in (("starts", np.int64), ("rows", np.int32)):
            arrays = [getattr(part, name) for part in self._segments]
            total = sum(map(len, arrays))
            write_array(folder / f"gather_{name}.npy", arrays, (total,), dtype)
        entries = [len(part.rows) for part in self._segments]
        return {"segments": sizes, "entries": entries}

    @classmethod
    def read(cls, centroids: int, folder: Path, facts: Mapping[str, Any]) -> Self:
        """Open what ``write`` wrote, the rows mapped into memory."""
        opened = cls(centroids)
        sizes, entries = (fact(facts, name, list, folder) for name in ("segments", "entries"))
        good = all(isinstance(size, int) and size >= 0 for size in (*sizes, *entries))
        if not good or len(sizes) != len(entries):
            raise IndexFormatError(f"{folder}: the gather's segments are not sizes; rebuild")
        wide = centroids + 1
        starts = open_array(
            folder / "gather_starts.npy", np.int64, (len(sizes) * wide,), mapped=False
        )
        rows = open_array(folder / "gather_rows.npy", np.int32, (sum(entries),))
        done = 0
        for place, (size, count) in enumerate(zip(sizes, entries, strict=True)):
            edges = starts[place * wide : (place + 1) * wide]
            part = rows[done : done + count]
            outside = count and (int(part.min()) < 0 or int(part.max()) >= size)
            if edges[0] or edges[-1] != count or (np.diff(edges) < 0).any() or outside:
                raise IndexFormatError(
                    f"{folder / 'gather_starts.npy'}: not lists of {size:,} documents; rebuild"
                )
            opened._segments.append(Lists(lent(edges), lent(part), size))
            done += count
        return opened

    def _marks(self) -> NDArray[np.int32]:
        return np.full(self._centroids, -1, np.int32)

    def _joined(self, parts: list[Lists]) -> Lists:
        counts = np.stack([np.diff(part.starts) for part in parts])  # [parts, centroids]
        starts = np.concatenate([[0], np.cumsum(counts.sum(axis=0))]).astype(np.int64)
        within = np.cumsum(counts, axis=0) - counts
        rows = np.empty(int(starts[-1]), np.int32)
        first = 0
        for part, before, sizes in zip(parts, within, counts, strict=True):
            shifts = np.repeat(starts[:-1] + before - part.starts[:-1], sizes)
            rows[shifts + np.arange(len(part.rows))] = part.rows + first
            first += part.documents
        return Lists(starts, rows, first)


PROBES = 32  # centroids of a query token whose lists are read
FEWEST_POINTS = 8  # sampled tokens for a centroid, at least
_ALL: Mask = np.empty(0, np.bool_)


class TokenCodes(NamedTuple):
    """The centroid of each token of some documents, int32 ``[tokens]``, and their bounds."""

    codes: NDArray[np.int32]
    bounds: NDArray[np.int64]


class _Room(threading.local):
    """Sums and marks of a search, one for each thread; a copy of the index begins without any."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Room:
        return _Room()


class CentroidGather(Gather):
    """Sums, over a query's tokens, the product with a document's best probed centroid.

    Each token of a document is in the list of its nearest centroid (Santhanam et al., 2022,
    PLAID). Each query token reads the lists of its ``probes`` best centroids; a document in none
    of them is taken to have the product of the next best, an upper bound of what it has
    (missing-token imputation; Scheerer et al., 2025, WARP). With all centroids probed, the sum is
    MaxSim over centroids.
    """

    type_name: ClassVar[str] = "centroids"

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._centroids: Centroids | None = None
        self._lists = CentroidLists(0)
        self._room = _Room()

    def __len__(self) -> int:
        return len(self._lists)

    @property
    def trained(self) -> bool:
        """Whether centroids are learnt."""
        return self._centroids is not None

    @property
    def dim(self) -> int | None:
        """Width of the centroids."""
        return None if self._centroids is None else int(self._centroids.values.shape[1])

    @property
    def size_bytes(self) -> int:
        """Bytes of centroids and lists."""
        found = self._centroids
        own = 0 if found is None else found.values.nbytes + found.cells.nbytes + found.bounds.nbytes
        return own + self._lists.nbytes

    @property
    def centroids(self) -> int:
        """Number of centroids."""
        return 0 if self._centroids is None else len(self._centroids)

    def train(self, sample: TokenVectors, documents: int) -> None:
        """Learn as many centroids as PLAID has for so many documents like those of the sample."""
        values, count = sample.values, len(sample.values)
        if not count:
            return
        expected = round(count * max(documents, len(sample)) / len(sample))
        wanted = min(centroid_count(expected), max(1, count // FEWEST_POINTS))
        most = wanted * POINTS
        if count > most:
            rng = np.random.default_rng(self.seed)
            values = values[np.sort(rng.choice(count, most, replace=False))]
        self._centroids = Centroids.trained(values, wanted, self.seed)
        before = len(self._lists)  # documents in no list
        self._lists = CentroidLists(len(self._centroids))
        if before:
            self._lists.append(np.zeros(0, np.int32), np.zeros(before + 1, np.int64))

    def assigned(self, documents: TokenVectors) -> TokenCodes:
        """Return the nearest centroid of each token."""
        found = self._centroids
        if found is None:
            return TokenCodes(np.zeros(0, np.int32), np.zeros_like(documents.bounds))
        values: Floats = documents.values
        chunks = (values[start : start + CHUNK] for start in range(0, len(values), CHUNK))
        parts = [np.zeros(0, np.int32), *in_order(found.assign, chunks)]
        return TokenCodes(np.concatenate(parts), documents.bounds)

    def append(self, assigned: TokenCodes) -> None:
        """Add documents to the lists of their centroids, which stay as they are."""
        self._lists.append(assigned.codes, assigned.bounds)

    def keep_only(self, allowed: Mask) -> None:
        """Drop the rows that ``allowed`` excludes; the others move up in order."""
        self._lists.keep_only(allowed)

    def candidates(
        self,
        query: NDArray[np.float32],
        count: int,
        allowed: Mask | None,
        parameters: Mapping[str, Any],
    ) -> Rows:
        """Return the ``count`` documents of the greatest sums, fewer if fewer are in the lists."""
        found = self._centroids
        if found is None or not len(query):
            return np.zeros(0, np.int64)
        from sluice.indexing.tokens.gather.kernel import add_lists, best_centroids, best_sums

        probes = min(int(parameters.get("probes", PROBES)), len(found))
        products = np.ascontiguousarray(query @ found.values.T)
        chosen = np.empty((len(query), min(probes + 1, len(found))), np.int32)
        best_centroids(products, chosen.shape[1], chosen)
        room = sums, marks, seen = self._taken_room(len(self))
        size = 0
        for first, part in self._lists.segments():
            size = add_lists(
                products,
                chosen,
                probes,
                part.starts,
                part.rows,
                first,
                _ALL if allowed is None else lent(allowed),
                sums,
                marks,
                seen,
                size,
            )
        rows = np.empty(min(count, size), np.int64)
        best_sums(sums, marks, seen, size, count, rows)
        self._room.arrays = room  # clear again; one that an error left half filled is not kept
        return rows

    def _taken_room(self, rows: int) -> tuple[Any, Any, Any]:
        """Return this thread's arrays, clear for at least so many rows, and forget them."""
        room: tuple[Any, Any, Any] | None = self._room.__dict__.pop("arrays", None)
        if room is None or len(room[0]) < rows:
            room = (
                np.zeros(rows, np.float32),
                np.full(rows, -1, np.int32),
                np.empty(rows, np.int32),
            )
        return room

    def write(self, folder: Path) -> dict[str, Any]:
        """Write centroids and lists; return the facts ``read`` needs."""
        facts = self._lists.write(folder)
        found = self._centroids
        if found is None:
            return {**facts, "centroids": 0, "cells": 0, "dim": 0}
        for name, array in (("centroids", found.values), ("cells", found.cells)):
            write_array(folder / f"gather_{name}.npy", [array], array.shape, np.float32)
        write_array(folder / "gather_bounds.npy", [found.bounds], found.bounds.shape, np.int64)
        shape = {"centroids": len(found), "cells": len(found.cells), "dim": found.values.shape[1]}
        return {**facts, **shape}

    @classmethod
    def read(cls, seed: int, folder: Path, facts: Mapping[str, Any]) -> Self:
        """Open what ``write`` wrote; lists stay on the disk until they are read."""
        opened = cls(seed)
        count, cells, dim = (
            fact(facts, name, int, folder) for name in ("centroids", "cells", "dim")
        )
        if count:
            opened._centroids = Centroids.from_arrays(
                open_array(folder / "gather_centroids.npy", np.float32, (count, dim), mapped=False),
                open_array(folder / "gather_cells.npy", np.float32, (cells, dim), mapped=False),
                open_array(folder / "gather_bounds.npy", np.int64, (cells + 1,), mapped=False),
                folder,
            )
        opened._lists = CentroidLists.read(count, folder, facts)
        return opened
