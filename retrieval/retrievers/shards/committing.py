"""Writes what a build or a change made of a retriever, whole or in shards, in one step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.retrieval.retrievers.folder import INDEX, Head, head_of, write_head

if TYPE_CHECKING:
    from sluice.indexing import Index
    from sluice.retrieval.documents.store import DocumentStore


def committed(
    path: Path,
    name: str,
    encoder: Any,
    documents: DocumentStore,
    index: Index,
    origin: dict[str, Any],
    passages: dict[str, Any] | None,
    shard_set: str | None,
) -> Head:
    """Save encoder and index, then make them and the saved documents the folder's current state.

    ``shard_set`` is the folder of the shards, None of a retriever without any.
    """
    index.encoder_fingerprint = str(encoder.fingerprint)
    if shard_set is None:
        index.save(path / INDEX)
        head = head_of(path, name, encoder, documents, origin, passages)
    else:
        from sluice.retrieval.retrievers.shards.saving import save_shards

        head = save_shards(path, name, encoder, documents, index, origin, passages, shard_set)
    write_head(path, head)
    index.settle()
    return head
