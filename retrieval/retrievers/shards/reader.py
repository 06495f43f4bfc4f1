"""Reads tokens and terms of a document in the shard that holds it."""

from __future__ import annotations

from sluice.indexing.wrappers.sharded import ShardedIndex
from sluice.retrieval.retrievers.corpus.token_scores import TokenReader
from sluice.retrieval.retrievers.shards.store import ShardedStore


class ShardedReader(TokenReader):
    """A reader over shards."""

    def holding(self, row: int) -> tuple[TokenReader, int]:
        """Return the reader of the shard that holds a row, and its own row there."""
        if not (isinstance(self.index, ShardedIndex) and isinstance(self.store, ShardedStore)):
            raise TypeError("documents and index are not in shards")
        part, local = self.index.part(row)
        return TokenReader(self.encoder, part, self.store.part(row), self.cut), local
