"""How far scores by smaller or faster products can be off."""

# mypy: disable-error-code="assignment, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sluice.indexing.kernels.ranking import COSINE, DISTANCE
from sluice.indexing.storage.exact_scores import Norms

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


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def margins(
    kind: int,
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
    direct, lossy, constant = np.empty((3, len(norms)), np.float32)
    doubled = 2 * width * UNIT_ROUNDOFF
    grown = doubled / max(1.0 - doubled, 0.5)
    for query in range(len(norms)):
        length, lost = 1.0 if kind == COSINE else norms[query], losses[query]
        summed = grown * (length + lost)
        straight = lost + summed + 32 * UNIT_ROUNDOFF * length
        rest = width * 1e-37 * (1 + length) * (1 + (0.0 if kind == COSINE else largest_norm))
        if kind == DISTANCE:
            rest += 32 * UNIT_ROUNDOFF * (length + largest_norm) ** 2
        reach = max(length, largest_norm, (length + largest_norm) ** 2)
        unbounded = not np.isfinite(straight) or reach > OVERFLOW
        if kind == COSINE:
            rest /= min(1.0, least_norm)
            unbounded |= least_norm < SMALLEST_NORM
        direct[query] = straight * _ROUND_UP
        lossy[query] = (lost + length + summed) * _ROUND_UP
        constant[query] = np.inf if unbounded else rest * _ROUND_UP + 1e-37
    return Margins(direct, lossy, constant)
