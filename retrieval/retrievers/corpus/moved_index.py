"""Moves the vectors of one index into another, by row."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from sluice.encoders.foundation.progress import progress
from sluice.indexing.databases.index import DatabaseIndex
from sluice.indexing.index import Index
from sluice.retrieval.documents.store import DocumentStore

CHUNK = 8_192


def moved_index(index: Index, target: Index, documents: DocumentStore) -> Index:
    """Return ``target`` with the vectors of another index, by row; deleted rows are zeros there.

    One that learns from a sample of the vectors is trained first.
    """
    from sluice.retrieval.retrievers.corpus.vectors.corpus_vectors import sampled_rows

    deleted = index.deleted_rows
    live = np.ones(index.rows, dtype=np.bool_)
    live[deleted] = False
    if isinstance(target, DatabaseIndex):
        target.described = documents.described
    rows = np.flatnonzero(live)
    if wanted := target.training_rows(len(rows)) if len(rows) else 0:
        target.train(index.documents(rows[sampled_rows(len(rows), wanted, target.seed)]))
    with progress("index", index.rows, "documents", show=index.rows > CHUNK) as advance:
        for start in range(0, index.rows, CHUNK):
            among = live[start : start + CHUNK]
            stored = index.documents(start + np.flatnonzero(among))
            # The product leaves a row of zeros where there is no vector.
            places = sparse.eye_array(len(among), dtype=np.float32, format="csc")[:, among]
            advance(len(target.add(places @ stored)))
    if len(deleted):
        target.delete(deleted)
    return target
