"""Folders of sparse vectors (vectors.npz, ids.txt, vocabulary.txt), quantised or not.

``vectors.npz`` is a CSR matrix as ``scipy.sparse.load_npz`` reads it. Nothing in it is pickled.
"""

from __future__ import annotations

import lzma
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.arrays import read_array_header
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.progress import progress
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import distinct

if TYPE_CHECKING:
    from scipy.sparse import csr_array


Column: TypeAlias = Callable[[str], int]  # a term to its column; a new term gets the next one


def checked_chunks(
    vectors: csr_array[Any] | Iterable[csr_array[Any]], terms: Sequence[str], *, whole: bool
) -> Iterator[csr_array[Any]]:
    """Yield the matrices checked: finite, not negative, sorted, and as wide as ``terms`` at most.

    With ``whole`` the weights must be whole numbers that 32 bits hold.
    """
    import scipy.sparse as sp

    from sluice.indexing.checks import checked_sparse

    matrices: Iterable[Any] = [vectors] if sp.issparse(vectors) else vectors
    for chunk in matrices:
        kind = getattr(getattr(chunk, "dtype", None), "kind", "")
        matrix = checked_sparse(
            chunk.astype(np.float32) if kind in ("i", "u") else chunk, "vectors"
        )
        if matrix.shape[1] > len(terms):
            raise DataError(f"vectors: {matrix.shape[1]:,} columns, but {len(terms):,} terms")
        if whole and (matrix.data != np.rint(matrix.data)).any():
            raise DataError(
                "vectors: some weights are not integers; this format holds integers: "
                "multiply and round them first"
            )
        if whole and matrix.data.max(initial=0) >= 2.0**31:
            raise DataError("vectors: weights of 2^31 or more; this format has 31 bits: scale them")
        yield matrix


def refuse_repeated(terms: Sequence[str]) -> None:
    """Raise ``DataError`` if a term occurs twice."""
    if len(set(terms)) == len(terms):
        return
    seen: set[str] = set()
    for column, term in enumerate(terms):
        if term in seen:
            raise DataError(f"terms: {term!r} again in column {column}; terms are unique")
        seen.add(term)


def refuse_count(documents: int, rows: int) -> None:
    """Raise ``DataError`` unless there are as many documents as vectors."""
    if documents != rows:
        raise DataError(f"vectors: {rows:,} rows for {documents:,} documents; give one each")


@dataclass(slots=True)
class Survey:
    """Counts over sparse vectors, taken before they are quantised."""

    documents: int
    frequencies: NDArray[np.int64]  # [terms] documents with the term
    largest: NDArray[np.float32]  # [terms] the term's largest weight
    whole: bool  # every weight is a whole number


def surveyed(chunks: Iterable[csr_array[Any]], terms: int) -> Survey:
    """Count the documents and weights of ``chunks``, which have at most ``terms`` columns."""
    survey = Survey(0, np.zeros(terms, np.int64), np.zeros(terms, np.float32), True)
    for chunk in chunks:
        used = chunk.indices[chunk.data > 0]
        survey.documents += int(chunk.shape[0])
        survey.frequencies += np.bincount(used, minlength=terms)
        np.maximum.at(survey.largest, chunk.indices, chunk.data)
        survey.whole = survey.whole and bool((chunk.data == np.rint(chunk.data)).all())
    return survey


class Quantiser:
    """Rounds ``scale`` times a weight to the nearest integer and counts the loss.

    ``factors`` are multiplied in first, one a term. ``lost`` weights became zero; of the others
    ``largest_error`` is the largest of ``|rounded / scale - weight| / weight``.
    """

    def __init__(self, scale: float, factors: NDArray[np.float64] | None = None) -> None:
        self.scale = scale
        self.postings = 0
        self.lost = 0
        self.largest_error = 0.0
        self._factors = factors

    def __call__(self, chunk: csr_array[Any]) -> csr_array[Any]:
        """Return the chunk in whole numbers, float32, without zeros."""
        import scipy.sparse as sp

        weights = chunk.data.astype(np.float64)
        if self._factors is not None:
            weights *= self._factors[chunk.indices]
        rounded = np.rint(weights * self.scale)
        positive = rounded > 0
        relative = np.abs(rounded[positive] / self.scale / weights[positive] - 1.0)
        self.postings += int(np.count_nonzero(positive))
        self.lost += int(np.count_nonzero((weights > 0) & ~positive))
        self.largest_error = max(self.largest_error, float(relative.max(initial=0.0)))
        quantised = sp.csr_array(
            (rounded.astype(np.float32), chunk.indices, chunk.indptr), shape=chunk.shape
        )
        quantised = quantised.copy()
        quantised.eliminate_zeros()
        return quantised


MATRIX = "vectors.npz"
IDS = "ids.txt"
TERMS = "vocabulary.txt"
CHUNK = 16_384  # documents of one matrix
BLOCK = 1 << 22  # values read at a time
# Raised for a zip file that is damaged, encrypted (RuntimeError) or compressed in another way.
UNREADABLE = (
    ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
    RuntimeError,
)  # fmt: skip


def write_vectors(
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
            for chunk in checked_chunks(vectors, terms, whole=False):
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
                _move_in(archive, draft, dtype, int(pointers[-1]))
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

    def documents(self) -> Iterator[Document]:
        """Yield the documents in order, without texts."""
        return distinct(self._documents)

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
                    sizes = (_header(data_stream, "f")[0], _header(index_stream, "i")[0])
                    if sizes != (ends[-1], ends[-1]):
                        raise ValueError(f"indptr ends at {ends[-1]:,}, the arrays have {sizes}")
                    data_stream.seek(0)
                    index_stream.seek(0)
                    data, indices = _Values(data_stream, "f"), _Values(index_stream, "i")
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
                        yield from checked_chunks(chunk, terms, whole=False)
        except UNREADABLE as error:
            raise DataError(
                f"{self.matrix}: not a CSR matrix of {IDS} and {TERMS} ({error}); write it again"
            ) from None
        except DataError as error:
            raise DataError(f"{self.matrix}: {error}") from None

    def _documents(self) -> Iterator[tuple[str, Document]]:
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
        size, _ = _header(stream, "i")
        if size != count:
            raise ValueError(f"{name} has {size:,} values, expected {count:,}")
        stream.seek(0)
        return _Values(stream, "i").take(count).astype(np.int64)


class _Values:
    """Takes values out of an ``.npy`` stream in pieces."""

    def __init__(self, stream: IO[bytes], kind: str) -> None:
        self._stream = stream
        _, self._dtype = _header(stream, kind)

    def take(self, count: int) -> NDArray[Any]:
        """Return the next ``count`` values."""
        data = self._stream.read(count * self._dtype.itemsize)
        if len(data) != count * self._dtype.itemsize:
            raise ValueError("the file ends too early")
        return np.frombuffer(data, self._dtype)


def _header(stream: IO[bytes], kind: str) -> tuple[int, np.dtype[Any]]:
    """Read an ``.npy`` header; return the number of values and their dtype."""
    shape, _, dtype = read_array_header(stream)
    if len(shape) != 1 or dtype.kind not in (kind, "u", "i"):
        raise ValueError(f"an array of shape {shape} and dtype {dtype}")
    return int(shape[0]), dtype


def _move_in(archive: zipfile.ZipFile, draft: Path, dtype: str, count: int) -> None:
    """Move raw values into the archive as an ``.npy`` file."""
    header = {"descr": dtype, "fortran_order": False, "shape": (count,)}
    with (
        archive.open(f"{draft.name}.npy", "w", force_zip64=True) as member,
        draft.open("rb") as source,
    ):
        np.lib.format.write_array_header_1_0(member, header)
        shutil.copyfileobj(source, member, BLOCK)
    draft.unlink()


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
