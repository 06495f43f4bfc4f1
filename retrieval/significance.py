"""Paired tests of difference and of equivalence over per-query values; Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from encoders.errors import ConfigError, DataError

_CELLS = 1 << 21  # signs drawn at a time


def paired_t_test(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return the two-sided p-value of Student's paired t-test.

    Equal values give 1, and so does a single query, from which nothing follows. A difference that
    is the same everywhere gives 0.
    """
    difference = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    count = len(difference)
    if count < 2 or not difference.any():
        return 1.0
    spread = float(difference.std(ddof=1))
    if spread == 0.0:
        return 0.0
    from scipy.special import stdtr

    statistic = float(difference.mean()) / (spread / np.sqrt(count))
    return float(2.0 * stdtr(count - 1, -abs(statistic)))


def fisher_randomisation(
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    *,
    permutations: int = 10_000,
    seed: int = 0,
) -> float:
    """Return the two-sided p-value of Fisher's randomisation test of the mean difference.

    Under the null hypothesis each query's difference has either sign. All 2^n sign patterns are
    counted where they are no more than ``permutations`` (n counts the queries that differ); else p
    = (c + 1) / (permutations + 1), with c random patterns at least as far from 0 as the data.
    Smucker, Allan and Carterette (2007).
    """
    difference = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    difference = difference[difference != 0]  # a sign changes nothing there
    count = len(difference)
    if count == 0:
        return 1.0
    total = float(difference.sum())
    # Sums in another order round differently: as far as the data, to rounding, is as far.
    enough = abs(total) * (1 - 1e-12) - 1e-12 * float(np.abs(difference).max())
    exact = count < 63 and 2**count <= permutations
    rng = np.random.default_rng(seed)
    trials = 2**count if exact else permutations
    step = max(1, _CELLS // count)
    extreme = 0
    for begin in range(0, trials, step):
        size = min(step, trials - begin)
        if exact:
            pattern = np.arange(begin, begin + size, dtype=np.int64)
            flips = ((pattern[:, None] >> np.arange(count)) & 1).astype(np.float64)
        else:
            drawn = np.frombuffer(rng.bytes(-(-size * count // 8)), dtype=np.uint8)
            flips = np.unpackbits(drawn, count=size * count).reshape(size, count).astype(np.float64)
        extreme += int((np.abs(total - 2.0 * (flips @ difference)) >= enough).sum())
    return extreme / trials if exact else (extreme + 1) / (trials + 1)


class Equivalence(NamedTuple):
    """What ``equivalence`` found: the test's p-value, and those of its two halves.

    ``above_lower`` is that of mean difference > -bound, ``below_upper`` of mean difference < bound.
    """

    p_value: float
    above_lower: float
    below_upper: float
    difference: float


def equivalence(
    first: NDArray[np.float64], second: NDArray[np.float64], bound: float
) -> Equivalence:
    """Test that two systems are the same to within ``bound``, by two one-sided paired t-tests.

    A small p-value says that the mean of ``first - second`` lies inside (-bound, bound); a large
    one says nothing. ``bound`` is absolute, such as 5% of the better mean. A single query gives 1.
    Differences that are all one number give 0 inside the bound, 1 on it and outside. Schuirmann
    (1987). ``ConfigError`` for a bound that is not above 0, ``DataError`` for values not paired.
    """
    if isinstance(bound, bool) or not 0 < bound < math.inf:
        raise ConfigError(f"bound: {bound!r}; expected a difference above 0")
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.shape != two.shape or one.ndim != 1 or not len(one):
        raise DataError(
            f"equivalence: values of shapes {one.shape} and {two.shape}; expected one value of "
            "each system per query, and a query at least"
        )
    difference = one - two
    count, mean = len(difference), float(difference.mean())
    error = float(difference.std(ddof=1)) / math.sqrt(count) if count > 1 else 0.0
    if difference.min() == difference.max() or error == 0.0:
        mean = float(difference[0])  # the mean of equal numbers is rounded
        lower = float(mean <= -bound or count == 1)
        upper = float(mean >= bound or count == 1)
    else:
        from scipy.special import stdtr

        with np.errstate(over="ignore"):
            lower = float(stdtr(count - 1, -np.divide(mean + bound, error)))
            upper = float(stdtr(count - 1, np.divide(mean - bound, error)))
    return Equivalence(max(lower, upper), lower, upper, mean)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's step-down correction of p-values, in the given order; each at most 1.

    Holm (1979): the i-th smallest of m is multiplied by m - i + 1, and none falls below the ones
    before it.
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    steps = values[order] * np.arange(len(values), 0, -1)
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(value) for value in corrected]
