"""Four vectors with ids that are hard to write, and what a file of them must give back."""

from pathlib import Path

import numpy as np

from sluice.retrieval.exchange.vector_files import read_dense_vectors

IDS = ["d1", "ünï 😀", "7", " spaced\tid "]
VECTORS = np.random.default_rng(5).standard_normal((4, 3)).astype(np.float32)


def same(path: Path, ids: list[str] = IDS, vectors: np.ndarray = VECTORS) -> None:
    found = read_dense_vectors(path)
    assert (len(found), found.dim) == vectors.shape
    assert list(found.ids()) == list(found.ids()) == ids
    np.testing.assert_array_equal(found.array(), vectors)
    assert all(chunk.dtype == np.float32 for chunk in found.chunks())
