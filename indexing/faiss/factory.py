"""Factory strings and search parameters of FAISS, checked before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.indexing.faiss.binary_engine import BinaryEngine
from sluice.indexing.faiss.engine import Engine
from sluice.indexing.faiss.float_engine import FloatEngine
from sluice.indexing.faiss.structure import ALL_PARAMETERS
from sluice.indexing.index import SearchParameters
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


@dataclass(frozen=True, slots=True)
class FaissParameters(SearchParameters):
    """Those of an index with this engine; all of them while its type is not known."""

    engine: Engine | None = None

    @classmethod
    def of_engine(cls, engine: Engine | None, rescores: bool = False) -> Self:
        """Return what a search takes, ``rescore`` too where the index has the full vectors."""
        names = ALL_PARAMETERS if engine is None else engine.traits.parameters
        return cls((*names, RESCORE) if rescores else names, _check_values, engine=engine)

    def check(self, params: Mapping[str, Any]) -> None:
        """Raise ``ConfigError`` for a name the type does not take and for a wrong value."""
        if not isinstance(params, Mapping):
            raise ConfigError(
                f"params is {params!r}, expected search parameters by name, "
                "such as {efSearch: 64}"
            )
        SearchParameters.check(self, params)

    def _taken(self, unknown: str) -> str:
        names = ", ".join(self.names)
        if self.engine is not None and not self.engine.traits.parameters:
            kind = self.engine.traits.kind
            names = f"{names or 'none'} (faiss has no search parameters for {kind})"
        if unknown != RESCORE:
            return names
        return f"{names}; rescore needs the full vectors: make the index with rescore=... itself"


def _check_values(params: Mapping[str, Any]) -> None:
    for name, value in params.items():
        whole_number(value, f"params: {name}", 0 if name == RESCORE else 1, LARGEST_PARAMETER)
