"""Fill an index in Qdrant's engine by chunks: argv is its folder, the work folder, how many."""

import sys
import time
from pathlib import Path

import numpy as np

from sluice.indexing.databases.qdrant.index import QdrantIndex

CHUNK = 40


def filled(folder: str, work: Path, chunks: int, stop: int | None = None) -> QdrantIndex:
    """Build the index; after the chunk ``stop`` of rows, wait to be killed."""
    index = QdrantIndex(folder)
    index.spool(work)
    vectors = np.random.default_rng(0).integers(-3, 4, (chunks * CHUNK, 6)).astype(np.float32)
    for start in range(0, len(vectors), CHUNK):
        index.add(vectors[start : start + CHUNK])
        sys.stdout.write(f"{start}\n")
        sys.stdout.flush()
        if start // CHUNK == stop:
            time.sleep(600)
    return index


if __name__ == "__main__":
    filled(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
