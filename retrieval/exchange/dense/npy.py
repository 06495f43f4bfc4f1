"""Vectors as an ``.npy`` array, mapped into memory, with their ids beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.files import packed_file
from sluice.encoders.foundation.folder_swap import replaced_folder
from sluice.retrieval.documents.document import Document
from sluice.retrieval.exchange.dense.ids import check_count, ids_beside, map_array, write_ids

VECTORS = "vectors.npy"
IDS = "ids.txt"


class ArraySource:
    """The array and its ids; see ``read_dense_vectors``."""

    has_texts = False

    def __init__(self, path: Path) -> None:
        self._array = map_array(path)
        shape, dtype = self._array.shape, self._array.dtype
        if len(shape) != 2 or dtype.kind != "f":
            raise DataError(
                f"{path}: {dtype} of shape {shape}, expected float32, float16 or float64 [n, dim]"
            )
        self.rows, self.dim = int(shape[0]), int(shape[1])
        self._ids = ids_beside(path)
        check_count(path, self.rows, self._ids)

    def documents(self) -> Iterator[tuple[str, Document]]:
        """Yield (place, document without texts)."""
        return ((place, Document(name, "", "")) for place, name in self._ids)

    def blocks(self, size: int) -> Iterator[NDArray[Any]]:
        """Yield views of the mapped array."""
        for start in range(0, self.rows, size):
            yield self._array[start : start + size]


def open_source(path: Path) -> ArraySource:
    """Open ``X.npy``, or ``vectors.npy`` in a folder."""
    return ArraySource(path / VECTORS if path.is_dir() else path)


def write_file(
    path: Path,
    entries: Iterable[str] | Iterable[Document],
    chunks: Iterable[NDArray[np.float32]],
    dim: int,
) -> int:
    """Write ``X.npy`` and ``X.ids.txt``, or a folder; the ids are read before the vectors."""
    with ExitStack() as stack:
        if path.suffix == ".npy":
            vectors = stack.enter_context(packed_file(path))
            ids = stack.enter_context(packed_file(path.with_name(f"{path.stem}.ids.txt")))
        else:
            folder = stack.enter_context(replaced_folder(path, markers=(VECTORS,)))
            vectors = stack.enter_context((folder / VECTORS).open("wb"))
            ids = stack.enter_context((folder / IDS).open("wb"))
        rows = write_ids(ids, entries)
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)}
        npy.write_array_header_1_0(vectors, header)
        write_values(vectors, chunks, rows)
    return rows


def write_values(stream: IO[bytes], chunks: Iterable[NDArray[np.float32]], rows: int) -> None:
    """Write the values of ``rows`` vectors; ``DataError`` if there are more or fewer."""
    written = 0
    for chunk in chunks:
        stream.write(np.ascontiguousarray(chunk, dtype="<f4").data)
        written += len(chunk)
    if written != rows:
        raise DataError(f"vectors: {written:,} for {rows:,} ids; give one each")
