"""Stores the metadata of a document segment as typed columns, memory-mapped.

A column holds the values of one key that are of one kind, for the documents that have one; a key
whose values are of two kinds has two columns. Texts are coded by a dictionary in code point order.
"""

from __future__ import annotations

import json
import logging
import mmap
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError, IndexFormatError
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.documents.document import NOTHING, Document, Metadata

Kind: TypeAlias = Literal["boolean", "integer", "float", "text", "texts"]
Mask: TypeAlias = NDArray[np.bool_]

DECIMAL_COMMA = re.compile(r"-?\d+(\.\d{3})*,\d+")
COMMA_TOLD = "numbers with a comma, read as text; write 12,50 as 12.50 to compare them as numbers"

WHOLLY_CHECKED = 1 << 16  # values up to which opening looks at every one
MOST_NAMES = 1_000  # of a folder: each has a column in each segment, which every opening reads

DTYPES: dict[str, dict[str, type[np.generic]]] = {
    "boolean": {"rows": np.uint32, "values": np.bool_},
    "integer": {"rows": np.uint32, "values": np.int64},
    "float": {"rows": np.uint32, "values": np.float64},
    "text": {"rows": np.uint32, "values": np.uint32, "bytes": np.uint8, "byte_ends": np.int64},
}
DTYPES["texts"] = {**DTYPES["text"], "ends": np.int64}


def plain(value: Any) -> Any:
    """Return a numpy scalar as a Python value, anything else unchanged."""
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
    table: Path  # JSON: key, kind, and where each array is: name -> [first byte, length]


class Words:
    """A dictionary of texts in code point order; a text's code is its place."""

    def __init__(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self._data, self._ends = data, ends  # text i is data[ends[i]:ends[i + 1]]

    def damage(self) -> str:
        """Return what is wrong with the arrays, or an empty text."""
        ends, size = self._ends, len(self._data)
        if not len(ends) or (int(ends[0]), int(ends[-1])) != (0, size):
            return "its texts do not fit their ends"
        if len(ends) <= WHOLLY_CHECKED and (np.diff(ends) < 0).any():
            return "its texts do not ascend"
        if size <= WHOLLY_CHECKED:
            str(self._data.data, "utf-8")  # a ValueError where it is not UTF-8
        return ""

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

    def damage(self) -> str:
        """Return what is wrong with the arrays, or an empty text.

        Of a large column only the lengths and ends are looked at; ``between`` and filters meet the
        rest as it is read.
        """
        count = self.documents if self.rows is None else len(self.rows)
        values, ends = self.values, self.ends
        if (len(values) if ends is None else len(ends) - 1) != count:
            return "as many values as documents were expected"
        if ends is not None and (int(ends[0]), int(ends[-1])) != (0, len(values)):
            return "its lists do not fit its values"
        if self.words is not None and (fault := self.words.damage()):
            return fault
        if max(count, len(values)) > WHOLLY_CHECKED:
            return ""
        rows = np.zeros(0, np.int64) if self.rows is None else self.rows.astype(np.int64)
        if (np.diff(rows) < 1).any() or rows.max(initial=-1) >= self.documents:
            return "its rows are not those of documents"
        if ends is not None and (np.diff(ends) < 0).any():
            return "its lists do not ascend"
        if self.words is not None and values.max(initial=0) >= max(len(self.words), 1):
            return "a value is none of its texts"
        return ""

    def present(self) -> Mask:
        """Return the mask ``[documents]`` of the documents that have a value."""
        return self.spread(np.ones(self.documents if self.rows is None else len(self.rows), bool))

    def spread(self, matches: Mask) -> Mask:
        """Return a mask over the documents that have a value as a mask over all documents."""
        if self.rows is None:
            return matches
        mask = np.zeros(self.documents, dtype=np.bool_)
        mask[self.rows] = matches
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
            values: list[Any] = self.values[start:end].tolist()
            return values
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
            column = Column(
                kind, documents, arrays.get("rows"), arrays["values"], arrays.get("ends"), words
            )
            if not isinstance(entry["key"], str) or (column.words is None) != (
                "bytes" not in DTYPES[kind]
            ):
                raise ValueError("a column without a name or texts")
            if fault := column.damage():
                raise ValueError(f"{entry['key']!r}: {fault}")
            columns.setdefault(entry["key"], []).append(column)
    except (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        raise IndexFormatError(
            f"{files.table}: not as Sluice writes it ({type(error).__name__}: {error}); "
            "the columns are damaged: rebuild the folder"
        ) from None
    return columns


def metadata_between(
    columns: dict[str, list[Column]], first: int, stop: int
) -> list[dict[str, Any]]:
    """Return the metadata of the documents of a range."""
    metadata: list[dict[str, Any]] = [{} for _ in range(first, stop)]
    for key, group in columns.items():
        for column in group:
            try:
                for row, value in column.between(first, stop):
                    metadata[row - first][key] = value
            except (IndexError, ValueError) as error:
                raise damaged_column(key, error) from None
    return metadata


def damaged_column(key: str, error: Exception) -> IndexFormatError:
    """Return the error for a column whose values turn out to be damaged as they are read."""
    return IndexFormatError(
        f"metadata {key!r}: its values are damaged ({error}); rebuild the folder, or restore it"
    )


ALIGNMENT = 8  # bytes: every array begins at a multiple
CODES = {"boolean": "b", "integer": "q", "float": "d", "text": "I", "texts": "I"}


class ColumnWriter:
    """Collects documents' metadata; memory: 12 bytes a value, and each distinct text once.

    ``known`` are the names that the folder has already; None takes any number of new ones.
    """

    def __init__(self, known: Iterable[str] | None) -> None:
        self._known = None if known is None else set(known)
        self._columns: dict[tuple[str, Kind], _Growing] = {}

    def add(self, row: int, document: Document) -> None:
        """Take a document's metadata; ``DataError`` for what no column can hold or have as name."""
        if not isinstance(document.metadata, Mapping):
            raise _refused(document, f"metadata is {document.metadata!r:.80}", "a mapping")
        for key, written in document.metadata.items():
            value = plain(written)
            if value is None:
                continue
            kind = kind_of(value)
            if not isinstance(key, str) or not key or kind is None:
                raise _refused(
                    document,
                    f"metadata {key!r} is {value!r:.80}",
                    "a name, and a text, a boolean, a finite number of 64 bits or a list of texts",
                )
            try:
                if (key, kind) not in self._columns:
                    key.encode("utf-8")
                    if self._known is not None and key not in self._known:
                        if len(self._known) >= MOST_NAMES:
                            fault = f"metadata {key!r:.80}: a folder has up to {MOST_NAMES:,} names"
                            remedy = "fewer; sluice delete --compact forgets those no document has"
                            raise _refused(document, fault, remedy)
                        self._known.add(key)
                    self._columns[key, kind] = _Growing(kind)
                self._columns[key, kind].add(row, value)
            except UnicodeEncodeError:
                half = "holds half a surrogate pair, which UTF-8 cannot encode"
                raise _refused(
                    document, f"metadata {key!r} {half}", "complete characters"
                ) from None

    def write(self, files: ColumnFiles, documents: int) -> None:
        """Write the columns of a segment of ``documents``; without metadata, no file."""
        if not self._columns:
            return
        entries = []
        with files.data.open("wb") as stream:
            for (key, kind), column in self._columns.items():
                places: dict[str, list[int]] = {}
                for name, values in column.arrays(documents):
                    stream.write(bytes(-stream.tell() % ALIGNMENT))
                    places[name] = [stream.tell(), len(values)]
                    stream.write(np.asarray(values, DTYPES[kind][name]).tobytes())
                entries.append({"key": key, "kind": kind, "arrays": places})
        files.table.write_text(json.dumps(entries, ensure_ascii=False), encoding="utf-8")


def _refused(document: Document, fault: str, expected: str) -> DataError:
    return DataError(f"document {document.id!r}: {fault}; expected {expected}")


class _Growing:
    """One column while its documents come in."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._rows = array("I")
        self._values: array[Any] = array(CODES[kind])
        self._ends = array("q", [0])
        self._codes: dict[str, int] = {}  # in order of first appearance

    def add(self, row: int, value: Any) -> None:
        if self.kind == "text":
            self._values.append(self._code(value))
        elif self.kind == "texts":
            self._values.extend([self._code(word) for word in value])
            self._ends.append(len(self._values))
        else:
            self._values.append(value)
        self._rows.append(row)

    def _code(self, word: str) -> int:
        code = self._codes.get(word)
        if code is None:
            word.encode("utf-8")  # a text that cannot be written is refused before it is counted
            self._codes[word] = code = len(self._codes)
        return code

    def arrays(self, documents: int) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield (name, values) of the arrays to store."""
        if len(self._rows) < documents:
            yield "rows", np.frombuffer(self._rows, np.uint32)
        # (an array of bytes for booleans: 0 and 1, as numpy stores them)
        values = np.frombuffer(self._values, DTYPES[self.kind]["values"])
        if self.kind not in ("text", "texts"):
            yield "values", values
            return
        words = list(self._codes)
        order = sorted(range(len(words)), key=words.__getitem__)
        places = np.empty(len(words), np.uint32)
        places[order] = np.arange(len(words), dtype=np.uint32)
        yield "values", places[values]
        encoded = [words[code].encode("utf-8") for code in order]
        yield "bytes", np.frombuffer(b"".join(encoded), np.uint8)
        yield "byte_ends", np.array(list(accumulate(map(len, encoded), initial=0)), np.int64)
        if self.kind == "texts":
            yield "ends", np.frombuffer(self._ends, np.int64)


log = logging.getLogger("sluice")

_WARNED: set[str] = set()  # lines that were logged


class MetadataReader:
    """Keeps texts, numbers, booleans and lists of texts; None counts as no value."""

    def __init__(self) -> None:
        self._dropped: Counter[str] = Counter()

    def kept(self, metadata: Mapping[Any, Any]) -> Metadata:
        """Return the part of one document's metadata that can be stored."""
        kept = {key: value for key, value in metadata.items() if key and kind_of(value)}
        if len(kept) < len(metadata):
            lost = (key for key in metadata.keys() - kept.keys() if metadata[key] is not None)
            self._dropped.update(map(str, lost))
        return kept or NOTHING

    def warn(self, place: object) -> None:
        """Log one warning that counts the values left out, if there were any."""
        names = ", ".join(f"{key}: {count:,}" for key, count in self._dropped.most_common(3))
        line = (
            f"{place}: left out {plural(self._dropped.total(), 'metadata value')} that no filter "
            f"can use ({names}): neither text, number, boolean nor list of texts; an object is "
            "opened where it is called 'metadata'"
        )
        if self._dropped and line not in _WARNED:  # a corpus is read several times
            _WARNED.add(line)
            log.warning("%s", line)
