"""Which family of FAISS classes a factory string names, and what it takes before it is made."""

from __future__ import annotations

from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing.faiss.binary_engine import BinaryEngine
from sluice.indexing.faiss.engine import Engine
from sluice.indexing.faiss.float_engine import FloatEngine
from sluice.indexing.storage.exact_scores import Metric

PROBE_WIDTHS = (64, 120, 768, 1680)  # most sub-quantisers divide one of them


def family(factory: str) -> type[Engine]:
    """Return the engine of a factory string: FAISS's binary ones begin with B, no others do."""
    return BinaryEngine if factory.startswith("B") else FloatEngine


def checked_factory(factory: str, metric: Metric) -> str:
    """Return ``factory`` if FAISS can make it for this metric, whatever the width."""
    if not isinstance(factory, str):
        raise ConfigError(f"factory is {factory!r}, expected a string such as 'Flat' or 'HNSW32'")
    family(factory).refuse(factory, metric)
    return factory


def probe(factory: str, metric: Metric) -> Engine | None:
    """Return an empty index of some width; None when FAISS makes none of those tried."""
    for width in PROBE_WIDTHS:
        try:
            return family(factory).make(factory, metric, width)
        except ConfigError:
            continue
    return None
