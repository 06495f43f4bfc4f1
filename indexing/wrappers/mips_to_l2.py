"""Inner products of vectors of any length as nearness of unit vectors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import finite_number
from sluice.indexing.checks import Dense
from sluice.indexing.live_rows import Rows
from sluice.indexing.storage.arrays import fact
from sluice.indexing.storage.exact_scores import Metric, norms_of
from sluice.indexing.wrappers.augmentation import NO_PARAMETERS, Augmentation, Parameters

HEADROOM = 1.25  # of the learned length over the longest document seen


class MipsToL2(Augmentation):
    """Order by inner product, found by an index of distances or cosines.

    A document d becomes ``[d, sqrt(M^2 - |d|^2)] / M`` and a query q ``[q, 0] / |q|``, both of unit
    length, so that the squared distance is ``2 - 2 <q, d> / (M |q|)`` (Bachrach et al., Speeding up
    the Xbox recommender system, 2014): indexes of distances or cosines then take vectors of
    differing lengths. Where an index has inner products of its own, compare: FAISS's HNSW found
    more with them than with these distances whenever it was tried, as Morozov and Babenko
    (Non-metric similarity graphs for maximum inner product search, 2018) report of graphs, and
    inverted files now more, now less.

    The scores are inner products again, up to rounding: documents whose inner products differ in
    the last bits may change places, and a query of zeros finds any. For exact scores and ties put
    the index into a ``FunnelIndex`` as its ``first``.

    ``max_norm`` is M. Left out, it is learned by ``train`` or the first ``add``: 1.25 times the
    longest document. A longer one than M is refused.
    """

    type_name = "mips_to_l2"
    inner_metrics: ClassVar[tuple[Metric, ...]] = ("l2", "cosine", "ip")

    def __init__(self, max_norm: float | None = None) -> None:
        self.max_norm = None if max_norm is None else finite_number(max_norm, "max_norm")
        if self.max_norm is not None and self.max_norm <= 0:
            raise ConfigError(f"max_norm is {max_norm!r}, expected a number above 0")

    def train(self, documents: Dense) -> None:
        """Learn ``max_norm`` unless it is known."""
        if self.max_norm is None and len(documents):
            self.max_norm = HEADROOM * float(norms_of(documents).max()) or 1.0

    def augment_documents(self, vectors: Dense, rows: Rows) -> Dense:
        """Append what makes each document of length M, and divide by M."""
        norms = norms_of(vectors)
        longest = self.max_norm or 1.0
        if len(norms) and norms.max() > longest:
            row = int(norms.argmax())
            raise DataError(
                f"documents: row {rows[row]:,} has norm {norms[row]:.6g}, above max_norm "
                f"{longest:.6g}; give MipsToL2 a larger max_norm, or train() with documents as "
                "long as the longest"
            )
        shares = norms / longest
        rest = np.sqrt((1.0 - shares) * (1.0 + shares))
        return np.column_stack([vectors / longest, rest]).astype(np.float32)

    def augment_queries(self, vectors: Dense, params: Parameters = NO_PARAMETERS) -> Dense:
        """Append 0 and divide by the length."""
        norms = norms_of(vectors)
        unit = vectors / np.where(norms > 0, norms, 1.0)[:, None]
        return np.column_stack([unit, np.zeros(len(vectors))]).astype(np.float32)

    def original_documents(self, vectors: Dense, width: int) -> Dense:
        """Multiply by M again; the last bits differ."""
        return vectors[:, :width] * np.float32(self.max_norm or 1.0)

    def scores(self, scores: Dense, queries: Dense, inner: Metric) -> Dense:
        """Return the inner products that distances or cosines stand for."""
        cosines = scores.astype(np.float64)
        if inner == "l2":
            cosines = cosines / 2 + 1
        lengths = norms_of(queries)
        if inner == "l2":  # of a zero query, all distances are 1
            cosines[lengths == 0] = 0.0
        products = cosines * (lengths * (self.max_norm or 1.0))[:, None]
        return products.astype(np.float32)

    def write(self, folder: Path) -> dict[str, Any]:
        """Return M; there are no arrays."""
        return {"max_norm": self.max_norm}

    @classmethod
    def read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        """Make it again with the same M."""
        if facts.get("max_norm") is None:
            return cls()
        return cls(fact(facts, "max_norm", float, folder))
