"""From documents to an index: the places where a document's text becomes encoder input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from encoders.errors import ConfigError, DataError
from encoders.progress import progress
from retrieval.document_store import DocumentStore

if TYPE_CHECKING:
    from indexing import Index
    from retrieval.document import Document

CHUNK = 16_384  # documents encoded at a time: bounds memory while indexing


def document_input(encoder: Any, document: Document) -> str | dict[str, str]:
    """Return what an encoder reads of a document: its full text, or its fields by name.

    An encoder whose ``fields`` is set reads fields: title, text and every text in the metadata.
    """
    if not getattr(encoder, "fields", None):
        return document.full_text
    stored = {name: text for name, text in document.metadata.items() if isinstance(text, str)}
    return {**stored, "title": document.title, "text": document.text}


def filled_index(
    encoder: Any,
    documents: DocumentStore,
    index: Index | None,
    vectors: Iterable[Any] | None = None,
) -> Index:
    """Return an index of every document of the store, in row order."""
    from indexing import FlatIndex, InvertedIndex

    if index is not None and index.rows:
        raise ConfigError(f"index: has {index.rows:,} rows already; build takes an empty one")
    if vectors is None and hasattr(encoder, "fit_documents"):
        filled = InvertedIndex() if index is None else index
        filled.add(encoder.fit_documents(document_input(encoder, each) for each in documents))
        return filled
    if index is None:
        dense = isinstance(encoder.encode_documents([]), np.ndarray)
        filled = FlatIndex() if dense else InvertedIndex()
    else:
        filled = index
    with progress("index", len(documents), "documents", show=len(documents) > CHUNK) as advance:
        if vectors is None:
            vectors = map(encoder.encode_documents, _chunks(encoder, documents))
        for chunk in vectors:
            advance(len(filled.add(chunk)))
    if filled.rows != len(documents):
        raise DataError(f"vectors: {filled.rows:,} for {len(documents):,} documents; give one each")
    return filled


def _chunks(encoder: Any, documents: DocumentStore) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    for document in documents:
        chunk.append(document_input(encoder, document))
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def index_rows(
    encoder: Any, documents: DocumentStore, index: Index, rows: NDArray[np.int64]
) -> None:
    """Encode and index rows that the store has and the index does not."""
    grow = getattr(encoder, "add_documents", encoder.encode_documents)
    for chunk in _inputs(encoder, documents, rows):
        index.add(grow(chunk))


def forget_rows(
    encoder: Any, documents: DocumentStore, index: Index, rows: NDArray[np.int64]
) -> None:
    """Delete rows from the index and from what the encoder counted; the store still has them."""
    if hasattr(encoder, "remove_documents"):
        for chunk in _inputs(encoder, documents, rows):
            encoder.remove_documents(chunk)
    index.delete(rows)


def _inputs(encoder: Any, documents: DocumentStore, rows: NDArray[np.int64]) -> Iterator[list[Any]]:
    for start in range(0, len(rows), CHUNK):
        chunk = documents.documents(rows[start : start + CHUNK])
        yield [document_input(encoder, document) for document in chunk]
