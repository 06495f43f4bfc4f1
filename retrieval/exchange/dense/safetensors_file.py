"""Reads and writes vectors as safetensors files, mapped into memory; also bfloat16.

The format is eight bytes with the header's length, a JSON header, and raw little-endian values. It
is read and written here, because the package holds all of a file in memory to write it.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import packed_file
from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import id_text
from sluice.retrieval.exchange.dense.arrays import (
    IdFile,
    check_count,
    ids_beside,
    write_ids,
    write_values,
)

VECTORS = "vectors"  # the tensor, and in a folder the file
LARGEST_HEADER = 100_000_000  # bytes; the format's own bound
LARGEST_IDS = 32_000_000  # bytes of ids that are put into the header
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class TensorSource:
    """One tensor of ``X.safetensors``, or of ``vectors.safetensors`` in a folder, and its ids."""

    has_texts = False

    def __init__(self, path: Path) -> None:
        self._path = path = path / f"{VECTORS}.safetensors" if path.is_dir() else path
        header, begin = _read_header(path)
        metadata = header.pop("__metadata__", None) or {}
        if not isinstance(metadata, dict):
            raise DataError(f"{path}: its __metadata__ is {metadata!r:.60}, expected texts by name")
        name, entry = _chosen(path, header)
        self._kind, self._start = str(entry["dtype"]), begin + int(entry["data_offsets"][0])
        self.rows, self.dim = (int(length) for length in entry["shape"])
        size = self.rows * self.dim * np.dtype(DTYPES[self._kind]).itemsize
        if self._start < begin or self._start + size > path.stat().st_size:
            raise DataError(f"{path}: the tensor {name!r} is cut short; is the file complete?")
        self._ids: list[Any] | IdFile
        if "ids" in metadata:
            self._ids = _listed(path, metadata["ids"])
            if len(self._ids) != self.rows:
                raise DataError(f"{path}: {self.rows:,} vectors, but {len(self._ids):,} ids")
        else:
            self._ids = ids_beside(path)
            check_count(path, self.rows, self._ids)

    def documents(self) -> Iterator[tuple[str, Document]]:
        """Yield (place, document without texts)."""
        if isinstance(self._ids, IdFile):
            for place, name in self._ids:
                yield place, Document(name, "", "")
            return
        for number, value in enumerate(self._ids):
            place = f"{self._path}: id {number:,} (from 0)"
            yield place, Document(id_text(f"{place}: the id", value), "", "")

    def blocks(self, size: int) -> Iterator[NDArray[Any]]:
        """Yield blocks of the mapped tensor; bfloat16 is widened to float32."""
        if not self.rows or not self.dim:
            return
        shape = (self.rows, self.dim)
        mapped = np.memmap(self._path, DTYPES[self._kind], "r", self._start, shape)
        for start in range(0, self.rows, size):
            block = np.asarray(mapped[start : start + size])
            if self._kind == "BF16":  # the upper half of a float32
                block = (block.astype(np.uint32) << np.uint32(16)).view(np.float32)
            yield block


def write_file(
    path: Path,
    entries: Iterable[str] | Iterable[Document],
    chunks: Iterable[NDArray[np.float32]],
    dim: int,
) -> int:
    """Write the tensor ``vectors`` with the ids in the header, or beside it if there are many."""
    beside = path.with_name(f"{path.stem}.ids.txt")
    with packed_file(path) as stream, tempfile.TemporaryFile() as ids:
        rows = write_ids(ids, entries)
        metadata = {}
        if ids.tell() <= LARGEST_IDS:
            ids.seek(0)
            names = ids.read().decode("utf-8").split("\n")[:-1]
            metadata["ids"] = json.dumps(names, ensure_ascii=False)
        else:
            ids.seek(0)
            with packed_file(beside) as copy:
                copy.writelines(ids)
        tensor = {"dtype": "F32", "shape": [rows, dim], "data_offsets": [0, 4 * rows * dim]}
        header = json.dumps({"__metadata__": metadata, VECTORS: tensor}, ensure_ascii=False)
        data = header.encode("utf-8")
        data += b" " * (-len(data) % 8)  # values begin at a multiple of eight
        stream.write(len(data).to_bytes(8, "little") + data)
        write_values(stream, chunks, rows)
    if metadata and not path.with_suffix(".npy").exists():  # whose ids they would be
        beside.unlink(missing_ok=True)  # left by another file, which this one replaces
    return rows


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header and where the values begin."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(LARGEST_HEADER, size - 8):
                raise ValueError(f"a header of {length:,} bytes in a file of {size:,}")
            header = json.loads(stream.read(length).decode("utf-8"))
        if not isinstance(header, dict):
            raise ValueError("its header is not a JSON object")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as safetensors ({error})") from None
    return header, 8 + length


def _chosen(path: Path, header: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the tensor ``vectors``, or the only one with two axes, checked."""
    shapes = {name: _shape(entry) for name, entry in header.items()}
    wide = [name for name, shape in shapes.items() if len(shape) == 2]
    name = VECTORS if VECTORS in header else wide[0] if len(wide) == 1 else ""
    if not name:
        shown = ", ".join(f"{name} {shape}" for name, shape in list(shapes.items())[:8]) or "none"
        raise DataError(
            f"{path}: tensors {shown}; expected one named {VECTORS!r}, or only one of [n, dim]"
        )
    entry, shape = header[name], shapes[name]
    if not isinstance(entry, dict):
        raise DataError(f"{path}: the tensor {name!r} is {entry!r:.60}, expected its description")
    if (
        len(shape) != 2
        or not isinstance(entry.get("dtype"), str)
        or entry.get("dtype") not in DTYPES
    ):
        raise DataError(
            f"{path}: the tensor {name!r} is {entry.get('dtype')} of shape {shape}, expected "
            f"{', '.join(DTYPES)} of [n, dim]"
        )
    offsets = entry.get("data_offsets")
    size = math.prod(shape) * np.dtype(DTYPES[entry["dtype"]]).itemsize
    if not _counts(offsets) or len(offsets) != 2 or offsets[1] - offsets[0] != size:
        raise DataError(f"{path}: the tensor {name!r} has offsets {offsets!r:.60}; damaged?")
    return name, entry


def _shape(entry: Any) -> tuple[int, ...]:
    shape = entry.get("shape") if isinstance(entry, dict) else None
    return tuple(shape) if _counts(shape) else ()


def _counts(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(
        isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values
    )


def _listed(path: Path, text: Any) -> list[Any]:
    try:
        ids = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: 'ids' of its metadata is not JSON ({error})") from None
    if not isinstance(ids, list):
        raise DataError(f"{path}: 'ids' of its metadata is a {type(ids).__name__}, expected a list")
    return ids
