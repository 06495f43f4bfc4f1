"""Begins a retriever in shards: documents in their stores, and an empty index for each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing.index import Index, Recipe
from sluice.indexing.table import SHARDABLE
from sluice.indexing.wrappers.sharded import ShardedIndex
from sluice.retrieval.retrievers.corpus.fill_index import default_index
from sluice.retrieval.retrievers.folder import DOCUMENTS, SHARDS
from sluice.retrieval.retrievers.shards.saving import next_set
from sluice.retrieval.retrievers.shards.store import ShardedStore

if TYPE_CHECKING:
    from sluice.retrieval.documents.document import Document

# Scores of one document and one query; those of the others need the whole collection.
PARTABLE = ("cosine", "dot", "max_sim")


def new_shards(
    path: Path,
    encoder: Any,
    documents: Iterable[Document],
    index: Index | None,
    *,
    shards: int | None = None,
    shard_size: int | None = None,
) -> tuple[ShardedStore, ShardedIndex, str]:
    """Write the documents into new shards below ``path``; return them, an index, the folder's name.

    ``index`` is empty, and copied for each shard. ``ConfigError`` for an encoder or an index that
    cannot be split, before anything is written.
    """
    check_partable(encoder, index)
    shard_set = next_set(path)
    store = ShardedStore.written(
        path, path / SHARDS / shard_set, documents, part=DOCUMENTS, shards=shards,
        shard_size=shard_size,
    )  # fmt: skip
    empty = default_index(encoder) if index is None else index
    return store, ShardedIndex.over(empty, store.shard_rows, store.names), shard_set


def check_partable(encoder: Any, index: Any) -> None:
    """Raise ``ConfigError`` for what answers a query from the whole collection only."""
    similarity = hooks_of(encoder).similarity
    if similarity not in PARTABLE:
        raise ConfigError(
            f"shards: the scores of this encoder ({similarity}) need the whole collection; "
            f"expected one of {', '.join(PARTABLE)}, or leave shards out"
        )
    if isinstance(index, Recipe):
        raise ConfigError(
            "shards: index: auto measures one index and chooses; name the type of the shards: "
            f"{', '.join(SHARDABLE)}"
        )
    if isinstance(index, Index) and index.type_name:
        ShardedIndex.check(index)
