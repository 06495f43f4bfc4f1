"""Token vectors for ``bench_late_gather.py``: of real texts, and a million short documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.tokens import TokenVectors

DIM = 128
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
BATCH = 512  # texts encoded at a time
TOKENS = 30  # of a short document
OTHER = 10  # of these, so many come from another passage
NOISE = 0.5  # length of what is added to a unit vector: the cosine to it is .89
CHUNK = 10_000  # short documents made at a time


def token_vectors(collection: Path, work: Path) -> tuple[TokenVectors, TokenVectors]:
    """Return documents' and queries' token vectors, encoded once and kept in ``work``.

    They are the last layer's states of MiniLM, on the 128 first principal axes, of length 1.
    """
    found = []
    for side in ("corpus", "queries"):
        names = [work / f"{collection.name}.{side}.{part}.npy" for part in ("values", "bounds")]
        if not names[1].exists():
            vectors = _encoded(_texts(collection / f"{side}.jsonl"), work)
            np.save(names[0], vectors.values)
            np.save(names[1], vectors.bounds)
        found.append(TokenVectors(np.load(names[0], mmap_mode="r"), np.load(names[1])))
    return found[0], found[1]


def _texts(path: Path) -> list[str]:
    with path.open(encoding="utf-8") as stream:
        lines = [json.loads(line) for line in stream]
    return [f"{line.get('title') or ''} {line['text']}".strip() for line in lines]


def _encoded(texts: list[str], work: Path) -> TokenVectors:
    from sluice.encoders import DenseEncoder
    from sluice.encoders.transformer.text_encoder import token_states

    encoder = DenseEncoder.from_pretrained(MODEL)
    axes_file = work / "axes.npy"
    parts = []
    for start in range(0, len(texts), BATCH):
        states = token_states(encoder, texts[start : start + BATCH], "document")
        values = states.values.float().numpy()
        if not axes_file.exists():  # of the first texts that are encoded
            _, axes = np.linalg.eigh(values.T @ values)
            np.save(axes_file, axes[:, ::-1][:, :DIM])
        values = values @ np.load(axes_file)
        values /= np.linalg.norm(values, axis=1, keepdims=True)
        parts.append(TokenVectors(values, states.bounds))
    return TokenVectors.joined(parts, DIM)


def short_documents(
    base: TokenVectors, count: int, first: int = 0
) -> Iterator[tuple[int, TokenVectors]]:
    """Yield chunks of short documents from number ``first`` on, each with its first number.

    A document is a window of 20 tokens of one passage and one of 10 of another, each vector
    perturbed by noise; chunk c is a function of c alone, so a build may go on where it stopped.
    """
    long = np.flatnonzero(base.lengths >= TOKENS)
    for start in range(first, count, CHUNK):
        rng = np.random.default_rng([7, start])
        size = min(CHUNK, count - start)
        yield start, _perturbed(base, long, size, rng, (TOKENS - OTHER, OTHER))


def short_queries(base: TokenVectors, count: int) -> TokenVectors:
    """Return queries of 32 perturbed tokens of one passage each."""
    rng = np.random.default_rng([8, 0])
    long = np.flatnonzero(base.lengths >= 32)
    return _perturbed(base, long, count, rng, (32,))


def _perturbed(
    base: TokenVectors, passages: NDArray[np.int64], count: int, rng: np.random.Generator,
    windows: tuple[int, ...],
) -> TokenVectors:  # fmt: skip
    places = []
    for tokens in windows:
        chosen = rng.choice(passages, count)
        starts = base.bounds[chosen] + rng.integers(0, base.lengths[chosen] - tokens + 1)
        places.append(starts[:, None] + np.arange(tokens))
    joined = np.concatenate(places, axis=1)
    values = base.values[joined.ravel()]
    noise = rng.standard_normal(values.shape, dtype=np.float32)
    values = values + noise * np.float32(NOISE / np.sqrt(values.shape[1]))
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    return TokenVectors(values, np.arange(count + 1) * joined.shape[1])
