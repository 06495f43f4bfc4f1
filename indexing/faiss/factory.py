"""Factory strings and search parameters of FAISS, checked before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import whole_number
from sluice.indexing.faiss.binary_engine import BinaryEngine
from sluice.indexing.faiss.engine import Engine
from sluice.indexing.faiss.float_engine import FloatEngine
from sluice.indexing.faiss.structure import ALL_PARAMETERS
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


RESCORE = "rescore"
LARGEST_PARAMETER = 2**31 - 1  # FAISS keeps some in an int


def names_of(engine: Engine | None, *, rescores: bool) -> tuple[str, ...]:
    """Return the names a search takes; all of them while the type is not known."""
    names = ALL_PARAMETERS if engine is None else engine.traits.parameters
    return (*names, RESCORE) if rescores else names


def check_parameters(params: Mapping[str, Any], engine: Engine | None, *, rescores: bool) -> None:
    """Raise ``ConfigError`` for a name the type does not take and for a wrong value."""
    if not isinstance(params, Mapping):
        raise ConfigError(
            f"params is {params!r}, expected search parameters by name, such as {{efSearch: 64}}"
        )
    known = names_of(engine, rescores=rescores)
    for name, value in params.items():
        if name not in known:
            raise ConfigError(
                f"params: unknown search parameter {name!r}; this index takes "
                f"{_taken(known, engine)}{_remedy(name)}{suggest(name, known)}"
            )
        whole_number(value, f"params: {name}", 0 if name == RESCORE else 1, LARGEST_PARAMETER)


def _taken(known: tuple[str, ...], engine: Engine | None) -> str:
    if engine is None or engine.traits.parameters:
        return ", ".join(known)
    return f"{', '.join(known) or 'none'} (faiss has no search parameters for {engine.traits.kind})"


def _remedy(name: str) -> str:
    if name != RESCORE:
        return ""
    return "; rescore needs the full vectors: make the index with rescore=... itself"
