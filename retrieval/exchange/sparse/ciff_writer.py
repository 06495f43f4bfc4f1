"""Writing CIFF: documents and their whole-number weights, turned round to postings by term."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.files import packed_file
from sluice.encoders.foundation.progress import progress
from sluice.retrieval.documents.document import Document
from sluice.retrieval.exchange.sparse import ciff_wire as wire
from sluice.retrieval.exchange.sparse.ciff import SHOWN, VERSION, Header
from sluice.retrieval.exchange.sparse.sparse_vectors import (
    checked_chunks,
    refuse_count,
    refuse_repeated,
)
from sluice.retrieval.exchange.sparse.transposition import Transposition

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def write_ciff(
    path: str | Path,
    documents: Iterable[Document],
    terms: Sequence[str],
    vectors: csr_array[Any] | Iterable[csr_array[Any]],
    *,
    description: str = "",
) -> Header:
    """Write documents and their whole-number weights as a CIFF file, compressed if named ``.gz``.

    ``vectors`` is a matrix ``[documents, terms]``, or matrices of consecutive documents. Terms
    without postings are left out, the others stand in the order of their bytes, as Lucene has
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
