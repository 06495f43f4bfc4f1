"""Reads the vectors of a collection back, for new shards, where the index has them exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sluice.encoders.encoder import hooks_of
from sluice.indexing import FlatIndex, InvertedIndex
from sluice.indexing.index import Index
from sluice.indexing.wrappers.sharded import ShardedIndex
from sluice.retrieval.documents.store import DocumentStore

CHUNK = 4_096  # documents at a time


def stored_vectors(encoder: Any, store: DocumentStore, index: Index) -> Iterator[Any] | None:
    """Return the vectors of the store's documents in row order, in chunks; None: encode again.

    An encoder that learns from the collection encodes again, because it forgets what was deleted.
    """
    hooks = hooks_of(encoder)
    parts = index.parts if isinstance(index, ShardedIndex) else [index]
    if hooks.fits_documents or hooks.needs_term_floors or not all(map(_exact, parts)):
        return None
    live = np.delete(np.arange(store.rows_total), store.deleted)
    return (index.documents(live[at : at + CHUNK]) for at in range(0, len(live), CHUNK))


def _exact(part: Index) -> bool:
    if type(part) is InvertedIndex:
        return part.settings.exact and part.settings.top_terms is None
    return type(part) is FlatIndex
