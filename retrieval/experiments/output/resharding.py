"""Parts a built retriever over another number of shards, with the cache of its build."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from sluice.retrieval.config.sections import CachedEncoding, RetrieverSection, checked
from sluice.retrieval.experiments.output.folder import open_built
from sluice.retrieval.retrievers.retriever import Retriever


def reshard_folder(
    path: Path, shards: int, *, allow: Collection[str] = ()
) -> tuple[int, Retriever]:
    """Reshard a retriever's folder; return how many shards it had, 1 of a whole, and it.

    Documents are encoded as the build noted; of a build in Python nothing is cached.
    """
    retriever = open_built(path, allow)
    noted = retriever.head.origin.get("config")
    section = noted.get("retriever") if isinstance(noted, Mapping) else None
    encoding = None
    if isinstance(section, Mapping):
        encoding = checked(section, RetrieverSection).encoding or CachedEncoding()
    before = retriever.head.shards
    retriever.reshard(shards, encoding=encoding)
    return 1 if before is None else len(before["heads"]), retriever
