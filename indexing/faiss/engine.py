"""What ``FaissIndex`` asks of FAISS, whether the codes inside are floats or bits."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.indexing.checks import Dense
from sluice.indexing.live_rows import Mask
from sluice.indexing.storage.exact_scores import Metric

log = logging.getLogger("sluice")

Given = Mapping[str, Any]  # search parameters by name
Reach = Literal["scan", "codes", "lists", "graph"]  # what a search walks through

UNTRAINED_SAMPLE = 16_384  # vectors for value ranges and rotations, which have no centroids


class Found(NamedTuple):
    """Scores, higher is better, and rows ``[n, k]``; places that stay empty hold row -1."""

    scores: Dense
    rows: NDArray[np.int64]


class Engine(ABC):
    """One FAISS index: vectors in, scores and rows out, in FAISS's own order.

    A subclass is one family of FAISS classes. ``index`` is FAISS's object; one opened from a file
    is ``mapped``, and FAISS aborts the process when that grows, so ``add`` copies it first.
    """

    file: ClassVar[str]

    def __init__(self, factory: str, metric: Metric, index: Any, *, mapped: bool = False) -> None:
        self.factory = factory
        self.metric: Metric = metric
        self.index = index
        self.mapped = mapped
        self._said = False

    @classmethod
    @abstractmethod
    def make(cls, factory: str, metric: Metric, width: int) -> Self:
        """Make an empty index; ``ConfigError`` where FAISS cannot for this width and metric."""

    @classmethod
    @abstractmethod
    def refuse(cls, factory: str, metric: Metric) -> None:
        """Raise ``ConfigError`` for a string that no width makes valid."""

    @classmethod
    @abstractmethod
    def open(cls, factory: str, metric: Metric, path: Path, width: int, rows: int) -> Self:
        """Open a file that ``write`` wrote; ``IndexFormatError`` for another."""

    @abstractmethod
    def write(self, path: Path) -> None:
        """Write the index in FAISS's own format."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Dimensions of the vectors."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of the file that ``write`` writes."""

    @property
    @abstractmethod
    def centroids(self) -> int:
        """The largest number of centroids that training places in one space; 0 for none."""

    @property
    @abstractmethod
    def reach(self) -> Reach:
        """What a search walks through: all vectors, all codes, some lists, or a graph."""

    @property
    @abstractmethod
    def lists(self) -> tuple[int, int]:
        """Inverted lists, and how many of them a search probes by default; zeros without any."""

    @property
    @abstractmethod
    def beam(self) -> int:
        """Candidates that a search of a graph holds by default; 0 without one."""

    @property
    @abstractmethod
    def scores_stored(self) -> bool:
        """Whether ``stored_best`` can score chosen rows without decoding all the others."""

    @property
    @abstractmethod
    def grows(self) -> bool:
        """Whether vectors can be added to those that are there."""

    @property
    @abstractmethod
    def parameters(self) -> tuple[str, ...]:
        """Names of the search parameters that the type takes."""

    @property
    def rows(self) -> int:
        """Vectors that were added."""
        return int(self.index.ntotal)

    @property
    def untrained(self) -> bool:
        """Whether ``add`` has to wait for ``train``."""
        return not self.index.is_trained

    @property
    def sample(self) -> int:
        """How many vectors to train on, when there are as many."""
        if not self.untrained:
            return 0
        return 256 * self.centroids or UNTRAINED_SAMPLE

    @property
    def kind(self) -> str:
        """Name of FAISS's class."""
        return type(self.index).__name__

    def train(self, vectors: Dense) -> None:
        """Train on vectors ``[n, width]``; ``DataError`` where FAISS fails."""
        try:
            self._train(vectors)
        except RuntimeError as error:
            raise DataError(
                f"faiss {self.factory!r}: training on {len(vectors):,} vectors failed: "
                f"{reason(error)}"
            ) from None

    def add(self, vectors: Dense) -> None:
        """Append vectors; on an error an empty index stays empty."""
        if self.rows and not self.grows:
            raise ConfigError(
                f"faiss {self.factory!r}: {self.kind} cannot grow; add all documents in one call, "
                "or choose HNSW"
            )
        if self.mapped:
            self.index, self.mapped = self._copied(), False
        empty = not self.rows
        try:
            self._add(vectors)
        except RuntimeError as error:
            if empty:
                self.index.reset()
            raise DataError(f"faiss {self.factory!r}: add failed: {reason(error)}") from None

    def emptied(self) -> Self:
        """Return a copy without vectors, trained like this one."""
        copy = self._copied()
        copy.reset()
        return type(self)(self.factory, self.metric, copy)

    def say_once(self, message: str) -> None:
        """Log a warning the first time."""
        if not self._said:
            log.warning("faiss %r: %s %s", self.factory, self.kind, message)
            self._said = True

    @abstractmethod
    def search(self, queries: Dense, k: int, given: Given) -> Found:
        """Search among all rows."""

    @abstractmethod
    def selected(self, queries: Dense, k: int, allowed: Mask, given: Given) -> Found | None:
        """Search among the allowed rows inside FAISS; None for a type that takes no selector."""

    @abstractmethod
    def stored_best(self, queries: Dense, k: int, allowed: Mask) -> Found:
        """Score the allowed rows, as stored, one and all; ``RuntimeError`` if none are decoded."""

    @abstractmethod
    def decoded(self, first: int, count: int) -> Dense:
        """Return a range of vectors that ``add`` takes and stores as they are stored here."""

    @abstractmethod
    def _train(self, vectors: Dense) -> None: ...

    @abstractmethod
    def _add(self, vectors: Dense) -> None: ...

    @abstractmethod
    def _copied(self) -> Any:
        """Return a copy of FAISS's index that owns all its memory."""


def reason(error: RuntimeError) -> str:
    """Return the last part of FAISS's message: what failed, without its source lines."""
    return str(error).rpartition("Error: ")[2].strip().splitlines()[0]
