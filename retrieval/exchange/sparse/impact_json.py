"""Reads and writes Lucene's impact JSON: ``{"id", "contents", "vector": {token: weight}}``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sluice.encoders.foundation.disk.files import packed_file
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.numbers import is_number
from sluice.encoders.foundation.progress import progress
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import distinct, id_text
from sluice.retrieval.documents.jsonl import field_of, read_objects
from sluice.retrieval.exchange.sparse.vectors_folder import (
    Column,
    checked_chunks,
    refuse_count,
    refuse_repeated,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

CHUNK = 16_384  # documents of one matrix
LARGEST = float(np.finfo(np.float32).max)
EXPECTED = '{"id": ..., "contents": ..., "vector": {token: weight, ...}}'
ENDINGS = (".jsonl", ".json", ".jsonl.gz", ".json.gz")


class ImpactFiles:
    """Reads files of impact JSON (``.gz`` too), or folders of them, as a stream.

    Once for the documents, once for their vectors. Weights are any numbers from 0 up;
    ``contents`` may be absent and is the document's text. Terms come in the order of their first
    appearance. ``DataError`` names file and line.
    """

    def __init__(self, paths: Iterable[str | Path]) -> None:
        self.paths = [file for path in paths for file in _files(Path(path))]

    def documents(self) -> Iterator[Document]:
        """Yield the documents, checked; no id may occur twice in all files."""
        return distinct(self._documents)

    def vectors(self, column: Column) -> Iterator[csr_array[Any]]:
        """Yield the documents' weights in order, 16,384 documents at a time."""
        rows: list[tuple[list[int], list[float]]] = []
        with progress("read vectors", None, "documents", show=len(self.paths) > 1) as advance:
            for place, value in self._objects():
                rows.append(_row(place, value, column))
                if len(rows) == CHUNK:
                    yield matrix_of(rows)
                    advance(len(rows))
                    rows = []
            if rows:
                yield matrix_of(rows)
                advance(len(rows))

    def _objects(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for path in self.paths:
            for number, value in read_objects(path, EXPECTED):
                yield f"{path}:{number}", value

    def _documents(self) -> Iterator[tuple[str, Document]]:
        for place, value in self._objects():
            contents = value.get("contents", "")
            if not isinstance(contents, str):
                raise DataError(f"{place}: 'contents' is not a text; expected {EXPECTED}")
            weights_of(place, value)
            yield place, Document(id_of(place, value), "", contents)


def id_of(place: str, value: dict[str, Any], expected: str = EXPECTED) -> str:
    """Return a line's id; a whole number is taken as its text."""
    return id_text(f"{place}: 'id'", field_of(place, value, "id", expected))


def weights_of(place: str, value: dict[str, Any], expected: str = EXPECTED) -> dict[str, float]:
    """Return a line's weights by token, each a finite number that is not negative."""
    weights = field_of(place, value, "vector", expected)
    if not isinstance(weights, dict):
        raise DataError(f"{place}: 'vector' is not an object of tokens; expected {expected}")
    for token, weight in weights.items():
        if not is_number(weight) or not 0 <= weight <= LARGEST:
            nan = isinstance(weight, float) and math.isnan(weight)
            shown = "NaN" if nan else repr(weight)
            raise DataError(
                f"{place}: token {token!r} has the weight {shown:.60}; expected a finite number "
                "that is not negative"
            )
    return weights


def _row(place: str, value: dict[str, Any], column: Column) -> tuple[list[int], list[float]]:
    weights = weights_of(place, value)
    return [column(token) for token in weights], list(weights.values())


def matrix_of(rows: Sequence[tuple[list[int], list[float]]], width: int = 0) -> csr_array[Any]:
    """Return (columns, weights) of each row as a matrix of ``width`` columns or what they need."""
    import scipy.sparse as sp

    ends = np.cumsum([0, *(len(columns) for columns, _ in rows)])
    indices = np.fromiter((at for columns, _ in rows for at in columns), np.int64, ends[-1])
    data = np.fromiter((weight for _, weights in rows for weight in weights), np.float32, ends[-1])
    shape = (len(rows), max(width, int(indices.max(initial=-1)) + 1))
    matrix = sp.csr_array((data, indices, ends), shape=shape)
    matrix.sort_indices()
    matrix.eliminate_zeros()
    return matrix


def write_impact_json(
    path: str | Path,
    documents: Iterable[Document],
    terms: Sequence[str],
    vectors: csr_array[Any] | Iterable[csr_array[Any]],
) -> int:
    """Write documents and their whole-number weights, one per line; return how many.

    ``vectors`` is a matrix ``[documents, terms]``, or matrices of consecutive documents;
    ``contents`` is title and text. A name that ends in ``.gz`` is compressed.
    """
    refuse_repeated(terms)
    remaining = iter(documents)
    rows = written = 0
    with (
        packed_file(Path(path)) as stream,
        progress(f"write {Path(path).name}", None, "documents") as advance,
    ):
        for chunk in checked_chunks(vectors, terms, whole=True):
            columns, weights = chunk.indices.tolist(), chunk.data.astype(np.int64).tolist()
            ends = chunk.indptr.tolist()
            for begin, end, document in zip(ends[:-1], ends[1:], remaining, strict=False):
                tokens = (terms[at] for at in columns[begin:end])
                line = {
                    "id": document.id,
                    "contents": document.full_text,
                    "vector": dict(zip(tokens, weights[begin:end], strict=True)),
                }
                stream.write(json.dumps(line, ensure_ascii=False).encode("utf-8") + b"\n")
                written += 1
            rows += int(chunk.shape[0])
            advance(int(chunk.shape[0]))
        refuse_count(written + sum(1 for _ in remaining), rows)
    return rows


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.name.endswith(ENDINGS))
    if not files:
        raise DataError(f"{path}: no file whose name ends in {', '.join(ENDINGS)}")
    return files
