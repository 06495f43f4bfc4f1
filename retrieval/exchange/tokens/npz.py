"""Token vectors as numpy archives: three arrays in a zip file, read and written as streams."""

from __future__ import annotations

import contextlib
import lzma
import math
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.arrays import read_array_header
from sluice.encoders.foundation.disk.files import packed_file
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import id_text

NAMES = ("values", "bounds", "ids")
# What zipfile and numpy raise for damaged files.
UNREADABLE = (
    OSError, ValueError, OverflowError, MemoryError, EOFError, zipfile.BadZipFile, zlib.error,
    lzma.LZMAError, NotImplementedError, RuntimeError,
)  # fmt: skip


class ArchiveSource:
    """``X.npz`` with ``values``, ``bounds`` and ``ids``; see ``read_token_vectors``."""

    has_texts = False

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._opened() as archive:
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
    def _opened(self) -> Iterator[zipfile.ZipFile]:
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
        for number, value in enumerate(self._ids):
            place = f"{self._path}: id {number:,} (from 0)"
            yield place, Document(id_text(f"{place}: the id", value), "", "")

    def blocks(self, size: int) -> Iterator[TokenVectors]:
        """Yield vectors as they are read from the archive, which is never whole in memory."""
        with self._opened() as archive, archive.open("values.npy") as stream:
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


def write_file(
    path: Path,
    entries: Iterable[str] | Iterable[Document],
    chunks: Iterable[TokenVectors],
    dim: int,
) -> int:
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
        values.seek(0)
        with packed_file(path) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
            with archive.open(zipfile.ZipInfo("values.npy"), "w", force_zip64=True) as stream:
                header = {"descr": "<f4", "fortran_order": False, "shape": (tokens, dim)}
                npy.write_array_header_1_0(stream, header)
                _copy(values, stream)
            for name, array in (("bounds", bounds), ("ids", names)):
                # Without the time of writing: equal contents make equal files.
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w") as stream:
                    npy.write_array(stream, array, allow_pickle=False)
    return len(ids)


def _copy(source: IO[bytes], target: IO[bytes]) -> None:
    while part := source.read(1 << 20):
        target.write(part)
