"""What ``FaissIndex`` needs of FAISS, whether the codes inside are floats or bits."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import faiss
import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.indexing.checks import Dense
from sluice.indexing.hits import Mask
from sluice.indexing.index import Parameters
from sluice.indexing.storage.exact_scores import Metric

log = logging.getLogger("sluice")

UNTRAINED_SAMPLE = 16_384  # vectors for value ranges and rotations, which have no centroids


class Neighbours(NamedTuple):
    """Scores, higher is better, and rows ``[n, k]``; places that stay empty hold row -1."""

    scores: Dense
    rows: NDArray[np.int64]


class Traits(NamedTuple):
    """What a FAISS index is, and what its type can do."""

    kind: str  # name of FAISS's class, inside transforms and refinement
    reach: Literal["scan", "codes", "lists", "graph"]  # what a search walks through
    parameters: tuple[str, ...]  # names of the search parameters that it takes
    scores_stored: bool  # whether ``stored_best`` scores some rows without decoding the others
    lists: int = 0  # inverted lists
    probes: int = 0  # lists that a search reads by default
    beam: int = 0  # candidates that a search of a graph holds by default
    centroids: int = 0  # the most that training places in one space
    grows: bool = True  # whether vectors can be added after the first ones


class Engine(ABC):
    """One FAISS index: vectors in, scores and rows out, in FAISS's own order.

    A subclass is one family of FAISS classes. ``index`` is FAISS's object; one opened from a file
    is ``mapped``, and FAISS aborts the process when that grows, so ``add`` copies it first.
    """

    file: ClassVar[str]

    def __init__(
        self, factory: str, metric: Metric, index: Any, width: int, *, mapped: bool = False
    ) -> None:
        self.factory = factory
        self.metric: Metric = metric
        self.index = index
        self.width = width  # dimensions of the vectors
        self.mapped = mapped
        self._warned = False

    @classmethod
    def make(cls, factory: str, metric: Metric, width: int) -> Self:
        """Make an empty index; ``ConfigError`` where FAISS cannot for this width and metric."""
        try:
            index = cls._parsed(factory, metric, width)
        except RuntimeError as error:
            raise ConfigError(
                f"factory: faiss cannot make {factory!r} for {width} dimensions and metric "
                f"{metric!r}: {reason(error)}"
            ) from None
        return cls(factory, metric, index, width)

    @classmethod
    def open(cls, factory: str, metric: Metric, path: Path, width: int, rows: int) -> Self:
        """Open a file that ``write`` wrote, mapped into memory where this FAISS can.

        ``IndexFormatError`` for another file.
        """
        flags = getattr(faiss, "IO_FLAG_MMAP_IFC", 0)
        try:
            index = cls._read_file(str(path), flags)
        except RuntimeError as error:
            raise IndexFormatError(
                f"{path}: faiss cannot read it ({reason(error)}); rebuild the index"
            ) from None
        if (index.d, index.ntotal) != (cls._stored_width(width), rows):
            raise IndexFormatError(
                f"{path}: {index.ntotal:,} vectors of {index.d} dimensions, the manifest says "
                f"{rows:,} of {width}; rebuild the index"
            )
        return cls(factory, metric, index, width, mapped=True)

    @classmethod
    @abstractmethod
    def refuse(cls, factory: str, metric: Metric) -> None:
        """Raise ``ConfigError`` for a string that no width makes valid."""

    @abstractmethod
    def write(self, path: Path) -> None:
        """Write the index in FAISS's own format."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of the file that ``write`` writes."""

    @property
    @abstractmethod
    def traits(self) -> Traits:
        """What the index is, as it is now: FAISS's defaults may be set from outside."""

    @property
    def rows(self) -> int:
        """Vectors that were added."""
        return int(self.index.ntotal)

    @property
    def untrained(self) -> bool:
        """Whether ``add`` has to wait for ``train``."""
        return not self.index.is_trained

    @property
    def training_rows(self) -> int:
        """How many vectors to train on, when there are as many."""
        if not self.untrained:
            return 0
        return 256 * self.traits.centroids or UNTRAINED_SAMPLE

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
        if self.rows and not self.traits.grows:
            raise ConfigError(
                f"faiss {self.factory!r}: {self.traits.kind} cannot grow; add all documents in "
                "one call, or choose HNSW"
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
        return type(self)(self.factory, self.metric, copy, self.width)

    def warn_once(self, message: str) -> None:
        """Log a warning the first time."""
        if not self._warned:
            log.warning("faiss %r: %s %s", self.factory, self.traits.kind, message)
            self._warned = True

    @abstractmethod
    def search(self, queries: Dense, k: int, params: Parameters) -> Neighbours:
        """Search among all rows."""

    @abstractmethod
    def selected(
        self, queries: Dense, k: int, allowed: Mask, params: Parameters
    ) -> Neighbours | None:
        """Search among the allowed rows inside FAISS; None for a type that takes no selector."""

    @abstractmethod
    def stored_best(self, queries: Dense, k: int, allowed: Mask) -> Neighbours:
        """Score every allowed row as it is stored; ``RuntimeError`` if none can be decoded."""

    @abstractmethod
    def decoded(self, first: int, count: int) -> Dense:
        """Return a range of vectors that ``add`` takes and stores as they are stored here."""

    @classmethod
    @abstractmethod
    def _parsed(cls, factory: str, metric: Metric, width: int) -> Any:
        """Return FAISS's empty index; ``RuntimeError`` where there is none."""

    @classmethod
    @abstractmethod
    def _read_file(cls, path: str, flags: int) -> Any:
        """Return FAISS's index of a file; ``RuntimeError`` for a file of something else."""

    @classmethod
    def _stored_width(cls, width: int) -> int:
        """Return the dimensions of FAISS's index for vectors of ``width``."""
        return width

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
