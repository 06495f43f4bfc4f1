"""Vectors as named arrays in one file: safetensors, and numpy archives of token vectors."""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeGuard

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.arrays import read_array_header
from sluice.encoders.foundation.disk.files import packed_file
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.retrieval.documents.document import Document
from sluice.retrieval.exchange.formats.arrays import (
    UNREADABLE,
    IdFile,
    add_array,
    check_count,
    ids_beside,
    list_ids,
    write_ids,
    write_values,
)
from sluice.retrieval.exchange.formats.format import Entries, Format

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
        name, entry = _choose_tensor(path, header)
        self._kind, self._start = str(entry["dtype"]), begin + int(entry["data_offsets"][0])
        self.rows, self.dim = (int(length) for length in entry["shape"])
        size = self.rows * self.dim * np.dtype(DTYPES[self._kind]).itemsize
        if self._start < begin or self._start + size > path.stat().st_size:
            raise DataError(f"{path}: the tensor {name!r} is cut short; is the file complete?")
        self._ids: list[Any] | IdFile
        if "ids" in metadata:
            self._ids = _parse_ids(path, metadata["ids"])
            if len(self._ids) != self.rows:
                raise DataError(f"{path}: {self.rows:,} vectors, but {len(self._ids):,} ids")
        else:
            self._ids = ids_beside(path)
            check_count(path, self.rows, self._ids)

    def documents(self) -> Iterator[tuple[str, Document]]:
        """Yield (place, document without texts)."""
        ids = self._ids if isinstance(self._ids, IdFile) else list_ids(self._path, self._ids)
        return ((place, Document(name, "", "")) for place, name in ids)

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


def write_tensor(
    path: Path, entries: Entries, chunks: Iterable[NDArray[np.float32]], dim: int
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


def _choose_tensor(path: Path, header: dict[str, Any]) -> tuple[str, dict[str, Any]]:
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


def _parse_ids(path: Path, text: Any) -> list[Any]:
    try:
        ids = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: 'ids' of its metadata is not JSON ({error})") from None
    if not isinstance(ids, list):
        raise DataError(f"{path}: 'ids' of its metadata is a {type(ids).__name__}, expected a list")
    return ids


NAMES = ("values", "bounds", "ids")


class ArchiveSource:
    """``X.npz`` with three arrays: ``values``, floats ``[tokens, dim]``, all texts end to end.

    ``bounds`` are whole numbers ``[n + 1]``: text i has the rows from ``bounds[i]`` to the next.
    ``ids`` are texts or whole numbers ``[n]``. Arrays of objects are refused, because reading them
    would run code.
    """

    has_texts = False

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._open() as archive:
            known = archive.namelist()
            missing = [name for name in NAMES if f"{name}.npy" not in known]
            if missing:
                raise DataError(
                    f"{path}: no array {' and '.join(missing)}; it has "
                    f"{', '.join(known) or 'none'}; expected values [tokens, dim], bounds [n + 1] "
                    "and ids [n]"
                )
            with archive.open("values.npy") as stream:
                shape, fortran, dtype = read_array_header(stream)
            if len(shape) != 2 or dtype.kind != "f" or fortran:
                raise DataError(
                    f"{path}: values are {dtype} of shape {shape}, expected floats [tokens, dim], "
                    "row after row"
                )
            self._tokens, self.dim = int(shape[0]), int(shape[1])
            bounds = _whole(archive, "bounds.npy")
            self._ids = _whole(archive, "ids.npy")
        if bounds.ndim != 1 or bounds.dtype.kind not in "iu" or not len(bounds):
            raise DataError(
                f"{path}: bounds are {bounds.dtype} of shape {bounds.shape}, expected whole "
                "numbers [n + 1]"
            )
        self._bounds = bounds.astype(np.int64)
        if self._bounds[0] or (np.diff(self._bounds) < 0).any() or bounds[-1] != self._tokens:
            raise DataError(
                f"{path}: bounds must rise from 0 to the number of vectors, {self._tokens:,}"
            )
        if self._ids.ndim != 1 or self._ids.dtype.kind not in "USiu":
            raise DataError(
                f"{path}: ids are {self._ids.dtype} of shape {self._ids.shape}, expected texts or "
                "whole numbers [n]"
            )
        self.rows = len(bounds) - 1

    @contextlib.contextmanager
    def _open(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self._path) as archive:
                yield archive
        except FileNotFoundError:
            raise DataError(f"{self._path}: no such file") from None
        except UNREADABLE as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{self._path}: not readable as a numpy archive ({error})") from None

    def documents(self) -> Iterator[tuple[str, Document]]:
        """Yield (place, document without texts)."""
        ids = list_ids(self._path, self._ids)
        return ((place, Document(name, "", "")) for place, name in ids)

    def blocks(self, size: int) -> Iterator[TokenVectors]:
        """Yield vectors as they are read from the archive, which is never whole in memory."""
        with self._open() as archive, archive.open("values.npy") as stream:
            _, _, dtype = read_array_header(stream)
            for start in range(0, self.rows, size):
                bounds = self._bounds[start : start + size + 1]
                count = int(bounds[-1] - bounds[0])
                wanted = count * self.dim * dtype.itemsize
                data = stream.read(wanted)
                if len(data) != wanted:
                    raise DataError(f"{self._path}: values are cut short; is the file complete?")
                values = np.frombuffer(data, dtype).reshape(count, self.dim)
                with np.errstate(over="ignore", invalid="ignore"):
                    yield TokenVectors(values.astype(np.float32), bounds - bounds[0])


def _whole(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(name) as stream:
        shape, fortran, dtype = read_array_header(stream)
        data = stream.read(math.prod(shape) * dtype.itemsize)
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def write_archive(path: Path, entries: Entries, chunks: Iterable[TokenVectors], dim: int) -> int:
    """Write the archive; values go through a temporary file, as their number comes first."""
    lengths, tokens = [np.zeros(1, np.int64)], 0
    ids = [entry.id if isinstance(entry, Document) else entry for entry in entries]
    with tempfile.TemporaryFile() as values:
        for chunk in chunks:
            values.write(np.ascontiguousarray(chunk.values, dtype="<f4").data)
            lengths.append(chunk.lengths)
            tokens += len(chunk.values)
        bounds = np.cumsum(np.concatenate(lengths), dtype=np.int64)
        if len(bounds) - 1 != len(ids):
            raise DataError(
                f"vectors: those of {len(bounds) - 1:,} texts for {len(ids):,} ids; expected one "
                "id for each"
            )
        names = np.array(ids, dtype=np.str_)
        if names.tolist() != ids:
            raise DataError("ids: one ends with a NUL character, which numpy drops; use parquet")
        with packed_file(path) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
            add_array(archive, "values", values, "<f4", (tokens, dim))
            for name, array in (("bounds", bounds), ("ids", names)):
                # Without the time of writing: equal contents make equal files.
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w") as stream:
                    npy.write_array(stream, array, allow_pickle=False)
    return len(ids)


SAFETENSORS: Final = Format(
    "safetensors", "dense", TensorSource, write_tensor, (".safetensors",), f"{VECTORS}.safetensors"
)
NPZ: Final = Format("npz", "tokens", ArchiveSource, write_archive, (".npz",))
