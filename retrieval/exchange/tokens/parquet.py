"""Token vectors in parquet files: a list of vectors for each id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.retrieval.documents.document import Document
from sluice.retrieval.exchange.dense.parquet import (
    ParquetDocuments,
    is_list,
    is_vector,
    write_columns,
)


class NestedSource(ParquetDocuments):
    """Documents with a list of vectors each; see ``read_token_vectors``."""

    expected = "lists of lists of floats: a vector for each token"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.dim = self.declared_width or self._first_width()

    @staticmethod
    def holds(kind: Any) -> bool:
        """Return whether a column holds lists of vectors."""
        return is_list(kind) and is_vector(kind.value_type)

    def _first_width(self) -> int:
        for _, column, _ in self.vector_columns(1):
            lengths = column.flatten().value_lengths()
            if len(lengths):
                return int(lengths[0].as_py() or 0)
        return 0

    def blocks(self, size: int) -> Iterator[TokenVectors]:
        """Yield the vectors; ``DataError`` for missing ones and for other widths."""
        for place, column, row in self.vector_columns(size):
            if column.null_count:
                at = column.is_null().index(True).as_py()
                raise DataError(f"{place}, row {row + at:,}: no list of vectors")
            lengths = column.value_lengths().to_numpy(zero_copy_only=False)
            bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            vectors = column.flatten()
            widths = vectors.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False)
            wrong = np.flatnonzero(widths != self.dim)
            if len(wrong):
                at = int(np.searchsorted(bounds, wrong[0], side="right")) - 1
                raise DataError(
                    f"{place}, row {row + at:,}: a vector of {max(0, int(widths[wrong[0]]))} "
                    f"values, expected {self.dim} as in the first"
                )
            values = vectors.flatten()
            if values.null_count:
                at = values.is_null().index(True).as_py() // max(1, self.dim)
                at = int(np.searchsorted(bounds, at, side="right")) - 1
                raise DataError(f"{place}, row {row + at:,}: null among the values")
            floats = values.to_numpy(zero_copy_only=False)
            with np.errstate(over="ignore", invalid="ignore"):
                matrix = floats.astype(np.float32).reshape(len(vectors), self.dim)
            yield TokenVectors(matrix, bounds)


def write_file(
    path: Path,
    entries: Iterable[str] | Iterable[Document],
    chunks: Iterable[TokenVectors],
    dim: int,
) -> int:
    """Write columns ``id`` and ``embedding``; of documents ``title`` and ``text`` as well."""
    import pyarrow as pa

    vector = pa.list_(pa.float32(), dim) if dim else pa.list_(pa.float32())

    def column(chunk: TokenVectors) -> Any:
        values = pa.array(np.ascontiguousarray(chunk.values).reshape(-1))
        vectors = pa.FixedSizeListArray.from_arrays(values, dim)
        return pa.LargeListArray.from_arrays(pa.array(chunk.bounds), vectors)

    return write_columns(path, entries, chunks, pa.large_list(vector), column)
