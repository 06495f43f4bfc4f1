"""A vector for each word of a text, drawn by the word: what tests of late interaction encode by."""

import functools
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.tokens import TokenVectors

DIM = 16


@functools.cache
def word_vector(word: str) -> NDArray[np.float32]:
    """Return a word's vector, of length 1."""
    vector = np.random.default_rng(zlib.crc32(word.encode())).standard_normal(DIM)
    return np.float32(vector / np.linalg.norm(vector))


def token_vectors(texts: Sequence[str]) -> TokenVectors:
    """Return the vectors of texts' words; ``Retriever.build(token_vectors, corpus)`` takes it."""
    return TokenVectors.of([np.array([word_vector(w) for w in t.split()]) for t in texts], DIM)


def straight_max_sim(query: NDArray[np.float32], document: NDArray[np.float32]) -> float:
    """Return MaxSim as it is written down, in float64; -1 for each token without a partner."""
    return float(
        sum(
            max((sum(float(a) * float(b) for a, b in zip(q, d, strict=True)) for d in document),
                default=-1.0)
            for q in query
        )
    )  # fmt: skip
