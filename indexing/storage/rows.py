"""Vectors and other arrays by row: in memory, mapped or spooled; ``.npy`` files in chunks."""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.errors import IndexFormatError
from sluice.indexing.checks import Dense
from sluice.indexing.hits import Hits, Mask, best_first
from sluice.indexing.storage.exact_scores import Metric, Norms, exact_scores, norms_of


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


JOINED = 65_536  # rows up to which small additions are joined

Chunk = tuple[NDArray[Any], ...]  # the same rows of each array
_ALL: NDArray[np.int64] = np.empty(0, dtype=np.int64)


class ChunkedRows:
    """Rows 0, 1, 2, ... of several arrays; they are only added, or compacted.

    The chunks are a function of how many rows came when, so objects that are filled alike can be
    read chunk by chunk together.
    """

    def __init__(self) -> None:
        self._chunks: list[Any] = []

    def __len__(self) -> int:
        return sum(len(chunk[0]) for chunk in self._chunks)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for chunk in self._chunks for array in chunk)

    def chunks(self) -> Sequence[Any]:
        """Return the chunks, in the order of their rows."""
        return tuple(self._chunks)

    def share(self, others: Sequence[Self]) -> None:
        """Hold the rows of ``others``, one after the other, in the same memory."""
        self._chunks = [chunk for other in others for chunk in other.chunks() if len(chunk[0])]

    def gathered(self, order: NDArray[np.int64]) -> None:
        """Make one chunk, a copy, of the rows in ``order``."""
        columns = zip(*self._chunks, strict=True)
        self._chunks = [tuple(np.concatenate(parts)[order] for parts in columns)]

    def _extend(self, added: Chunk, join: bool = True) -> None:
        """Add rows that nobody else holds; ``join`` may copy the ones before: fewer chunks."""
        joined, total = [added], len(added[0])
        # Joined like the digits of a binary counter: each row is copied O(log) times.
        while join and self._chunks:
            last = len(self._chunks[-1][0])
            if last > min(total, JOINED - total):
                break
            total += last
            joined.insert(0, self._chunks.pop())
        if len(joined) > 1:
            joined = [tuple(np.concatenate(parts) for parts in zip(*joined, strict=True))]
        self._chunks.extend(joined)

    def keep_only(self, allowed: Mask) -> None:
        """Drop the rows that ``allowed`` excludes; the others move up in order."""
        remaining, first = [], 0
        for chunk in self._chunks:
            mask = allowed[first : first + len(chunk[0])]
            remaining.append(tuple(array[mask] for array in chunk))
            first += len(mask)
        # An empty chunk stays if nothing else does: it remembers the width.
        self._chunks = [chunk for chunk in remaining if len(chunk[0])] or remaining[:1]

    def _write_columns(self, folder: Path, columns: Sequence[tuple[str, DTypeLike, int]]) -> None:
        """Write one file for each array; a column is a name, a dtype and a width (0: no axis)."""
        for place, (name, dtype, width) in enumerate(columns):
            # The first array is the matrix, also while no vector has given it a width.
            shape = (len(self), width) if width or not place else (len(self),)
            parts = passing(chunk[place] for chunk in self._chunks)
            write_array(folder / f"{name}.npy", parts, shape, dtype)

    def _read_columns(
        self, folder: Path, columns: Sequence[tuple[str, DTypeLike, int]], rows: int
    ) -> None:
        """Map what was written, as one chunk."""
        self._chunks = [
            tuple(
                open_array(folder / f"{name}.npy", dtype, (rows, width) if width else (rows,))
                for name, dtype, width in columns
            )
        ]


class Picked(NamedTuple):
    """Documents of one chunk: places ``start`` to ``start + documents``, or just ``places``."""

    chunk: int
    first_row: int  # of the chunk
    start: int
    documents: int
    places: NDArray[np.int64]  # ascending; empty when all from start are meant


def picked(chunks: Sequence[Chunk], size: int, allowed: Mask | None) -> Iterator[Picked]:
    """Yield the allowed documents in row order, at most ``size`` at a time."""
    first_row = 0
    for chunk, (column, *_) in enumerate(chunks):
        total = len(column)
        if allowed is None or (mask := allowed[first_row : first_row + total]).all():
            for start in range(0, total, size):
                yield Picked(chunk, first_row, start, min(size, total - start), _ALL)
        else:
            places = np.flatnonzero(mask)
            for start in range(0, len(places), size):
                part = places[start : start + size]
                together = part[-1] - part[0] + 1 == len(part)
                yield Picked(chunk, first_row, int(part[0]), len(part), _ALL if together else part)
        first_row += total


class DenseRows(ChunkedRows):
    """The vectors of rows 0, 1, 2, ... with their norms; rows are only added, or compacted."""

    def __init__(self) -> None:
        super().__init__()
        self._spool: DenseSpool | None = None
        self._range: tuple[float, float] | None = None  # of the norms

    @property
    def width(self) -> int | None:
        """Dimensions of the vectors; None before the first ``append``."""
        return int(self._chunks[0][0].shape[1]) if self._chunks else None

    def share(self, others: Sequence[Self]) -> None:
        """Hold the rows of ``others``, one after the other, in the same memory."""
        super().share(others)
        ranges = [each for each in (other.norm_range() for other in others) if each[1] > 0]
        least = min((each[0] for each in ranges), default=1.0)
        self._range = least, max((each[1] for each in ranges), default=0.0)

    def append(self, vectors: Dense) -> Norms:
        """Add a copy of checked vectors ``[n, width]`` as the next rows; return their norms."""
        norms, self._range = norms_of(vectors), None
        if self._spool is None:
            self._extend((np.array(vectors), norms))
        else:
            self._extend((self._spool.append(vectors), norms), join=False)
        return norms

    def norm_range(self) -> tuple[float, float]:
        """Return the least norm above 0 and the largest; ``(1, 0)`` where all are 0."""
        if self._range is None:
            norms = [norms[norms > 0] for _, norms in self._chunks]
            least = min((float(each.min()) for each in norms if len(each)), default=1.0)
            largest = max((float(each.max()) for each in norms if len(each)), default=0.0)
            self._range = least, largest
        return self._range

    @property
    def spooled(self) -> bool:
        """Whether vectors go to a file, each addition as a chunk of its own."""
        return self._spool is not None

    def spool(self, folder: Path) -> None:
        """Keep the vectors added from now on in a file of ``folder``, and map them from there."""
        self._spool = DenseSpool(folder)

    def blocks(self, size: int, allowed: Mask) -> Iterator[Dense]:
        """Yield the vectors of allowed rows, at most ``size`` at a time, in ascending order."""
        first = 0
        for vectors, _ in self._chunks:
            for start in range(0, len(vectors), size):
                part = vectors[start : start + size]
                mask = allowed[first + start : first + start + len(part)]
                if mask.any():
                    yield part[mask]
            first += len(vectors)

    def gather(self, rows: NDArray[np.int64]) -> tuple[Dense, Norms]:
        """Return vectors ``[n, width]`` and norms of any rows, in their order."""
        if len(self._chunks) == 1:
            vectors, norms = self._chunks[0]
            return vectors[rows], norms[rows]
        ends = np.cumsum([len(norms) for _, norms in self._chunks])
        homes = np.searchsorted(ends, rows, side="right")
        vectors = np.empty((len(rows), self.width or 0), np.float32)
        norms = np.empty(len(rows))
        for home in np.unique(homes):
            here = homes == home
            local = rows[here] - (ends[home] - len(self._chunks[home][1]))
            vectors[here], norms[here] = (part[local] for part in self._chunks[home])
        return vectors, norms

    def rescored(
        self, queries: Dense, candidates: NDArray[np.int64], k: int, metric: Metric
    ) -> Hits:
        """Return the ``k`` best of each query's candidate rows ``[n, c]`` by exact score.

        Ties go to the lower row; -1 is skipped, and no row may occur twice in a line.
        """
        hits = Hits.missing(len(queries), k)
        lengths = norms_of(queries)
        for place, (query, line) in enumerate(zip(queries, candidates, strict=True)):
            rows = line[line >= 0]
            if len(rows):
                vectors, norms = self.gather(rows)
                scores = exact_scores(query, vectors, metric, float(lengths[place]), norms)
                best, scores = best_first(rows, scores, k)
                hits.rows[place, : len(best)], hits.scores[place, : len(best)] = best, scores
        return hits

    def keep_only(self, allowed: Mask) -> None:
        """Drop the rows that ``allowed`` excludes; the others move up in order."""
        super().keep_only(allowed)
        self._range = None

    def write(self, folder: Path) -> dict[str, Any]:
        """Write ``vectors.npy`` and ``norms.npy``; return the facts ``read`` needs."""
        width = self.width or 0
        self._write_columns(folder, _columns(width))
        return {"rows": len(self), "dim": width}

    @classmethod
    def read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        """Open what ``write`` wrote, mapped into memory."""
        opened = cls()
        rows, width = fact(facts, "rows", int, folder), fact(facts, "dim", int, folder)
        if width:
            opened._read_columns(folder, _columns(width), rows)
        else:
            open_array(folder / "vectors.npy", np.float32, (rows, 0))
        return opened


def _columns(width: int) -> list[tuple[str, DTypeLike, int]]:
    return [("vectors", np.float32, width), ("norms", np.float64, 0)]


class DenseSpool:
    """A file that vectors are appended to, and from which those are mapped.

    For an index that is filled and saved without ever being in memory completely. The file lies in
    ``folder``, has no name, and is deleted with the object and what was mapped from it.
    """

    def __init__(self, folder: Path, dtype: DTypeLike = np.float32) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._dtype = np.dtype(dtype)
        self._stream = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        weakref.finalize(self, self._stream.close)
        self._size = 0

    def append(self, vectors: NDArray[Any]) -> NDArray[Any]:
        """Write vectors ``[n, width]`` or numbers ``[n]``, at least one; return them mapped."""
        self._stream.seek(self._size)  # over what an append that failed may have left
        self._stream.write(np.ascontiguousarray(vectors, self._dtype).data)
        self._stream.flush()
        start, self._size = self._size, self._size + self._dtype.itemsize * vectors.size
        return np.memmap(self._stream, self._dtype, mode="r", offset=start, shape=vectors.shape)


def passing(chunks: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yield chunks, and free the memory of each mapped one when the next is requested."""
    for chunk in chunks:
        yield chunk
        mapped = getattr(chunk, "_mmap", None)
        if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)  # the file is read again on access
