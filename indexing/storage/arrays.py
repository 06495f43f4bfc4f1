"""Writes ``.npy`` files in chunks, and checks the facts that a manifest has beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

from sluice.encoders.foundation.errors import IndexFormatError


def write_array(
    path: Path, chunks: Iterable[NDArray[Any]], shape: tuple[int, ...], dtype: DTypeLike
) -> None:
    """Write chunks one after the other as one C-ordered array; memory stays at one chunk."""
    kind = np.dtype(dtype)
    with path.open("wb") as stream:
        npy.write_array_header_2_0(
            stream, {"descr": npy.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
        )
        for chunk in chunks:
            np.ascontiguousarray(chunk, dtype=kind).tofile(stream)


class GrowingArray:
    """A ``.npy`` file that is appended to; its length is written when it is closed."""

    def __init__(self, path: Path, dtype: DTypeLike, columns: tuple[int, ...] = ()) -> None:
        self._dtype, self._columns, self._length = np.dtype(dtype), columns, 0
        self._stream = path.open("wb")
        self._header = self._write_header()

    def append(self, chunk: NDArray[Any]) -> None:
        """Add rows at the end."""
        np.ascontiguousarray(chunk, dtype=self._dtype).tofile(self._stream)
        self._length += len(chunk)

    def close(self) -> None:
        """Write the length into the header; numpy leaves room there for a growing first axis."""
        with self._stream:
            self._stream.seek(0)
            if self._write_header() != self._header:
                raise IndexFormatError(
                    f"{self._stream.name}: its header outgrew the room numpy leaves for it; "
                    "report this with your version of numpy"
                )

    def abandon(self) -> None:
        """Close the file as it is; nothing happens to one that is closed."""
        self._stream.close()

    def _write_header(self) -> int:
        npy.write_array_header_2_0(
            self._stream,
            {
                "descr": npy.dtype_to_descr(self._dtype),
                "fortran_order": False,
                "shape": (self._length, *self._columns),
            },
        )
        return self._stream.tell()


def fact(facts: Mapping[str, Any], name: str, kind: type, where: Path) -> Any:
    """Return one value of a manifest, checked to be of its type; numbers are not negative."""
    value = facts.get(name)
    wrong = not isinstance(value, kind)
    if isinstance(value, int) and kind is int:
        wrong = isinstance(value, bool) or value < 0
    if wrong:
        raise IndexFormatError(
            f"{where}: manifest entry {name!r} is {value!r}, expected {kind.__name__}; rebuild"
        )
    return value
