"""Vectors read back from a FAISS index by row, as it stores them."""

from __future__ import annotations

import faiss
import numpy as np

from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing.checks import Dense
from sluice.indexing.faiss.engine import Engine
from sluice.indexing.faiss.structure import parts
from sluice.indexing.live_rows import Rows

READ_BLOCK = 65_536  # vectors read back at a time


def decoded_documents(engine: Engine, rows: Rows) -> Dense:
    """Return the vectors of rows in their order, for quantised types the decoded ones.

    Ranges are read, of at most 65,536 rows: an inverted file finds one row no faster than many.
    ``ConfigError`` for a type that cannot give its vectors back.
    """
    found = np.empty((len(rows), engine.width), np.float32)
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
            found[order[place:stop]] = vectors[part - first]
            place = stop
    except RuntimeError:
        raise ConfigError(
            f"documents: faiss {engine.factory!r} cannot give its vectors back ({engine.kind}); "
            "build the index again from the corpus, with rescore=1 to keep the full vectors"
        ) from None
    return found


def _refuse_scanned_lists(engine: Engine) -> None:
    """Raise ``RuntimeError`` where FAISS 1.15 crashes if the index was read from a file."""
    if isinstance(engine.index, faiss.Index):
        *_, inner = parts(engine.index)
        if isinstance(inner, faiss.IndexIVFFastScan):
            raise RuntimeError("codes in lists for fast scan")
