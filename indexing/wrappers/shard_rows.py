"""Which shard holds each row of a collection, and in which of its own rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.encoders.foundation.errors import DataError, IndexFormatError
from sluice.indexing.live_rows import Mask, Rows


class ShardRows:
    """The rows of a collection, split over shards; each shard has its own in the same order.

    ``rows`` has for each shard the collection's row of each of its own, ascending. Ties in a shard
    are then broken as in the whole. ``IndexFormatError`` unless every row is in one shard.
    """

    def __init__(self, rows: Sequence[Rows]) -> None:
        self._set([np.asarray(each, dtype=np.int64) for each in rows])

    @classmethod
    def of(cls, owners: ArrayLike, shards: int) -> ShardRows:
        """Return the rows of a collection whose row ``i`` is in shard ``owners[i]``."""
        numbers = np.asarray(owners, dtype=np.int64)
        return cls([np.flatnonzero(numbers == shard) for shard in range(shards)])

    def _set(self, rows: list[Rows]) -> None:
        total = sum(len(each) for each in rows)
        self.rows = rows
        self.owners: NDArray[np.int32] = np.full(total, -1, dtype=np.int32)
        self.local: Rows = np.zeros(total, dtype=np.int64)
        for shard, each in enumerate(rows):
            sound = not len(each) or (each[0] >= 0 and each[-1] < total)
            if not (sound and (np.diff(each) > 0).all() and (self.owners[each] < 0).all()):
                raise IndexFormatError(
                    f"rows of shard {shard}: not ascending, beyond {total:,}, or in another shard "
                    "too; rebuild the retriever"
                )
            self.owners[each] = shard
            self.local[each] = np.arange(len(each))

    def __len__(self) -> int:
        return len(self.owners)

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self.rows)

    def extend(self, owners: ArrayLike) -> Rows:
        """Allot the next rows to shards ``owners`` ``[n]``; return these rows."""
        numbers = np.asarray(owners, dtype=np.int64)
        new = len(self) + np.arange(len(numbers), dtype=np.int64)
        self._set([np.concatenate([each, new[numbers == s]]) for s, each in enumerate(self.rows)])
        return new

    def keep(self, kept: Mask) -> None:
        """Forget the rows that ``kept`` excludes; the others move up in order."""
        moved = np.cumsum(kept, dtype=np.int64) - 1
        self._set([moved[each[kept[each]]] for each in self.rows])

    def parted(self, rows: ArrayLike) -> Iterator[tuple[int, NDArray[np.intp], Rows]]:
        """Yield (shard, places in ``rows``, the shard's own rows) of each shard with any."""
        numbers = np.asarray(rows, dtype=np.int64)
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= len(self)):
            raise DataError(f"rows: expected 0 to {len(self) - 1:,}; open the retriever again")
        owners = self.owners[numbers]
        for shard in np.flatnonzero(np.bincount(owners)).tolist():
            places = np.flatnonzero(owners == shard)
            yield shard, places, self.local[numbers[places]]
