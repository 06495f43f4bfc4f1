"""Opens ``.npy`` arrays, memory-mapped and checked: every one that Sluice reads is opened here."""

from __future__ import annotations

import threading
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

from sluice.encoders.foundation.errors import IndexFormatError

# numpy parses headers as Python, which CPython 3.11 was seen to fail at in several threads at once.
_HEADERS = threading.Lock()

# What numpy's reader raises for a damaged header, beside OSError and ValueError.
_DAMAGED = (
    EOFError,
    OverflowError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TokenError,
    TypeError,
)
_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class ArrayHeader(NamedTuple):
    """What the header of an ``.npy`` file says."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]


def read_array_header(stream: IO[bytes]) -> ArrayHeader:
    """Read the header of an ``.npy`` stream, which then stands at the values.

    ``ValueError`` for a damaged one, and for an array of Python objects.
    """
    try:
        with _HEADERS:
            version = npy.read_magic(stream)
            # 3.0 is 2.0 with names of fields in UTF-8, which no array here has.
            header = ArrayHeader(*_READERS.get(version, npy.read_array_header_2_0)(stream))
    except _DAMAGED as error:
        raise ValueError(f"its header is damaged ({error})") from None
    if header.dtype.hasobject:
        raise ValueError(
            "an array of Python objects, which only pickle can read, and pickle runs any code; "
            "save numbers, or ids as texts: np.save(path, np.array(ids, 'U'))"
        )
    if not header.dtype.itemsize or not all(
        type(length) is int and 0 <= length < 2**63 for length in header.shape
    ):
        raise ValueError(f"its header is damaged ({header.dtype} of shape {header.shape})")
    return header


def map_array(path: Path) -> NDArray[Any]:
    """Map an ``.npy`` file into memory, read-only; never unpickles.

    ``ValueError`` or ``OSError`` for any other file, and for one shorter than its header says.
    """
    with path.open("rb") as stream:
        shape, fortran, dtype = read_array_header(stream)
        begin = stream.tell()
        size = dtype.itemsize
        for length in shape:
            size *= length
        if begin + size > path.stat().st_size:
            raise ValueError(
                f"its header speaks of {size:,} bytes of values, and it has "
                f"{path.stat().st_size - begin:,}; is it complete?"
            )
        if not size:
            return np.zeros(shape, dtype)
        order = "F" if fortran else "C"
        mapped = np.memmap(stream, dtype, mode="r", offset=begin, shape=shape, order=order)  # type: ignore[call-overload]
    return mapped  # type: ignore[no-any-return]


def open_array(
    path: Path, dtype: DTypeLike, shape: tuple[int | None, ...], *, mapped: bool = True
) -> NDArray[Any]:
    """Open an array that Sluice wrote, read-only, mapped into memory.

    In ``shape``, None stands for any length. ``IndexFormatError`` if the file is not such an array.
    """
    try:
        array = map_array(path)
    except (OSError, ValueError) as error:
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
    # As a plain view: indexing numpy's memmap class costs several times more.
    plain = np.asarray(array).view(np.ndarray) if mapped else np.array(array)
    plain.setflags(write=False)
    return plain
