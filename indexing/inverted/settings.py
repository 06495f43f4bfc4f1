"""Settings of an inverted index and of a search in it, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, NamedTuple

from annotated_types import Ge, Lt

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import is_number, whole_number
from sluice.indexing.inverted.search.record import ENGINES
from sluice.indexing.inverted.spooling.document_order import ORDERS

FIDELITIES: Final = ("exact", "u8")
MOST_BLOCK_SIZE: Final = 256


@dataclass(frozen=True, slots=True)
@checked()
class SegmentSettings:
    """How segments are built, and what searches may miss; ``ConfigError`` for invalid values."""

    fidelity: str = "exact"
    block_size: int | None = None
    order: str = "input"
    top_terms: Annotated[int | None, Ge(1)] = None
    loss: Annotated[float | None, Ge(0), Lt(1)] = None

    def __post_init__(self) -> None:
        choice("fidelity", self.fidelity, FIDELITIES)
        choice("order", self.order, ORDERS)
        if self.block_size is not None:
            size = whole_number(self.block_size, "block_size", 1)
            if size > MOST_BLOCK_SIZE or size & (size - 1):
                raise ConfigError(f"block_size: {size}, expected a power of two up to 256")

    @property
    def exact(self) -> bool:
        """Whether impacts are stored unrounded."""
        return self.fidelity == "exact"

    def facts(self) -> dict[str, Any]:
        """Return the settings as the manifest has them."""
        return asdict(self)


class SearchSettings(NamedTuple):
    """The parameters of one search."""

    engine: int = ENGINES["auto"]
    alpha: float = 1.0
    beta: float = 1.0

    @property
    def approximate(self) -> bool:
        """Whether the best documents may be missed."""
        return self.alpha < 1 or self.beta < 1


USUAL: Final = SearchSettings()
EXACT: Final = {"alpha": 1.0, "beta": 1.0}  # parameters that leave nothing out
SEARCH_PARAMETERS: Final = SearchSettings._fields


def search_settings(params: Mapping[str, Any] | None) -> SearchSettings:
    """Return the settings of ``params``, whose names were checked."""
    if not params:
        return USUAL
    shares = []
    for name, exact in EXACT.items():
        value = params.get(name, exact)
        if not is_number(value) or not 0 < value <= 1:
            raise ConfigError(f"params.{name}: {value!r}, expected a number above 0, at most 1")
        shares.append(float(value))
    engine = choice("params.engine", params.get("engine", "auto"), tuple(ENGINES))
    return SearchSettings(ENGINES[engine], *shares)


def choice(name: str, value: Any, known: Sequence[str]) -> str:
    """Return ``value`` if it is known; else raise ``ConfigError`` with the nearest name."""
    if value not in known:
        raise ConfigError(
            f"{name}: {value!r}, expected one of {', '.join(known)}{suggest(str(value), known)}"
        )
    return str(value)
