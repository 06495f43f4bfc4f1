"""Segments as tables of addresses: a kernel call with one argument instead of 24 for each segment.

To hand an array to a compiled kernel takes numba a microsecond when everything is in the cache and
several when it is not; a search takes not many times that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from sluice.indexing.inverted.segments.segment import LAYOUT, Segment

COLUMNS: Final = 3  # address and lengths of both axes
_NAMES: Final = tuple(LAYOUT)


def segment_tables(segments: Sequence[tuple[Segment, int]]) -> NDArray[np.int64]:
    """Return the table of (segment, first row) pairs; the caller keeps the segments alive."""
    tables = np.zeros((len(segments), 1 + COLUMNS * len(_NAMES)), dtype=np.int64)
    for table, (segment, first_row) in zip(tables, segments, strict=True):
        table[0] = first_row
        for place, name in enumerate(_NAMES):
            array = getattr(segment, name)
            lengths = (*array.shape, 0)[:2]
            table[1 + COLUMNS * place : 4 + COLUMNS * place] = (array.ctypes.data, *lengths)
    return tables


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(typing_context: Any, address: Any) -> Any:
    """Return an address as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _line(table: NDArray[np.int64], place: int, dtype: Any) -> Any:
    at = 1 + COLUMNS * place
    return carray(_pointer(table[at]), (table[at + 1],), dtype)


@njit(cache=True, nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _grid(table: NDArray[np.int64], place: int, dtype: Any) -> Any:
    at = 1 + COLUMNS * place
    return carray(_pointer(table[at]), (table[at + 1], table[at + 2]), dtype)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def segment_at(table: NDArray[np.int64]) -> Any:
    """Return the segment of a table's line."""
    return Segment(
        _line(table, 0, np.int64),
        _line(table, 1, np.uint16),
        _line(table, 2, np.uint32),
        _line(table, 3, np.uint16),
        _line(table, 4, np.float32),
        _line(table, 5, np.uint8),
        _line(table, 6, np.float32),
        _line(table, 7, np.int64),
        _line(table, 8, np.uint32),
        _line(table, 9, np.uint16),
        _grid(table, 10, np.uint16),
        _line(table, 11, np.int64),
        _line(table, 12, np.uint16),
        _line(table, 13, np.float32),
        _line(table, 14, np.float32),
        _line(table, 15, np.int32),
        _grid(table, 16, np.uint8),
        _line(table, 17, np.int64),
        _line(table, 18, np.uint16),
        _line(table, 19, np.uint8),
        _grid(table, 20, np.float32),
        _line(table, 21, np.uint32),
        _line(table, 22, np.int64),
    )
