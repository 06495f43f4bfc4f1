"""Weights to whole numbers, and what that loses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(slots=True)
class Survey:
    """What sparse vectors hold: counted once, before they are quantised."""

    documents: int
    frequencies: NDArray[np.int64]  # [terms] documents with the term
    largest: NDArray[np.float32]  # [terms] the term's largest weight
    whole: bool  # every weight is a whole number


def surveyed(chunks: Iterable[csr_array[Any]], terms: int) -> Survey:
    """Count the documents and weights of ``chunks``, which have at most ``terms`` columns."""
    found = Survey(0, np.zeros(terms, np.int64), np.zeros(terms, np.float32), True)
    for chunk in chunks:
        used = chunk.indices[chunk.data > 0]
        found.documents += int(chunk.shape[0])
        found.frequencies += np.bincount(used, minlength=terms)
        np.maximum.at(found.largest, chunk.indices, chunk.data)
        found.whole = found.whole and bool((chunk.data == np.rint(chunk.data)).all())
    return found


class Quantiser:
    """Rounds ``scale`` times a weight to the next whole number and keeps count of the loss.

    ``factors`` are multiplied in first, one a term. ``lost`` weights became zero; of the others
    ``largest_error`` is the largest of ``|rounded / scale - weight| / weight``.
    """

    def __init__(self, scale: float, factors: NDArray[np.float64] | None = None) -> None:
        self.scale = scale
        self.postings = 0
        self.lost = 0
        self.largest_error = 0.0
        self._factors = factors

    def __call__(self, chunk: csr_array[Any]) -> csr_array[Any]:
        """Return the chunk in whole numbers, float32, without zeros."""
        import scipy.sparse as sp

        weights = chunk.data.astype(np.float64)
        if self._factors is not None:
            weights *= self._factors[chunk.indices]
        rounded = np.rint(weights * self.scale)
        kept = rounded > 0
        relative = np.abs(rounded[kept] / self.scale / weights[kept] - 1.0)
        self.postings += int(np.count_nonzero(kept))
        self.lost += int(np.count_nonzero((weights > 0) & ~kept))
        self.largest_error = max(self.largest_error, float(relative.max(initial=0.0)))
        made = sp.csr_array(
            (rounded.astype(np.float32), chunk.indices, chunk.indptr), shape=chunk.shape
        )
        made = made.copy()
        made.eliminate_zeros()
        return made
