"""Candidates by centroids: lists of the documents near each, read for those near the query's."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.indexing.kernels.calls import lent
from sluice.indexing.kernels.threads import in_order
from sluice.indexing.live_rows import Mask, Rows
from sluice.indexing.storage.arrays import fact, write_array
from sluice.indexing.tokens.gather.base import Gather
from sluice.indexing.tokens.gather.centroids import (
    CHUNK,
    POINTS,
    Centroids,
    Floats,
    centroid_count,
)
from sluice.indexing.tokens.gather.lists import CentroidLists

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
            opened._centroids = Centroids.opened(
                open_array(folder / "gather_centroids.npy", np.float32, (count, dim), mapped=False),
                open_array(folder / "gather_cells.npy", np.float32, (cells, dim), mapped=False),
                open_array(folder / "gather_bounds.npy", np.int64, (cells + 1,), mapped=False),
                folder,
            )
        opened._lists = CentroidLists.read(count, folder, facts)
        return opened
