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
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import packed_file
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.progress import progress
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import distinct
from sluice.retrieval.exchange.sparse import ciff_wire as wire
from sluice.retrieval.exchange.sparse.transposition import Transposition
from sluice.retrieval.exchange.sparse.vectors_folder import (
    Column,
    checked_chunks,
    refuse_count,
    refuse_repeated,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

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

    def documents(self) -> Iterator[Document]:
        """Yield the documents in the order of their records, without texts."""
        return distinct(self._records)

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

    def _records(self) -> Iterator[tuple[str, Document]]:
        docids, header = array("q"), self.header
        with wire.MessageStream(self.path) as stream:
            stream.skip("the Header")
            for number in range(header.postings_lists):
                stream.skip(f"PostingsList {number}")
            for number in range(header.documents):
                docid, name = _record(stream, number)
                docids.append(docid)
                yield f"{self.path}: DocRecord {number}", Document(name, "", "")
            if not stream.ended():
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
    from sluice.retrieval.exchange.sparse.ciff_postings import decoded, outline

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
        for chunk in checked_chunks(vectors, terms, whole=True):
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
    from sluice.retrieval.exchange.sparse.ciff_postings import encoded

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
