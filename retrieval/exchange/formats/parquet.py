"""Vectors in parquet files, one or a list of them for each id, with texts, by row group."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import replaced_file
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.retrieval.documents.columns import MetadataReader
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import id_text
from sluice.retrieval.documents.json_files import missing_field
from sluice.retrieval.exchange.formats.arrays import ID_COLUMNS
from sluice.retrieval.exchange.formats.format import Entries, Format

Chunk = TypeVar("Chunk", bound=Sized)  # the vectors of some texts

VECTOR_COLUMNS = ("embedding", "vector", "emb", "embeddings", "vectors")
TEXT_COLUMNS = ("title", "text")
DOCUMENTS = 4096  # ids and texts read at a time
# What pyarrow raises for damaged files, beside its own errors.
UNREADABLE = (OSError, ValueError, OverflowError, MemoryError, KeyError)


class ParquetDocuments(ABC):
    """A file, or the files of a folder by name, of one schema: documents, and their vectors.

    A subclass says what the column of vectors holds.
    """

    expected: ClassVar[str]  # of the column of vectors, for an error

    @staticmethod
    @abstractmethod
    def holds(kind: Any) -> bool:
        """Return whether a column of this type is one of vectors."""

    def __init__(self, path: Path) -> None:
        paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not paths:
            raise DataError(f"{path}: a folder without parquet files")
        self._path = paths[0]
        self._files = [_open_file(path) for path in paths]
        schema = self._files[0].schema_arrow
        self._id = _column(self._path, schema.names, ID_COLUMNS, "ids")
        self._vector = _column(self._path, schema.names, VECTOR_COLUMNS, "vectors")
        for path, file in zip(paths, self._files, strict=True):
            self._check_types(path, file.schema_arrow)
        self._document_columns = [
            name
            for name in schema.names
            if name in (self._id, *TEXT_COLUMNS) or not is_vectors(schema.field(name).type)
        ]
        self._paths = paths
        self.rows = sum(int(file.metadata.num_rows) for file in self._files)
        self.has_texts = any(name in schema.names for name in TEXT_COLUMNS)

    def documents(self) -> Iterator[tuple[str, Document]]:
        """Yield (place, document); other columns than id, title, text and vector are metadata."""
        metadata = MetadataReader()
        for path, file in zip(self._paths, self._files, strict=True):
            names = [name for name in file.schema_arrow.names if name in self._document_columns]
            row = 0
            for batch in _batches(path, file, DOCUMENTS, names):
                for values in _rows(path, batch):
                    yield (
                        f"{path}: row {row:,}",
                        self._document(f"{path}: row {row:,}", values, metadata),
                    )
                    row += 1
        metadata.warn(self._path)

    def _document(self, place: str, values: dict[str, Any], metadata: MetadataReader) -> Document:
        name = id_text(f"{place}, column {self._id!r}", values.pop(self._id))
        title, text = (values.pop(column, None) for column in TEXT_COLUMNS)
        for column, value in zip(TEXT_COLUMNS, (title, text), strict=True):
            if value is not None and not isinstance(value, str):
                raise DataError(f"{place}: column {column!r} is {value!r:.60}, expected a text")
        nested = values.pop("metadata", None)  # as BEIR's files have it
        if isinstance(nested, dict):
            values = {**nested, **values}
        elif nested is not None:
            values["metadata"] = nested
        return Document(name, title or "", text or "", metadata.kept(values))

    def vector_columns(self, size: int) -> Iterator[tuple[str, Any, int]]:
        """Yield (place, column, its first row in the file), of ``size`` documents at a time."""
        for path, file in zip(self._paths, self._files, strict=True):
            row = 0
            for batch in _batches(path, file, size, [self._vector]):
                if len(batch):
                    yield f"{path}: column {self._vector!r}", batch.column(0), row
                row += len(batch)

    @property
    def declared_width(self) -> int | None:
        """How many numbers the type of the column says a vector has; None where it does not."""
        from pyarrow import types

        kind = self._files[0].schema_arrow.field(self._vector).type
        while kind.num_fields == 1 and is_vectors(kind.value_type):  # lists of vectors
            kind = kind.value_type
        return int(kind.list_size) if types.is_fixed_size_list(kind) else None

    def _check_types(self, path: Path, schema: Any) -> None:
        from pyarrow import types

        for column in (self._id, self._vector):
            if column not in schema.names:
                raise DataError(
                    f"{path}: columns {', '.join(schema.names)}; no {column!r}, which the first "
                    "file has; files of one folder have the same columns"
                )
        kind = schema.field(self._vector).type
        if not self.holds(kind):
            raise DataError(
                f"{path}: column {self._vector!r} holds {kind}, expected {self.expected}"
            )
        ids = schema.field(self._id).type
        ids = ids.value_type if types.is_dictionary(ids) else ids
        if not (types.is_string(ids) or types.is_large_string(ids) or types.is_integer(ids)):
            raise DataError(
                f"{path}: column {self._id!r} holds {ids}, expected texts or whole numbers"
            )


class ParquetSource(ParquetDocuments):
    """Documents with one vector each; see ``read_dense_vectors``."""

    expected = "lists of floats"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        declared = self.declared_width
        first = () if declared is not None else self.vector_columns(1)
        self.dim = declared or next((_matrix(*each).shape[1] for each in first), 0)

    @staticmethod
    def holds(kind: Any) -> bool:
        """Return whether a column holds lists of floats."""
        return is_vector(kind)

    def blocks(self, size: int) -> Iterator[NDArray[Any]]:
        """Yield the vectors; ``DataError`` for missing ones and for other widths."""
        first = 0
        for block in itertools.starmap(_matrix, self.vector_columns(size)):
            if block.shape[1] != self.dim:
                raise DataError(
                    f"{self._path}: {block.shape[1]} dimensions from vector {first:,} on, expected "
                    f"{self.dim} as in the first"
                )
            first += len(block)
            yield block


class NestedSource(ParquetDocuments):
    """Documents with a list of vectors each; columns as in ``read_dense_vectors``."""

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


def write_dense(
    path: Path, entries: Entries, chunks: Iterable[NDArray[np.float32]], dim: int
) -> int:
    """Write columns ``id`` and ``embedding``; of documents ``title`` and ``text`` as well."""
    return _write_columns(path, entries, chunks, _list_type(dim), lambda each: _lists(each, dim))


def write_nested(path: Path, entries: Entries, chunks: Iterable[TokenVectors], dim: int) -> int:
    """Write the same columns with a list of vectors for each id."""
    import pyarrow as pa

    def column(chunk: TokenVectors) -> Any:
        return pa.LargeListArray.from_arrays(pa.array(chunk.bounds), _lists(chunk.values, dim))

    return _write_columns(path, entries, chunks, pa.large_list(_list_type(dim)), column)


def _list_type(dim: int) -> Any:
    import pyarrow as pa

    return pa.list_(pa.float32(), dim) if dim else pa.list_(pa.float32())


def _lists(vectors: NDArray[np.float32], dim: int) -> Any:
    import pyarrow as pa

    values = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(values, dim)


def _write_columns(
    path: Path,
    entries: Entries,
    chunks: Iterable[Chunk],
    kind: Any,
    column: Callable[[Chunk], Any],
) -> int:
    """Write ids, of documents ``title`` and ``text`` too, and ``column(chunk)`` as ``embedding``.

    ``kind`` is the column's type. Returns how many rows were written.
    """
    import pyarrow as pa
    from pyarrow import parquet

    stream = iter(entries)
    first = next(stream, None)
    texts = isinstance(first, Document)
    names = ["id", *(TEXT_COLUMNS if texts else ())]
    schema = pa.schema([*((name, pa.string()) for name in names), ("embedding", kind)])
    rows = 0
    waiting: list[Any] = [] if first is None else [first]
    with replaced_file(path) as file:
        with parquet.ParquetWriter(
            file, schema, use_dictionary=False, compression="zstd", compression_level=1
        ) as writer:
            for chunk in filter(len, chunks):
                waiting += islice(stream, len(chunk) - len(waiting))
                if len(waiting) != len(chunk):
                    raise DataError(
                        f"vectors: more than {rows + len(waiting):,} for {rows + len(waiting):,} "
                        "ids; expected one each"
                    )
                columns = [list(column) for column in zip(*waiting, strict=True)] if texts else []
                ids = columns[:3] if texts else [waiting]
                lists = column(chunk)
                writer.write_table(pa.table([*map(_strings, ids), lists], schema=schema))
                rows += len(chunk)
                waiting = []
        if waiting or next(stream, None) is not None:
            raise DataError(f"vectors: {rows:,} for more ids; expected one each")
    return rows


def _strings(values: list[str]) -> Any:
    import pyarrow as pa

    try:
        return pa.array(values, pa.string())
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"ids or texts: {error}; expected texts") from None


def _open_file(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path, memory_map=True)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (pa.ArrowException, *UNREADABLE) as error:
        raise DataError(f"{path}: not readable as parquet ({error})") from None


def _batches(path: Path, file: Any, size: int, columns: list[str]) -> Iterator[Any]:
    import pyarrow as pa

    try:
        yield from file.iter_batches(size, columns=columns)
    except (pa.ArrowException, *UNREADABLE) as error:
        raise _cut_off(path, error) from None


def _rows(path: Path, batch: Any) -> list[dict[str, Any]]:
    import pyarrow as pa

    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except (pa.ArrowException, *UNREADABLE) as error:  # a text that is not UTF-8, an odd date
        raise _cut_off(path, error) from None
    return rows


def _cut_off(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: cannot be read any further ({error}); fetch the file again")


def _column(path: Path, names: list[str], known: tuple[str, ...], what: str) -> str:
    chosen = [name for name in names if name in known]
    if len(chosen) == 1:
        return chosen[0]
    fault = missing_field(known[0], names, "column")
    if chosen:
        fault = f"the columns {' and '.join(chosen)} may both be the {what}: rename one"
    raise DataError(f"{path}: {fault}; the {what} are in one of {', '.join(known)}")


def is_nested_file(path: Path) -> bool:
    """Return whether a column of vectors holds lists of them; False where none can be found."""
    paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not paths or not paths[0].exists():
        return False
    schema = _open_file(paths[0]).schema_arrow
    kinds = [schema.field(name).type for name in schema.names if name in VECTOR_COLUMNS]
    return any(is_list(kind) and is_vector(kind.value_type) for kind in kinds)


def is_list(kind: Any) -> bool:
    """Return whether a column of this type holds lists, of any length or of one."""
    from pyarrow import types

    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(test(kind) for test in lists)


def is_vector(kind: Any) -> bool:
    """Return whether a column of this type holds lists of floats."""
    from pyarrow import types

    return is_list(kind) and bool(types.is_floating(kind.value_type))


def is_vectors(kind: Any) -> bool:
    """Return whether a column of this type holds vectors, or lists of vectors."""
    return is_vector(kind) or (is_list(kind) and is_vector(kind.value_type))


def _matrix(place: str, column: Any, row: int) -> NDArray[Any]:
    """Return a column of lists of equal length as ``[n, dim]``; ``row`` is the first one's."""
    if column.null_count:
        at = column.is_null().index(True).as_py()
        raise DataError(f"{place}, row {row + at:,}: no vector; expected one in each row")
    widths = np.asarray(column.value_lengths().to_numpy(zero_copy_only=False))
    other = np.flatnonzero(widths != widths[0])
    if len(other):
        raise DataError(
            f"{place}, row {row + other[0]:,}: {widths[other[0]]} values, but {widths[0]} in row "
            f"{row:,}; vectors have one width"
        )
    if not widths[0]:
        raise DataError(f"{place}, row {row:,}: an empty vector")
    values = column.flatten()
    if values.null_count:
        at = values.is_null().index(True).as_py() // widths[0]
        raise DataError(f"{place}, row {row + at:,}: null among the values; expected numbers")
    matrix: NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(len(column), widths[0])
    return matrix


DENSE: Final = Format(
    "parquet", "dense", ParquetSource, write_dense, (".parquet",), "*.parquet", texts=True
)
NESTED: Final = Format(
    "parquet", "tokens", NestedSource, write_nested, (".parquet",), "*.parquet", texts=True
)
