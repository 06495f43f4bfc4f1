"""Fill an index in Qdrant's engine, chunk by chunk: argv is the folder, the work folder, chunks."""

import sys
import time
from pathlib import Path

import numpy as np

from sluice.indexing.databases.qdrant.index import QdrantIndex

CHUNK = 40


def filled(folder: str, work: Path, chunks: int, wait: float = 0.0) -> QdrantIndex:
    """Build the index; the caller may kill it at any moment and call it again."""
    index = QdrantIndex(folder)
    index.spool(work)
    vectors = np.random.default_rng(0).integers(-3, 4, (chunks * CHUNK, 6)).astype(np.float32)
    for start in range(0, len(vectors), CHUNK):
        index.add(vectors[start : start + CHUNK])
        sys.stdout.write(f"{start}\n")
        sys.stdout.flush()
        time.sleep(wait)
    return index


if __name__ == "__main__":
    filled(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), wait=0.02)
