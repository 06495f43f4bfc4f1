"""The queries of one search, in every form that a product needs."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.indexing.checks import Dense
from sluice.indexing.flat.margins import rounded_queries
from sluice.indexing.flat.tile import LANES
from sluice.indexing.storage.exact_scores import Metric, Norms, norms_of


class QueryForms:
    """Queries as float64, as factors of the product (unit vectors for ``cosine``), and in panels.

    A panel is 16 queries side by side, cell by cell, as ``tile.multiply`` takes them.
    """

    def __init__(self, queries: Dense, metric: Metric) -> None:
        self.norms = norms_of(queries)
        self.exact = queries.astype(np.float64)
        if metric == "cosine":
            lengths = np.where(self.norms > 0, self.norms, 1.0)[:, None]
            queries = (queries / lengths).astype(np.float32)
        self.factors = np.ascontiguousarray(queries)

    @cached_property
    def _rounded(self) -> tuple[NDArray[np.uint16], Norms]:
        return rounded_queries(self.factors)

    @property
    def losses(self) -> Norms:
        """What each query loses as bfloat16."""
        return self._rounded[1]

    def no_panels(self, halves: bool) -> NDArray[Any]:
        """Return what stands for panels where there are none."""
        return np.empty((0, 0, LANES), dtype=np.uint32 if halves else np.float32)

    def panels(self, members: NDArray[np.int64], halves: bool) -> NDArray[Any]:
        """Return some queries in panels ``[panels, cells, LANES]``; zeros fill the last one up."""
        source: NDArray[Any] = self._rounded[0] if halves else self.factors
        count, width = len(members), source.shape[1]
        table = np.zeros((-(-count // LANES) * LANES, width + width % 2), dtype=source.dtype)
        table[:count, :width] = source[members]
        cells = table.view(np.uint32) if halves else table
        by_panel = cells.reshape(-1, LANES, cells.shape[1])
        return np.ascontiguousarray(by_panel.transpose(0, 2, 1))
