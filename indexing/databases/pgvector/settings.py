"""The settings of an index in PostgreSQL, checked before it connects, and its binary forms."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, get_args

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import whole_number
from sluice.indexing.databases.index import refuse_secrets
from sluice.indexing.storage.exact_scores import Metric, checked_metric

Column: TypeAlias = Literal["vector", "halfvec", "sparsevec"]
Method: TypeAlias = Literal["exact", "hnsw"]

REMEDY = (
    "put the password in the environment variable PGPASSWORD, or in the file ~/.pgpass, and leave "
    "it out here"
)
LONGEST_NAME = 40  # bytes; PostgreSQL cuts names at 63, and ours get an ending
DIMENSIONS: dict[Column, int] = {"vector": 16_000, "halfvec": 16_000, "sparsevec": 10**9}
HNSW_DIMENSIONS: dict[Column, int] = {"vector": 2_000, "halfvec": 4_000, "sparsevec": 10**9}
NON_ZEROS, HNSW_NON_ZEROS = 16_000, 1_000  # of one sparse vector
ENVIRONMENT = "postgresql://"  # the server that PGHOST, PGDATABASE and PGUSER name


@dataclass(frozen=True)
@checked()
class Settings:
    """What ``PgvectorIndex`` was given; ``column`` is None until the first vectors decide it."""

    dsn: str = ""
    table: str = "sluice"
    column: Column | None = None
    metric: Metric = "ip"
    method: Method = "exact"
    m: Annotated[int, Interval(ge=2, le=100)] = 16
    ef_construction: int = 64
    prune: int | None = None

    def __post_init__(self) -> None:
        _check_dsn(self.dsn)
        object.__setattr__(self, "dsn", self.dsn or ENVIRONMENT)
        if not isinstance(self.table, str) or not _is_name(self.table):
            raise ConfigError(
                f"table: {self.table!r:.80}; expected a name of 1 to {LONGEST_NAME} bytes without "
                "line ends and %, which the names of the tables begin with"
            )
        checked_metric(self.metric)
        for name, value, known in (
            ("column", self.column, (None, *get_args(Column))),
            ("method", self.method, get_args(Method)),
        ):
            if value not in known:
                names = [each for each in known if each]
                raise ConfigError(
                    f"{name}: {value!r}; expected one of {', '.join(names)}"
                    f"{suggest(str(value), names)}"
                )
        whole_number(self.ef_construction, "ef_construction", 2 * self.m, 1000)
        if self.method == "exact" and (self.m, self.ef_construction) != (16, 64):
            raise ConfigError("m, ef_construction: are those of method: hnsw; leave them out")
        if self.column == "sparsevec" and self.metric != "ip":
            raise ConfigError(f"metric: {self.metric}; sparse vectors have inner products alone")
        if self.prune is not None:
            whole_number(self.prune, "prune", 1, self.most_non_zeros)
            if self.column in ("vector", "halfvec"):
                raise ConfigError(
                    f"prune: {self.prune}; only sparse vectors are pruned: leave it out"
                )

    @property
    def most_non_zeros(self) -> int:
        """The most weights of a sparse vector that can be stored."""
        return HNSW_NON_ZEROS if self.method == "hnsw" else NON_ZEROS

    def check_width(self, width: int, column: Column) -> None:
        """Raise ``ConfigError`` for vectors wider than the column, or its graph, can be."""
        most = (HNSW_DIMENSIONS if self.method == "hnsw" else DIMENSIONS)[column]
        if width <= most:
            return
        remedy = "take {type: flat} or {type: faiss}"
        if column == "vector" and width <= HNSW_DIMENSIONS["halfvec"]:
            remedy = "take column: halfvec, or method: exact"
        elif width <= DIMENSIONS[column]:
            remedy = "take method: exact"
        what = "with method: hnsw" if self.method == "hnsw" else "in pgvector"
        raise ConfigError(
            f"index.column: {width:,} dimensions; {column} has at most {most:,} {what}: {remedy}"
        )

    def refuse_long(self, row: int, weights: int) -> None:
        """Raise ``DataError`` for a sparse vector with more weights than can be stored."""
        raise DataError(
            f"documents: row {row} has {weights:,} weights above 0; a sparsevec has at most "
            f"{self.most_non_zeros:,}"
            + (" with method: hnsw; take method: exact, or" if self.method == "hnsw" else ";")
            + f" set prune: {self.most_non_zeros} to keep the largest"
        )


def _check_dsn(dsn: Any) -> None:
    if not isinstance(dsn, str):
        raise ConfigError("dsn: expected a text, as in postgresql://user@host/database")
    refuse_secrets(dsn, "dsn", REMEDY)
    if dsn and not dsn.startswith(("postgresql://", "postgres://")):
        raise ConfigError(
            "dsn: expected postgresql://user@host:port/database, or nothing: then the environment "
            "variables PGHOST, PGDATABASE and PGUSER are used, as by psql"
        )


def _is_name(text: str) -> bool:
    return (
        0 < len(text.encode(errors="replace")) <= LONGEST_NAME
        and text.isprintable()
        and "%" not in text
    )


Matrix = sparse.csr_array


def encoded(vectors: Any, column: Column) -> Iterator[bytes]:
    """Yield each row of ``vectors`` in the binary form of the column's type."""
    if column == "sparsevec":
        yield from _sparse(vectors)
        return
    table = encoded_table(vectors, column)
    data, size = table.tobytes(), table.itemsize
    for start in range(0, len(data), size):
        yield data[start : start + size]


def encoded_table(vectors: Any, column: Column) -> NDArray[np.void]:
    """Return dense vectors in the binary form of the column's type, ``[n]`` records."""
    count, width = vectors.shape
    kind = ">f2" if column == "halfvec" else ">f4"
    table = np.zeros(count, np.dtype([("head", ">u2", (2,)), ("values", kind, (width,))]))
    table["head"][:, 0] = width
    table["values"] = vectors
    return table


def _sparse(vectors: Matrix[Any]) -> Iterator[bytes]:
    width = DIMENSIONS["sparsevec"]  # one for all: a vocabulary that grows needs no new table
    terms, weights = vectors.indices.astype(">i4"), vectors.data.astype(">f4")
    for start, stop in zip(vectors.indptr[:-1].tolist(), vectors.indptr[1:].tolist(), strict=True):
        head = np.array([width, stop - start, 0], ">i4").tobytes()
        yield head + terms[start:stop].tobytes() + weights[start:stop].tobytes()


def decoded(rows: Sequence[bytes], column: Column, width: int) -> Any:
    """Return vectors in the binary form of the column's type as float32 ``[n, width]``."""
    if column == "sparsevec":
        return _decoded_sparse(rows, width)
    kind = ">f2" if column == "halfvec" else ">f4"
    vectors = np.zeros((len(rows), width), np.float32)
    for place, row in enumerate(rows):
        vectors[place] = np.frombuffer(row, kind, width, 4)
    return vectors


def _decoded_sparse(rows: Sequence[bytes], width: int) -> Matrix[Any]:
    ends, terms, weights = [0], [], []
    for row in rows:
        count = int.from_bytes(row[4:8], "big")
        ends.append(ends[-1] + count)
        terms.append(np.frombuffer(row, ">i4", count, 12).astype(np.int64))
        weights.append(np.frombuffer(row, ">f4", count, 12 + 4 * count).astype(np.float32))
    data = np.concatenate(weights) if weights else np.zeros(0, np.float32)
    indices = np.concatenate(terms) if terms else np.zeros(0, np.int64)
    wide = max(width, int(indices.max(initial=-1)) + 1)
    return sparse.csr_array((data, indices, np.array(ends)), shape=(len(rows), wide))


def pruned(vectors: Matrix[Any], most: int) -> tuple[Matrix[Any], float]:
    """Return sparse vectors with their ``most`` largest weights each, and the weight lost.

    Of equal weights the lower terms stay.
    """
    lengths = np.diff(vectors.indptr)
    if lengths.max(initial=0) <= most:
        return vectors, 0.0
    kept = np.ones(vectors.nnz, dtype=np.bool_)
    for row in np.flatnonzero(lengths > most).tolist():
        start, stop = vectors.indptr[row : row + 2]
        order = np.argsort(-vectors.data[start:stop], kind="stable")
        kept[start + order[most:]] = False
    lost = float(vectors.data[~kept].sum(dtype=np.float64))
    ends: NDArray[Any] = np.concatenate([[0], np.cumsum(kept)])[vectors.indptr]
    return (
        sparse.csr_array((vectors.data[kept], vectors.indices[kept], ends), shape=vectors.shape),
        lost,
    )


HEAD, END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"
COLUMNS = "row, id, metadata, embedding"
TOGETHER = 256  # rows that are sent together
NULL = b"\xff\xff\xff\xff"  # the length of a field without a value


@dataclass(frozen=True)
class Row:
    """What is stored beside a vector: the id and the metadata as JSON."""

    id: bytes
    metadata: bytes


def lines(
    first: int, vectors: Any, column: Column, beside: Sequence[Row] | None
) -> Iterator[bytes]:
    """Yield the rows from ``first`` on, many in each part; without ``beside`` these are null."""
    for start in range(0, int(vectors.shape[0]), TOGETHER):
        part = vectors[start : start + TOGETHER]
        if beside is None and column != "sparsevec":
            yield _plain(first + start, part, column)
        else:
            own = None if beside is None else beside[start : start + TOGETHER]
            yield _joined(first + start, part, column, own)


def _plain(first: int, vectors: Any, column: Column) -> bytes:
    """Return rows of equal length without a loop over them."""
    table = encoded_table(vectors, column)
    kind = [
        ("fields", ">u2"), ("length", ">i4"), ("row", ">i8"), ("id", ">i4"), ("metadata", ">i4"),
        ("size", ">i4"), ("vector", table.dtype),
    ]  # fmt: skip
    rows = np.empty(len(table), np.dtype(kind))
    rows["fields"], rows["length"] = 4, 8
    rows["row"] = np.arange(first, first + len(table))
    rows["id"] = rows["metadata"] = -1
    rows["size"], rows["vector"] = table.dtype.itemsize, table
    return rows.tobytes()


def _joined(first: int, vectors: Any, column: Column, beside: Sequence[Row] | None) -> bytes:
    parts = []
    for place, vector in enumerate(encoded(vectors, column)):
        parts += [b"\0\x04\0\0\0\x08", (first + place).to_bytes(8, "big")]
        if beside is None:
            parts += [NULL, NULL]
        else:
            name, metadata = beside[place].id, beside[place].metadata
            parts += [len(name).to_bytes(4, "big"), name]
            parts += [len(metadata).to_bytes(4, "big"), metadata]
        parts += [len(vector).to_bytes(4, "big"), vector]
    return b"".join(parts)


def digest_of(parts: Iterable[bytes]) -> str:
    """Return a hash of rows in this form."""
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()
