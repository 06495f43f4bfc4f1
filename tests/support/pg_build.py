"""Build a retriever in PostgreSQL: folder, address, and the chunk at whose half to end itself."""

import hashlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import numpy as np  # noqa: E402
from small_world import documents  # noqa: E402

from sluice.indexing.databases.pgvector.index import PgvectorIndex  # noqa: E402
from sluice.indexing.databases.pgvector.table import Table  # noqa: E402
from sluice.retrieval import Retriever  # noqa: E402

CHUNK = 10


def vector(text: str) -> list[float]:
    """Return small whole numbers that depend on a text alone."""
    return [byte % 5 - 2.0 for byte in hashlib.sha256(text.encode()).digest()[:6]]


def embed(texts: list[str]) -> Any:
    """Return a vector of each text."""
    return np.array([vector(text) for text in texts], np.float32).reshape(-1, 6)


def build(folder: Path, dsn: str) -> Retriever:
    """Build from vectors that are given chunk by chunk."""
    texts = [each.full_text for each in documents()]
    chunks = [embed(texts[at : at + CHUNK]) for at in range(0, len(texts), CHUNK)]
    index = PgvectorIndex(dsn, table="killed")
    return Retriever.build(embed, documents(), vectors=iter(chunks), index=index, path=folder)


def strike(at: int) -> None:
    """End this process with SIGKILL in the middle of the copy of chunk ``at``."""
    copy, calls = Table.copy, iter(range(at + 1))

    def half(self: Table, connection: Any, parts: list[bytes]) -> None:
        if next(calls) < at:
            copy(self, connection, parts)
            return

        def dying() -> Iterator[bytes]:
            yield parts[0][: len(parts[0]) // 2]
            os.kill(os.getpid(), signal.SIGKILL)

        copy(self, connection, dying())

    Table.copy = half  # type: ignore[method-assign]


if __name__ == "__main__":
    strike(int(sys.argv[3]))
    build(Path(sys.argv[1]), sys.argv[2])
