"""Writes ``.npy`` files in chunks, and opens them memory-mapped and checked."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

from sluice.encoders.foundation.errors import IndexFormatError

# numpy parses headers as Python, which CPython 3.11 was seen to fail at in several threads at once.
_HEADERS = threading.Lock()

# What numpy's reader raises for a file that is not an array, or one with a damaged header.
UNREADABLE = (OSError, ValueError, EOFError, OverflowError, MemoryError, SyntaxError, TokenError)


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


def open_array(
    path: Path, dtype: DTypeLike, shape: tuple[int | None, ...], *, mapped: bool = True
) -> NDArray[Any]:
    """Open an array read-only, mapped into memory; never unpickles.

    In ``shape``, None stands for any length. ``IndexFormatError`` if the file is not such an array.
    """
    try:
        with _HEADERS:
            # Not np.load, which opens archives as well.
            array: NDArray[Any] = npy.open_memmap(path, mode="r")
        if not mapped:
            array = np.array(array)
    except UNREADABLE as error:
        raise IndexFormatError(f"{path}: cannot be read as an array ({error}); rebuild") from None
    fits = len(array.shape) == len(shape) and all(
        want is None or want == have for want, have in zip(shape, array.shape, strict=True)
    )
    if array.dtype != np.dtype(dtype) or not fits or not array.flags.c_contiguous:
        lengths = ", ".join("any" if length is None else str(length) for length in shape)
        raise IndexFormatError(
            f"{path}: {array.dtype} of shape {array.shape}, expected {np.dtype(dtype)} of shape "
            f"({lengths}); the file or the manifest was edited: rebuild"
        )
    plain = np.asarray(array).view(np.ndarray)
    plain.setflags(write=False)
    return plain


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
