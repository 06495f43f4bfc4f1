"""Vectors read back from a FAISS index: by row, and into a copy without its deleted rows."""

from __future__ import annotations

from collections.abc import Iterator

import faiss
import numpy as np

from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing.checks import Dense
from sluice.indexing.faiss.engine import Engine
from sluice.indexing.faiss.structure import parts
from sluice.indexing.live_rows import Mask, Rows
from sluice.indexing.storage.rows import DenseRows

READ_BLOCK = 65_536  # vectors read back at a time


def compacted(engine: Engine, allowed: Mask, full: DenseRows | None) -> Engine:
    """Return an index of the allowed rows, of the full vectors or else of the decoded ones.

    ``ConfigError`` for a type that keeps no full vectors and cannot give them back.
    """
    smaller = engine.emptied()
    blocks = _decoded(engine, allowed) if full is None else full.blocks(READ_BLOCK, allowed)
    if not engine.traits.grows:
        blocks = _joined(blocks)
    for vectors in blocks:
        smaller.add(vectors)
    return smaller


def _decoded(engine: Engine, allowed: Mask) -> Iterator[Dense]:
    for start in range(0, len(allowed), READ_BLOCK):
        mask = allowed[start : start + READ_BLOCK]
        if mask.any():
            try:
                vectors = engine.decoded(start, len(mask))
            except RuntimeError:
                raise ConfigError(_lost("compact", engine)) from None
            yield vectors[mask]


def _joined(blocks: Iterator[Dense]) -> Iterator[Dense]:
    if parts := list(blocks):
        yield np.concatenate(parts)


def decoded_documents(engine: Engine, rows: Rows) -> Dense:
    """Return the vectors of rows in their order, for quantised types the decoded ones.

    Ranges are read, of at most 65,536 rows: an inverted file finds one row no faster than many.
    ``ConfigError`` for a type that cannot give its vectors back.
    """
    documents = np.empty((len(rows), engine.width), np.float32)
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    try:
        _refuse_scanned_lists(engine)
        place = 0
        while place < len(rows):
            first = int(ascending[place])
            stop = int(np.searchsorted(ascending, first + READ_BLOCK))
            part = ascending[place:stop]
            vectors = engine.decoded(first, int(part[-1]) - first + 1)
            documents[order[place:stop]] = vectors[part - first]
            place = stop
    except RuntimeError:
        raise ConfigError(_lost("documents", engine)) from None
    return documents


def _refuse_scanned_lists(engine: Engine) -> None:
    """Raise ``RuntimeError`` where FAISS 1.15 crashes if the index was read from a file."""
    if isinstance(engine.index, faiss.Index):
        *_, inner = parts(engine.index)
        if isinstance(inner, faiss.IndexIVFFastScan):
            raise RuntimeError("codes in lists for fast scan")


def _lost(what: str, engine: Engine) -> str:
    return (
        f"{what}: faiss {engine.factory!r} cannot give its vectors back ({engine.traits.kind}); "
        "rebuild the index from the corpus, with rescore=1 to keep the full vectors"
    )
