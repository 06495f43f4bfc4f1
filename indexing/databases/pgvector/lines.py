"""The rows of a table in the binary form of COPY."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sluice.indexing.databases.pgvector.settings import Column
from sluice.indexing.databases.pgvector.vectors import encoded, encoded_table

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
