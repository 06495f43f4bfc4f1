"""What makes scores of vectors that are not compared by an inner product."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from sluice.training.protocol import Similarity

if TYPE_CHECKING:
    from torch import Tensor


class Scoring(Protocol):
    """A function of queries' and documents' vectors, see ``TokenScoring`` and ``QNetScoring``."""

    @property
    def similarity(self) -> Similarity:
        """What losses take their default temperature by."""
        ...

    @property
    def facts(self) -> dict[str, Any]:
        """The settings that change what is learnt."""
        ...

    def scores(self, queries: Tensor, documents: Tensor, *, unit: bool = False) -> Tensor:
        """Return ``[B, N]``; ``unit`` makes every vector of length 1 first, where it can."""
        ...
