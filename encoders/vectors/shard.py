"""Reads and writes shards: immutable, checksummed files of vectors and their texts' hashes."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import commit, new_draft
from sluice.encoders.foundation.errors import IndexFormatError

Arrays = Mapping[str, NDArray[Any]]

MAGIC = b"sluicev1"
ALIGNMENT = 64  # bytes: of every array's start
BLOCK = 1 << 20  # bytes checked at a time
SUFFIX = ".vectors"
LARGEST_HEADER = 1 << 20
DTYPES = frozenset(("<f4", "<f2", "|i1", "<i4", "<i8", "|S16"))  # never one of objects


def write_shard(path: Path, facts: Mapping[str, Any], arrays: Arrays) -> None:
    """Write arrays and the facts that describe them as the file ``path``, in one step.

    Several processes may write the same file at once: the first stays. Layout: the magic number,
    the header's length (uint64), the header (JSON), the arrays, their CRC-32 with the header's.
    """
    entries, offset = {}, 0
    for name, array in arrays.items():
        entries[name] = [array.dtype.str, list(array.shape), offset]
        offset += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    header = json.dumps({**facts, "arrays": entries, "bytes": offset}).encode()
    header += b" " * (-(16 + len(header)) % ALIGNMENT)
    with new_draft(path) as draft:
        with draft.open("wb") as stream:
            start = MAGIC + len(header).to_bytes(8, "little") + header
            stream.write(start)
            checksum = zlib.crc32(start)
            for array in arrays.values():
                data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                for part in (data, bytes(-array.nbytes % ALIGNMENT)):
                    stream.write(part)
                    checksum = zlib.crc32(part, checksum)
            stream.write(checksum.to_bytes(4, "little"))
        if not path.exists():
            commit(draft, path)


class Shard:
    """A shard's file: opening reads the header and checks the size; arrays are mapped on demand.

    ``IndexFormatError`` for a file that is not a shard, or not of the size in its header.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as stream:
            start = stream.read(16)
            length = int.from_bytes(start[8:], "little")
            if start[:8] != MAGIC or length > LARGEST_HEADER:
                raise IndexFormatError(f"{path}: is not a file of vectors")
            header = stream.read(length)
        try:
            self.facts: dict[str, Any] = json.loads(header)
            self._entries = {
                str(name): (_known(dtype), tuple(map(int, shape)), 16 + length + int(offset))
                for name, (dtype, shape, offset) in self.facts["arrays"].items()
            }
            size = 16 + length + int(self.facts["bytes"]) + 4
            for name, (dtype, shape, begin) in self._entries.items():
                end = begin + dtype.itemsize * math.prod(shape)
                if min(shape, default=0) < 0 or begin < 16 + length or end > size - 4:
                    raise ValueError(f"the array {name!r} is not inside of the file")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise IndexFormatError(f"{path}: its header is damaged ({error})") from None
        actual = path.stat().st_size
        if actual != size:
            raise IndexFormatError(f"{path}: {actual:,} bytes, expected {size:,} by its header")

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def array(self, name: str) -> NDArray[Any]:
        """Return an array, mapped into memory as long as it is referred to."""
        try:
            dtype, shape, offset = self._entries[name]
        except KeyError:
            raise IndexFormatError(f"{self.path}: has no array {name!r}") from None
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.memmap(self.path, dtype, mode="r", offset=offset, shape=shape)

    def verify(self) -> None:
        """Raise ``IndexFormatError`` unless the checksum matches the content."""
        left, checksum = self.path.stat().st_size - 4, 0
        with self.path.open("rb") as stream:
            while left > 0:
                block = stream.read(min(BLOCK, left))
                if not block:
                    break
                checksum = zlib.crc32(block, checksum)
                left -= len(block)
            stored = stream.read(4)
        if left or stored != checksum.to_bytes(4, "little"):
            raise IndexFormatError(f"{self.path}: its checksum does not match its content")


def _known(dtype: Any) -> np.dtype[Any]:
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r}")
    return np.dtype(str(dtype))
