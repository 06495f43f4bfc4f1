"""What every gather is: it names the documents whose exact scores are worth computing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.indexing.live_rows import Mask, Rows


class Gather(ABC):
    """Documents by row, as the index has them, and the most promising ones for a query."""

    type_name: ClassVar[str]

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @property
    @abstractmethod
    def trained(self) -> bool:
        """Whether ``train`` was called."""

    @property
    @abstractmethod
    def dim(self) -> int | None:
        """Width of the vectors it learnt from; None before ``train``."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of all arrays."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of documents held."""

    @abstractmethod
    def train(self, sample: TokenVectors, documents: int) -> None:
        """Learn from a sample of the ``documents`` that are expected."""

    @abstractmethod
    def assigned(self, documents: TokenVectors) -> Any:
        """Return what ``append`` needs of documents; changes nothing, and may take long."""

    @abstractmethod
    def append(self, assigned: Any) -> None:
        """Add documents in the next rows."""

    @abstractmethod
    def keep_only(self, allowed: Mask) -> None:
        """Drop the rows that ``allowed`` excludes; the others move up in order."""

    @abstractmethod
    def candidates(
        self,
        query: NDArray[np.float32],
        count: int,
        allowed: Mask | None,
        parameters: Mapping[str, Any],
    ) -> Rows:
        """Return at most ``count`` rows for one query ``[tokens, dim]``, in no order."""

    @abstractmethod
    def write(self, folder: Path) -> dict[str, Any]:
        """Write the arrays into the index's folder; return the facts that describe them."""

    @classmethod
    @abstractmethod
    def read(cls, seed: int, folder: Path, facts: Mapping[str, Any]) -> Self:
        """Open what ``write`` wrote."""
