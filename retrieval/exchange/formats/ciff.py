"""Reads and writes CIFF, the Common Index File Format: an inverted index in protobuf messages.

A file is a Header, then PostingsLists (a term; postings of docid and tf, docids as gaps), then
DocRecords (docid, the collection's own id, length), each after its length. Impacts take the
place of tf. (Lin et al., 2020, arXiv 2003.08276; github.com/osirrc/ciff has the definition.)
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.arrays import map_array
from sluice.encoders.foundation.disk.files import packed_file
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.progress import progress
from sluice.retrieval.documents.document import Document
from sluice.retrieval.exchange.formats import ciff_wire as wire
from sluice.retrieval.exchange.formats.format import (
    Column,
    Format,
    check_chunks,
    refuse_count,
    refuse_repeated,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array


RUN = 1 << 21  # entries sorted at a time: 25 MB, and several times that while they are sorted
PIECES = 4096  # small arrays held before they are joined
Entries = tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.float32]]


class Transposition:
    """Takes (major, minor, value) entries in any order of majors and gives them by major.

    The minors of one major must come in ascending order. Entries beyond ``RUN`` are sorted into
    files of ``folder``, 12 bytes an entry; then the sorted runs are merged a range at a time.
    """

    def __init__(self, folder: Path) -> None:
        self.counts: NDArray[np.int64] = np.zeros(0, np.int64)  # of entries by major, once sorted
        self._folder = folder
        self._pieces: list[Entries] = []
        self._held = 0
        self._runs: list[Entries] = []

    def add(self, majors: NDArray[Any], minors: NDArray[Any], values: NDArray[Any]) -> None:
        """Take entries of any number; the arrays are copied."""
        self._pieces.append(
            (majors.astype(np.uint32), minors.astype(np.uint32), values.astype(np.float32))
        )
        self._held += len(majors)
        if self._held >= RUN:
            self._store(*self._sort())
        elif len(self._pieces) >= PIECES:
            self._pieces = [_join(self._pieces)]

    def finish(self, majors: int) -> None:
        """Sort what was added last; ``counts`` then has ``majors`` places."""
        if self._held:
            self._runs.append(self._sort())
        self.counts = np.concatenate([self.counts, np.zeros(majors - len(self.counts), np.int64)])

    def ranges(self, minors: int) -> Iterator[tuple[int, csr_array[Any]]]:
        """Yield (first major, matrix ``[range, minors]``) for consecutive ranges of all majors."""
        import scipy.sparse as sp

        ends = np.cumsum(self.counts)
        first, passed = 0, 0
        while first < len(ends):
            last = max(first + 1, int(np.searchsorted(ends, passed + RUN, side="right")))
            parts = []
            for run in self._runs:
                begin, end = np.searchsorted(run[0], np.array([first, last], np.uint32))
                parts.append((run[0][begin:end], run[1][begin:end], run[2][begin:end]))
            rows, columns, values = _join(parts)
            shape = (last - first, minors)
            matrix = sp.coo_array((values, (rows.astype(np.int64) - first, columns)), shape=shape)
            yield first, sp.csr_array(matrix)
            first, passed = last, int(ends[last - 1])

    def _sort(self) -> Entries:
        majors, minors, values = _join(self._pieces)
        self._pieces, self._held = [], 0
        counts = np.bincount(majors)
        counts[: len(self.counts)] += self.counts[: len(counts)]
        self.counts = np.concatenate([counts, self.counts[len(counts) :]])
        order = np.argsort(majors, kind="stable")
        return majors[order], minors[order], values[order]

    def _store(self, *arrays: NDArray[Any]) -> None:
        mapped = []
        for place, entries in enumerate(arrays):
            path = self._folder / f"{len(self._runs)}-{place}.npy"
            np.save(path, entries)
            mapped.append(map_array(path))
        self._runs.append((mapped[0], mapped[1], mapped[2]))


def _join(parts: list[Entries]) -> Entries:
    none = (np.zeros(0, np.uint32), np.zeros(0, np.uint32), np.zeros(0, np.float32))
    majors, minors, values = zip(none, *parts, strict=True)
    return np.concatenate(majors), np.concatenate(minors), np.concatenate(values)


VERSION = 1
SHOWN = 100_000  # documents or postings lists from which on progress is shown


@dataclass(frozen=True, slots=True)
class Header:
    """The head of a CIFF file; the totals may be those of a larger index."""

    postings_lists: int
    documents: int
    total_postings_lists: int = 0
    total_documents: int = 0
    total_terms: int = 0  # the sum of all tf
    average_length: float = 0.0
    description: str = ""


class CiffFile:
    """Reads a CIFF file (``.gz`` too) as a stream: once for its documents, once for its postings.

    Weights are the tfs, exact up to 2^24. Documents come in the order of their records, terms in
    that of the lists. ``DataError`` for a file that is not CIFF, is truncated or contradicts
    itself, with the byte at fault.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with wire.MessageStream(path) as stream:
            self.header = _header(stream)
        self._docids: NDArray[np.int64] | None = None  # of the records in their order

    def vectors(self, column: Column) -> Iterator[csr_array[Any]]:
        """Yield the documents' weights in the order of ``documents``, some thousands at a time.

        Memory: some 300 MB or the largest postings list; the postings wait, 12 bytes each, in a
        temporary folder.
        """
        if self._docids is None:
            for _ in self.documents():
                pass
        with TemporaryDirectory(prefix="sluice-") as folder:
            turned = Transposition(Path(folder))
            width = self._turn(turned, column)
            turned.finish(self.header.documents)
            for _, part in turned.ranges(width):
                yield part

    def documents(self) -> Iterator[tuple[str, Document]]:
        """Yield (place, document without texts) in the order of the records."""
        docids, header = array("q"), self.header
        with wire.MessageStream(self.path) as stream:
            stream.skip("the Header")
            for number in range(header.postings_lists):
                stream.skip(f"PostingsList {number}")
            for number in range(header.documents):
                docid, name = _record(stream, number)
                docids.append(docid)
                yield f"{self.path}: DocRecord {number}", Document(name, "", "")
            if not stream.at_end():
                stream.fail(
                    f"more bytes after the last of {header.documents:,} DocRecords; the "
                    "Header's numbers are wrong"
                )
        self._docids = np.array(docids, np.int64)

    def _turn(self, turned: Transposition, column: Column) -> int:
        """Give every posting to ``turned``; return the number of terms."""
        docids = np.zeros(0, np.int64) if self._docids is None else self._docids
        rows_of = _row_finder(docids, self.path)
        lists = self.header.postings_lists
        width = 0
        with (
            wire.MessageStream(self.path) as stream,
            progress(f"read {self.path.name}", lists, "terms", show=lists > SHOWN) as advance,
        ):
            stream.skip("the Header")
            for number in range(lists):
                term, posted, weights = _postings(stream, number)
                rows = rows_of(posted)
                if len(rows) and rows.min() < 0:
                    docid = posted[int(np.argmin(rows))]
                    stream.fail(f"PostingsList {number} ({term!r}): no DocRecord has docid {docid}")
                place = column(term)
                if place != width:
                    stream.fail(f"PostingsList {number}: the term {term!r} again; terms are unique")
                width += 1
                turned.add(rows, np.full(len(rows), place), weights)
                advance()
        return width


def _header(stream: wire.MessageStream) -> Header:
    message = stream.read("the Header")
    try:
        values = dict(wire.fields(message))
        version, *counts = (_integer(values, number) for number in range(1, 7))
        if version != VERSION or min(counts) < 0:
            raise ValueError(f"version {version}, counts {counts}")
        average = values.get(7, 0.0)
        if not isinstance(average, float):
            raise ValueError("the average length is not a double")
        lists, documents, all_lists, all_documents, terms = counts
        return Header(lists, documents, all_lists, all_documents, terms, average, _text(values, 8))
    except ValueError as error:
        stream.fail(f"not a Header of CIFF version {VERSION} ({error}); is this a CIFF file?")


def _record(stream: wire.MessageStream, number: int) -> tuple[int, str]:
    message = stream.read(f"DocRecord {number}")
    try:
        values = dict(wire.fields(message))
        docid, name = _integer(values, 1), _text(values, 2)
        if docid < 0:
            raise ValueError(f"docid {docid} is negative")
        if not name:
            raise ValueError("its collection_docid is empty")
    except ValueError as error:
        stream.fail(f"DocRecord {number}: {error}")
    return docid, name


def _postings(
    stream: wire.MessageStream, number: int
) -> tuple[str, NDArray[np.int64], NDArray[np.float32]]:
    from sluice.retrieval.exchange.formats.ciff_postings import decoded, outline

    message = stream.read(f"PostingsList {number}")
    what = f"PostingsList {number}"
    try:
        fields = outline(message)
        term = message[fields.term_begin : fields.term_end].decode("utf-8")
        what += f" ({term!r})"
        if fields.documents != fields.postings:
            raise ValueError(f"df is {fields.documents:,}, but postings are {fields.postings:,}")
        return term, *decoded(message, fields.postings)
    except ValueError as error:
        stream.fail(f"{what}: {error}")


def _row_finder(
    docids: NDArray[np.int64], path: Path
) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
    """Return a function from docids to the places of their records, -1 where there is none."""
    order = np.argsort(docids, kind="stable")
    ascending = docids[order]
    again = np.flatnonzero(ascending[1:] == ascending[:-1])
    if len(again):
        raise DataError(
            f"{path}: DocRecords {order[again[0]]} and {order[again[0] + 1]} both have docid "
            f"{ascending[again[0]]}; docids are unique"
        )

    usual = bool((docids == np.arange(len(docids))).all())

    def rows(posted: NDArray[np.int64]) -> NDArray[np.int64]:
        if usual:
            return np.where(posted < len(docids), posted, -1)
        places = np.minimum(np.searchsorted(ascending, posted), len(ascending) - 1)
        return np.where(ascending[places] == posted, order[places], -1)

    return rows


def _integer(values: dict[int, int | float | bytes], number: int) -> int:
    value = values.get(number, 0)
    if not isinstance(value, int):
        raise ValueError(f"field {number} is not an integer")
    return value


def _text(values: dict[int, int | float | bytes], number: int) -> str:
    value = values.get(number, b"")
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} is not a text")
    return value.decode("utf-8")


def write_ciff(
    path: str | Path,
    documents: Iterable[Document],
    terms: Sequence[str],
    vectors: csr_array[Any] | Iterable[csr_array[Any]],
    *,
    description: str = "",
) -> Header:
    """Write documents and their whole-number weights as a CIFF file (``.gz``: compressed).

    ``vectors`` is a matrix ``[documents, terms]``, or matrices of consecutive documents. Terms
    without postings are left out, the others are in the order of their bytes, as Lucene has
    them. A document's length is the sum of its weights. Texts are not kept.
    """
    path = Path(path)
    refuse_repeated(terms)
    order = sorted(range(len(terms)), key=terms.__getitem__)
    rank = np.empty(len(terms), np.int64)
    rank[order] = np.arange(len(terms))
    lengths = [np.zeros(0, np.int64)]
    rows = 0
    with TemporaryDirectory(prefix="sluice-") as folder:
        turned = Transposition(Path(folder))
        for chunk in check_chunks(vectors, terms, whole=True):
            count = int(chunk.shape[0])
            numbers = np.repeat(np.arange(rows, rows + count), np.diff(chunk.indptr))
            turned.add(rank[chunk.indices], numbers, chunk.data)
            lengths.append(np.asarray(chunk.sum(axis=1, dtype=np.float64)).astype(np.int64))
            rows += count
        turned.finish(len(terms))
        length = np.concatenate(lengths)
        used = int(np.count_nonzero(turned.counts))
        total = int(length.sum())
        average = total / rows if rows else 0.0
        header = Header(used, rows, used, rows, total, average, description)
        with packed_file(path) as stream:
            stream.write(wire.delimited(_header_message(header)))
            with progress(f"write {path.name}", used, "terms", show=used > SHOWN) as advance:
                for first, part in turned.ranges(rows):
                    here = [terms[at] for at in order[first : first + part.shape[0]]]
                    for message in _list_messages(part, here):
                        stream.write(wire.delimited(message))
                        advance()
            written = 0
            for document in documents:
                if written < rows:
                    stream.write(wire.delimited(_record_message(written, document, length)))
                written += 1
            refuse_count(written, rows)
    return header


def _header_message(header: Header) -> bytes:
    counts = (
        VERSION,
        header.postings_lists,
        header.documents,
        header.total_postings_lists,
        header.total_documents,
        header.total_terms,
    )
    return b"".join(
        (
            *(wire.number_field(number, count) for number, count in enumerate(counts, 1)),
            wire.double_field(7, header.average_length),
            wire.bytes_field(8, header.description.encode("utf-8")),
        )
    )


def _list_messages(part: csr_array[Any], terms: Sequence[str]) -> Iterator[bytes]:
    from sluice.retrieval.exchange.formats.ciff_postings import encoded

    docids, weights = part.indices.astype(np.int64), part.data.astype(np.int64)
    ends = part.indptr.tolist()
    for place in range(len(ends) - 1):
        begin, end = ends[place], ends[place + 1]
        if begin < end:
            yield b"".join(
                (
                    wire.bytes_field(1, terms[place].encode("utf-8")),
                    wire.number_field(2, end - begin),
                    wire.number_field(3, int(weights[begin:end].sum())),
                    encoded(docids[begin:end], weights[begin:end]),
                )
            )


def _record_message(docid: int, document: Document, lengths: NDArray[np.int64]) -> bytes:
    return b"".join(
        (
            wire.number_field(1, docid),
            wire.bytes_field(2, document.id.encode("utf-8")),
            wire.number_field(3, int(lengths[docid])),
        )
    )


CIFF: Final = Format("ciff", "sparse", CiffFile, write_ciff, described=True, largest=255)
