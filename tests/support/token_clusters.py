"""Token vectors in clusters, as an encoder's are: what a gather is for."""

from __future__ import annotations

import numpy as np

from sluice.encoders.foundation.tokens import TokenVectors

DIM = 16


def clustered(rng: np.random.Generator, texts: int, most: int = 12) -> TokenVectors:
    """Return texts of up to ``most`` unit vectors near 40 fixed points; some have none."""
    points = np.random.default_rng(5).standard_normal((40, DIM))
    lengths = rng.integers(0, most + 1, texts)
    topics = rng.integers(0, 40, (texts, 3))
    chosen = [
        points[rng.choice(topic, length)] for topic, length in zip(topics, lengths, strict=True)
    ]
    values = np.concatenate([*chosen, np.zeros((0, DIM))])
    values += 0.4 * rng.standard_normal(values.shape)
    values /= np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-9)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    return TokenVectors(values.astype(np.float32), bounds.astype(np.int64))


def max_sim(query: np.ndarray, document: np.ndarray) -> float:
    """Return MaxSim in float64, -inf where either has no tokens."""
    if not len(query) or not len(document):
        return -np.inf
    return float((query.astype(np.float64) @ document.astype(np.float64).T).max(axis=1).sum())
