"""A FAISS index built again without its deleted rows, with the quantisers that it has."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing.checks import Dense
from sluice.indexing.faiss.engine import Engine
from sluice.indexing.live_rows import Mask
from sluice.indexing.storage.dense_rows import DenseRows

COPY_BLOCK = 65_536  # vectors read back at a time


def compacted(engine: Engine, allowed: Mask, full: DenseRows | None) -> Engine:
    """Return an index of the allowed rows, of the full vectors or else of the decoded ones.

    ``ConfigError`` for a type that cannot give its vectors back when there are no full ones.
    """
    smaller = engine.emptied()
    blocks = _decoded(engine, allowed) if full is None else _kept(full, allowed)
    if not engine.grows:
        blocks = _joined(blocks)
    for vectors in blocks:
        smaller.add(vectors)
    return smaller


def _kept(full: DenseRows, allowed: Mask) -> Iterator[Dense]:
    for block in full.blocks(COPY_BLOCK, allowed):
        yield np.ascontiguousarray(block.vectors)


def _decoded(engine: Engine, allowed: Mask) -> Iterator[Dense]:
    for start in range(0, len(allowed), COPY_BLOCK):
        mask = allowed[start : start + COPY_BLOCK]
        if mask.any():
            try:
                vectors = engine.decoded(start, len(mask))
            except RuntimeError:
                raise ConfigError(
                    f"compact: faiss {engine.factory!r} cannot give its vectors back "
                    f"({engine.kind}); build the index again from the corpus, with rescore=1 to "
                    "keep the full vectors"
                ) from None
            yield vectors[mask]


def _joined(blocks: Iterator[Dense]) -> Iterator[Dense]:
    if parts := list(blocks):
        yield np.concatenate(parts)
