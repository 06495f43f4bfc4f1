"""Hooks that add dimensions to documents and queries, so that any dense index computes a score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from sluice.indexing.checks import Dense
from sluice.indexing.live_rows import Mask, Rows
from sluice.indexing.storage.exact_scores import Metric

Parameters = Mapping[str, Any]
NO_PARAMETERS: Parameters = {}


class Augmentation(ABC):
    """What is appended to the vectors of one index, and what its scores then mean.

    Made for scores that are inner products of longer vectors: a bias of each document (one more
    dimension, 1 in the query), negative Kullback-Leibler divergence of Gaussians, and the like. An
    augmentation belongs to one index: it may learn from the documents and hold values by row.
    """

    type_name: ClassVar[str] = ""  # name in the table of types; empty for a user's own class
    metric: ClassVar[Metric] = "ip"  # of the augmented index: what its scores are
    inner_metrics: ClassVar[tuple[Metric, ...]] = ("ip",)  # what the index below may compute

    def train(self, documents: Dense) -> None:  # noqa: B027 - most need nothing
        """Learn from sample documents, or from the first that are added."""

    @abstractmethod
    def augment_documents(self, vectors: Dense, rows: Rows) -> Dense:
        """Return the documents ``[n, dim]`` of these rows with more dimensions.

        ``DataError`` where that cannot be; nothing changes here until ``added``.
        """

    def augment_sample(self, vectors: Dense) -> Dense:
        """Return sample documents, of no rows, with more dimensions to train the inner index."""
        return self.augment_documents(vectors, np.arange(len(vectors), dtype=np.int64))

    def added(self, rows: Rows) -> None:  # noqa: B027 - most hold nothing by row
        """Take note that the inner index now has these rows."""

    @abstractmethod
    def augment_queries(self, vectors: Dense, params: Parameters = NO_PARAMETERS) -> Dense:
        """Return the queries ``[n, dim]`` with as many dimensions as the documents."""

    def original_documents(self, vectors: Dense, width: int) -> Dense:
        """Return augmented documents ``[n, dim + added]`` as they were, of ``width`` dimensions."""
        return vectors[:, :width]

    def scores(self, scores: Dense, queries: Dense, inner: Metric) -> Dense:
        """Return what the inner index's finite scores ``[n, k]`` mean: by default themselves.

        ``queries`` are those given to the search. The order on a line must not change.
        """
        return scores

    def keep_only(self, allowed: Mask) -> None:  # noqa: B027 - most hold nothing by row
        """Forget what is held of the rows that ``allowed`` excludes; the others move up."""

    def search_parameters(self) -> tuple[str, ...]:
        """Names that ``params`` of a search may have for ``augment_queries``."""
        return ()

    def check_parameters(self, given: Parameters) -> None:  # noqa: B027 - most take none
        """Raise ``ConfigError`` for a value that a parameter cannot have."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays that ``write`` stores."""
        return 0

    @abstractmethod
    def write(self, folder: Path) -> dict[str, Any]:
        """Write arrays into the folder, names starting with ``augmentation``; return the facts."""

    @classmethod
    @abstractmethod
    def read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        """Open what ``write`` wrote."""
