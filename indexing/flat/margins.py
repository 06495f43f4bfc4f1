"""How far an approximate score can be from the exact one, whatever the vectors are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.indexing.checks import Dense
from sluice.indexing.storage.exact_scores import Metric, Norms

UNIT_ROUNDOFF = 2.0**-24  # of float32
OVERFLOW = 1e37  # norms whose products stay under this cannot overflow float32
SMALLEST_NORM = 1e-20  # a document shorter than this gets no bound: its inverse may overflow
_ROUND_UP = 1 + 2.0**-16


class Margins(NamedTuple):
    """Bounds on the errors of a block's approximate scores, one of each for every query.

    The score of query ``q`` and a document of norm ``n`` that lost ``l`` of its length by rounding
    (as a share) is at most ``direct[q] * n + lossy[q] * n * l + constant[q]`` away from the exact
    one; for ``cosine``, ``n`` is 1. Infinite: nothing bounds it.
    """

    direct: NDArray[np.float32]
    lossy: NDArray[np.float32]
    constant: NDArray[np.float32]


def margins(
    metric: Metric,
    width: int,
    norms: Norms,
    losses: Norms,
    least_norm: float,
    largest_norm: float,
) -> Margins:
    """Return each query's bounds for a block of documents with norms in the given range.

    The product is of rounded vectors ``q'`` and ``d'``: ``losses`` are ``|q - q'|`` (of the
    normalised query for ``cosine``). By Cauchy and Schwarz,
    ``|q.d - q'.d'| <= |q - q'| |d'| + |q| |d - d'|``. To this comes the float error of a sum of
    ``n`` products in any order, ``n u / (1 - n u) |q'| |d'|`` (Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd ed., 3.1; here with 2 n, for instructions that round inside a
    product), the rounding of norms, results and of the filter's own arithmetic, and underflow.
    Infinite where a product may overflow. ``least_norm`` is 1 for normalised documents.
    """
    cosine = metric == "cosine"
    lengths = np.ones_like(norms) if cosine else norms
    doubled = 2 * width * UNIT_ROUNDOFF
    grown = doubled / max(1.0 - doubled, 0.5)
    with np.errstate(over="ignore", invalid="ignore"):
        summed = grown * (lengths + losses)
        direct = losses + summed + 32 * UNIT_ROUNDOFF * lengths
        lossy = losses + lengths + summed
        constant = width * 1e-37 * (1 + lengths) * (1 + (0.0 if cosine else largest_norm))
        if metric == "l2":
            constant += 32 * UNIT_ROUNDOFF * (lengths + largest_norm) ** 2
        reach = np.maximum(np.maximum(lengths, largest_norm), (lengths + largest_norm) ** 2)
        unbounded = ~np.isfinite(direct) | (reach > OVERFLOW)
        if cosine:
            constant /= min(1.0, least_norm)
            unbounded |= least_norm < SMALLEST_NORM
        constant = constant * _ROUND_UP + 1e-37
        constant[unbounded] = np.inf
        three = direct * _ROUND_UP, lossy * _ROUND_UP, constant
        return Margins(*(each.astype(np.float32) for each in three))


def rounded_queries(factors: Dense) -> tuple[NDArray[np.uint16], Norms]:
    """Return queries as bfloat16 bits, and what each lost by it: ``|q - q'|``."""
    bits = factors.view(np.uint32).astype(np.uint64)
    codes = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    widened = (codes.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # near the largest float32: no bound then
        lost = factors.astype(np.float64) - widened
        return codes, np.sqrt(np.einsum("ij,ij->i", lost, lost)) * (1 + 2.0**-40)
