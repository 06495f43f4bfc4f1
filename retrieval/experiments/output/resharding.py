"""Parts a built retriever over another number of shards, with the cache of its build."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from sluice.retrieval.experiments.output.folder import open_built
from sluice.retrieval.retrievers.retriever import Retriever


def reshard_folder(
    path: Path, shards: int, *, allow: Collection[str] = ()
) -> tuple[int, Retriever]:
    """Reshard a retriever's folder; return how many shards it had, 1 of a whole, and it."""
    retriever = open_built(path, allow)
    before = retriever.head.shards
    retriever.reshard(shards)
    return 1 if before is None else len(before["heads"]), retriever
