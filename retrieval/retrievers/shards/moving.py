"""Reads the vectors of a collection back, for new shards, where the index has them exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.encoder import hooks_of
from sluice.indexing import FlatIndex, InvertedIndex
from sluice.indexing.index import Index
from sluice.indexing.wrappers.sharded import ShardedIndex
from sluice.retrieval.documents.document import document_input
from sluice.retrieval.documents.store import DocumentStore

CHUNK = 4_096  # documents at a time

Rows = NDArray[np.int64]


def stored_vectors(
    encoder: Any, store: DocumentStore, index: Index, rows: Rows
) -> Iterator[Any] | None:
    """Return the vectors of the store's documents in row order, in chunks; None: encode again.

    ``rows`` are the documents' in the index; one of row -1 is encoded. An encoder that learns from
    the collection encodes again, because it forgets what was deleted.
    """
    hooks = hooks_of(encoder)
    parts = index.parts if isinstance(index, ShardedIndex) else [index]
    if hooks.fits_documents or hooks.needs_term_floors or not all(map(_exact, parts)):
        return None
    return (
        _vectors(encoder, store, index, rows[at : at + CHUNK], at)
        for at in range(0, len(rows), CHUNK)
    )


def _vectors(encoder: Any, store: DocumentStore, index: Index, rows: Rows, first: int) -> Any:
    new = rows < 0
    if not new.any():
        return index.documents(rows)
    documents = store.documents(first + np.flatnonzero(new))
    made = encoder.encode_documents([document_input(encoder, each) for each in documents])
    if new.all():  # the index may be empty, and know no width
        return made
    kept, dense = index.documents(rows[~new]), isinstance(made, np.ndarray)
    joined = np.concatenate([kept, made]) if dense else sparse.vstack([kept, made], format="csr")
    return joined[np.argsort(np.argsort(new, kind="stable"))]


def _exact(part: Index) -> bool:
    if type(part) is InvertedIndex:
        return part.settings.exact and part.settings.top_terms is None
    return type(part) is FlatIndex
