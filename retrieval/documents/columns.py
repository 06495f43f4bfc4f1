"""Metadata of a document segment as typed columns, memory-mapped, read by row and as a whole.

A column holds the values of one key that are of one kind, for the documents that have one; a key
whose values are of two kinds has two columns. Texts are coded by a dictionary in code point order.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import IndexFormatError

Kind: TypeAlias = Literal["boolean", "integer", "float", "text", "texts"]
Mask: TypeAlias = NDArray[np.bool_]

DTYPES: dict[str, dict[str, type[np.generic]]] = {
    "boolean": {"rows": np.uint32, "values": np.bool_},
    "integer": {"rows": np.uint32, "values": np.int64},
    "float": {"rows": np.uint32, "values": np.float64},
    "text": {"rows": np.uint32, "values": np.uint32, "bytes": np.uint8, "byte_ends": np.int64},
}
DTYPES["texts"] = {**DTYPES["text"], "ends": np.int64}


def plain(value: Any) -> Any:
    """Return a numpy scalar as the Python value it stands for, anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def kind_of(value: Any) -> Kind | None:
    """Return the kind of column a value belongs to, None where no column can hold it."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "text"
    if isinstance(value, int):
        return "integer" if -(2**63) <= value < 2**63 else None
    if isinstance(value, float):
        return "float" if isfinite(value) else None
    if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        return "texts"
    return None


class ColumnFiles(NamedTuple):
    """The two files of a segment's columns; a segment without metadata has neither."""

    data: Path  # the arrays, one after the other
    table: Path  # JSON: key, kind, and where each array lies: name -> [first byte, length]


class Words:
    """A dictionary of texts in code point order; a text's code is its place."""

    def __init__(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self._data, self._ends = data, ends  # text i is data[ends[i]:ends[i + 1]]

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, code: int) -> str:
        return str(self._data[self._ends[code] : self._ends[code + 1]].data, "utf-8")


@dataclass(frozen=True, slots=True)
class Column:
    """The values of one kind under one key; ``rows`` are the documents that have one."""

    kind: Kind
    documents: int
    rows: NDArray[np.uint32] | None  # ascending; None: all documents
    values: NDArray[Any]  # [rows]; codes for text; for texts the codes of all lists
    ends: NDArray[np.int64] | None  # [rows + 1], texts only: list i is values[ends[i]:ends[i + 1]]
    words: Words | None  # text and texts only

    def present(self) -> Mask:
        """Return the mask ``[documents]`` of those that have a value."""
        return self.spread(np.ones(self.documents if self.rows is None else len(self.rows), bool))

    def spread(self, found: Mask) -> Mask:
        """Return a mask over the documents that have a value as a mask over all documents."""
        if self.rows is None:
            return found
        mask = np.zeros(self.documents, dtype=np.bool_)
        mask[self.rows] = found
        return mask

    def between(self, first: int, stop: int) -> Iterator[tuple[int, Any]]:
        """Yield (row, value) of the documents of a range that have one."""
        if self.rows is None:
            start, end, rows = first, stop, list(range(first, stop))
        else:
            start, end = np.searchsorted(self.rows, [first, stop]).tolist()
            rows = self.rows[start:end].tolist()
        yield from zip(rows, self._read(start, end), strict=True)

    def _read(self, start: int, end: int) -> list[Any]:
        if self.words is None:
            found: list[Any] = self.values[start:end].tolist()
            return found
        words = self.words
        if self.ends is None:
            return [words[code] for code in self.values[start:end].tolist()]
        bounds = self.ends[start : end + 1].tolist()
        return [[words[code] for code in self.values[a:b].tolist()] for a, b in pairwise(bounds)]


def open_columns(files: ColumnFiles, documents: int) -> dict[str, list[Column]]:
    """Map the columns of a segment into memory: key -> its columns, one for each kind."""
    columns: dict[str, list[Column]] = {}
    if not files.table.exists():
        return columns
    try:
        with files.data.open("rb") as stream:
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        for entry in json.loads(files.table.read_text(encoding="utf-8")):
            kind, places = entry["kind"], entry["arrays"]
            arrays: dict[str, Any] = {
                name: np.frombuffer(data, dtype, places[name][1], places[name][0])
                for name, dtype in DTYPES[kind].items()
                if name in places
            }
            words = Words(arrays["bytes"], arrays["byte_ends"]) if "bytes" in arrays else None
            columns.setdefault(entry["key"], []).append(
                Column(
                    kind, documents, arrays.get("rows"), arrays["values"], arrays.get("ends"), words
                )
            )
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise IndexFormatError(
            f"{files.table}: not as Sluice writes it ({type(error).__name__}: {error}); "
            "the columns are damaged: rebuild the folder"
        ) from None
    return columns


def metadata_between(
    columns: dict[str, list[Column]], first: int, stop: int
) -> list[dict[str, Any]]:
    """Return the metadata of the documents of a range."""
    found: list[dict[str, Any]] = [{} for _ in range(first, stop)]
    for key, group in columns.items():
        for column in group:
            for row, value in column.between(first, stop):
                found[row - first][key] = value
    return found
