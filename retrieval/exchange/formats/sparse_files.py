"""Weights of terms as Lucene's impact JSON, and as folders of a matrix with ids and terms.

A line of impact JSON is ``{"id", "contents", "vector": {token: weight}}``. A folder has
``vectors.npz``, a CSR matrix as ``scipy.sparse.load_npz`` reads it, ``ids.txt`` and
``vocabulary.txt``. Nothing in it is pickled.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.arrays import read_array_header
from sluice.encoders.foundation.disk.files import packed_file
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.numbers import is_number
from sluice.encoders.foundation.progress import progress
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import id_text
from sluice.retrieval.documents.json_files import field_of, read_objects
from sluice.retrieval.exchange.formats.arrays import UNREADABLE, add_array
from sluice.retrieval.exchange.formats.format import (
    Column,
    Format,
    check_chunks,
    refuse_count,
    refuse_repeated,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array


MATRIX = "vectors.npz"
IDS = "ids.txt"
TERMS = "vocabulary.txt"
BLOCK = 1 << 22  # values read at a time


def write_folder(
    path: str | Path,
    documents: Iterable[Document],
    terms: Sequence[str],
    vectors: csr_array[Any] | Iterable[csr_array[Any]],
) -> int:
    """Write the folder ``path``: ids, terms and float32 weights; return how many documents.

    ``vectors`` is a matrix ``[documents, terms]``, or matrices of consecutive documents. Texts are
    not kept. An existing folder of vectors is replaced, any other folder is refused.
    """
    refuse_repeated(terms)
    with (
        replaced_folder(Path(path), markers=(MATRIX,)) as folder,
        progress(f"write {Path(path).name}", None, "documents") as advance,
    ):
        ends = [np.zeros(1, np.int64)]
        drafts = [folder / name for name in ("data", "indices")]
        with drafts[0].open("wb") as data, drafts[1].open("wb") as indices:
            for chunk in check_chunks(vectors, terms, whole=False):
                data.write(chunk.data.astype("<f4").tobytes())
                indices.write(chunk.indices.astype("<i4").tobytes())
                ends.append(ends[-1][-1] + chunk.indptr[1:].astype(np.int64))
                advance(int(chunk.shape[0]))
        pointers = np.concatenate(ends)
        rows = len(pointers) - 1
        with zipfile.ZipFile(folder / MATRIX, "w", allowZip64=True) as archive:
            facts = {
                "indptr": pointers, "format": np.array(b"csr"),
                "shape": np.array([rows, len(terms)], np.int64), "_is_array": np.array(True),
            }  # fmt: skip
            for name, value in facts.items():
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, value, allow_pickle=False)
            for draft, dtype in zip(drafts, ("<f4", "<i4"), strict=True):
                with draft.open("rb") as values:
                    add_array(archive, draft.name, values, dtype, (int(pointers[-1]),))
                draft.unlink()
        _write_names(folder / IDS, "id", (document.id for document in documents), rows)
        _write_names(folder / TERMS, "term", terms, len(terms))
    return rows


class VectorsFolder:
    """Reads a folder of vectors as a stream of matrices."""

    def __init__(self, path: Path) -> None:
        self.folder = path.parent if path.suffix == ".npz" else path
        self.matrix = path if path.suffix == ".npz" else path / MATRIX
        for file in (self.matrix, self.folder / IDS, self.folder / TERMS):
            if not file.is_file():
                raise DataError(
                    f"{file}: no such file; expected {MATRIX}, {IDS} and {TERMS} in one folder"
                )

    def vectors(self, column: Column) -> Iterator[csr_array[Any]]:
        """Yield the documents' weights in order, some thousands of documents at a time."""
        import scipy.sparse as sp

        terms = _read_names(self.folder / TERMS)
        for number, term in enumerate(terms):
            if column(term) != number:
                raise DataError(
                    f"{self.folder / TERMS}:{number + 1}: the term {term!r} again; terms are unique"
                )
        try:
            with zipfile.ZipFile(self.matrix) as archive:
                ends = self._ends(archive, len(terms))
                with (
                    archive.open("data.npy") as data_stream,
                    archive.open("indices.npy") as index_stream,
                ):
                    data, indices = _Values(data_stream, "f"), _Values(index_stream, "i")
                    sizes = (data.count, indices.count)
                    if sizes != (ends[-1], ends[-1]):
                        raise ValueError(f"indptr ends at {ends[-1]:,}, the arrays have {sizes}")
                    first = 0
                    while first < len(ends) - 1:
                        full = int(np.searchsorted(ends, ends[first] + BLOCK, side="right")) - 1
                        stop = min(max(full, first + 1), first + CHUNK)
                        pointers = ends[first : stop + 1]
                        first = stop
                        count = int(pointers[-1] - pointers[0])
                        chunk = sp.csr_array(
                            (data.take(count), indices.take(count), pointers - pointers[0]),
                            shape=(len(pointers) - 1, len(terms)),
                        )
                        yield from check_chunks(chunk, terms, whole=False)
        except UNREADABLE as error:
            raise DataError(
                f"{self.matrix}: not a CSR matrix of {IDS} and {TERMS} ({error}); write it again"
            ) from None
        except DataError as error:
            raise DataError(f"{self.matrix}: {error}") from None

    def documents(self) -> Iterator[tuple[str, Document]]:
        """Yield (place, document without texts) in order."""
        path = self.folder / IDS
        for number, name in enumerate(_read_names(path), 1):
            if not name:
                raise DataError(f"{path}:{number}: an empty id; expected one id per line")
            yield f"{path}:{number}", Document(name, "", "")

    def _ends(self, archive: zipfile.ZipFile, terms: int) -> NDArray[np.int64]:
        with archive.open("format.npy") as stream:
            form = read_array_header(stream)
            text = stream.read(min(form.dtype.itemsize, 80)).replace(b"\0", b"")
        if form.shape != () or text != b"csr":
            raise ValueError(f"its format is {text!r:.80}, expected 'csr'")
        expected = (len(_read_names(self.folder / IDS)), terms)
        shape = tuple(_whole_numbers(archive, "shape", 2).tolist())
        if shape != expected:
            raise ValueError(f"its shape is {shape}; ids and terms make {expected}")
        ends = _whole_numbers(archive, "indptr", expected[0] + 1)
        counts = np.diff(ends)
        if ends[0] != 0 or (counts < 0).any():
            raise ValueError("its indptr does not ascend from 0")
        if (counts > terms).any():
            raise ValueError(f"a document has {counts.max():,} of {terms:,} terms")
        return ends


def _whole_numbers(archive: zipfile.ZipFile, name: str, count: int) -> NDArray[np.int64]:
    """Read a member of ``count`` whole numbers; ``ValueError`` for anything else, unread."""
    with archive.open(f"{name}.npy") as stream:
        values = _Values(stream, "i")
        if values.count != count:
            raise ValueError(f"{name} has {values.count:,} values, expected {count:,}")
        return values.take(count).astype(np.int64)


class _Values:
    """Takes the ``count`` values of an ``.npy`` stream in pieces."""

    def __init__(self, stream: IO[bytes], kind: str) -> None:
        shape, _, self._dtype = read_array_header(stream)
        if len(shape) != 1 or self._dtype.kind not in (kind, "u", "i"):
            raise ValueError(f"an array of shape {shape} and dtype {self._dtype}")
        self._stream, self.count = stream, int(shape[0])

    def take(self, count: int) -> NDArray[Any]:
        """Return the next ``count`` values."""
        data = self._stream.read(count * self._dtype.itemsize)
        if len(data) != count * self._dtype.itemsize:
            raise ValueError("the file ends too early")
        return np.frombuffer(data, self._dtype)


def _write_names(path: Path, what: str, names: Iterable[str], count: int) -> None:
    written = 0
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        for name in names:
            if "\n" in name:
                raise DataError(f"{what} {name!r} holds a line break; {path.name} has one a line")
            stream.write(f"{name}\n")
            written += 1
    refuse_count(written, count)


def _read_names(path: Path) -> list[str]:
    try:
        names = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start:,} is not UTF-8 ({error.reason})") from None
    if names[-1]:
        raise DataError(f"{path}:{len(names)}: the last line does not end; is the file complete?")
    return names[:-1]


VECTORS: Final = Format("vectors", "sparse", VectorsFolder, write_folder)


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

    def documents(self) -> Iterator[tuple[str, Document]]:
        """Yield (place, document), checked."""
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
        for chunk in check_chunks(vectors, terms, whole=True):
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


IMPACT_JSON: Final = Format(
    "impact-json", "sparse", ImpactFiles, write_impact_json, several=True, scale=100.0
)
