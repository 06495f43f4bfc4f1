"""Writes the metadata of a document segment as the typed columns of ``document_columns``."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.documents.columns import DTYPES, ColumnFiles, Kind, kind_of, plain
from sluice.retrieval.documents.document import Document

ALIGNMENT = 8  # bytes: every array begins at a multiple
CODES = {"boolean": "b", "integer": "q", "float": "d", "text": "I", "texts": "I"}


class ColumnWriter:
    """Collects documents' metadata; memory: 12 bytes a value, and each distinct text once."""

    def __init__(self) -> None:
        self._columns: dict[tuple[str, Kind], _Growing] = {}

    def add(self, row: int, document: Document) -> None:
        """Take a document's metadata; ``DataError`` for what no column can hold."""
        if not isinstance(document.metadata, Mapping):
            raise _refused(document, f"metadata is {document.metadata!r:.80}", "a mapping")
        for key, given in document.metadata.items():
            value = plain(given)
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
                    self._columns[key, kind] = _Growing(kind)
                self._columns[key, kind].add(row, value)
            except UnicodeEncodeError:
                half = "with half a surrogate pair, which no UTF-8 text can hold"
                raise _refused(document, f"metadata {key!r} {half}", "whole characters") from None

    def write(self, files: ColumnFiles, documents: int) -> None:
        """Write the columns of a segment of so many documents; without a column, no file."""
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


def _refused(document: Document, found: str, expected: str) -> DataError:
    return DataError(f"document {document.id!r}: {found}; expected {expected}")


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
