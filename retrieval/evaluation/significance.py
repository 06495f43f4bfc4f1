"""Paired tests of difference and equivalence, corrections, effect sizes, and queries needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import is_number, whole_number

MOST = 10**9  # queries; a difference that needs more is none


def power(queries: int, difference: float, spread: float, *, alpha: float = 0.05) -> float:
    """Return the chance that a two-sided paired t-test over ``queries`` finds the difference.

    ``difference`` is the true mean difference of two systems, ``spread`` the standard deviation of
    their differences by query, both in the units of the measure. By the noncentral t distribution
    with queries - 1 degrees of freedom and noncentrality difference / spread * sqrt(queries)
    (Cohen, 1988, chapter 2). Fewer than two queries find nothing: 0. Raises ``ConfigError`` for a
    spread that is not above 0 and an ``alpha`` outside (0, 1).
    """
    from scipy.special import stdtrit

    count = whole_number(queries, "queries", 0)
    for name, value in (("difference", difference), ("spread", spread), ("alpha", alpha)):
        if not is_number(value):
            raise ConfigError(f"{name}: {value!r}; expected a finite number")
    if spread <= 0:
        raise ConfigError(f"spread: {spread}; expected a standard deviation above 0")
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha: {alpha}; expected a value between 0 and 1, as 0.05")
    if count < 2:
        return 0.0
    freedom, shift = count - 1, abs(difference) / spread * math.sqrt(count)
    bound = float(stdtrit(freedom, 1 - alpha / 2))
    return min(max(1.0 - _below(bound, freedom, shift) + _below(-bound, freedom, shift), 0.0), 1.0)


def queries_needed(
    difference: float, spread: float, *, chance: float = 0.8, alpha: float = 0.05
) -> int:
    """Return the fewest queries with which ``power`` reaches ``chance``.

    Raises ``ConfigError`` for a difference of 0, a ``chance`` outside (``alpha``, 1), and where a
    billion queries are not enough.
    """
    if not is_number(chance) or not alpha < chance < 1:
        raise ConfigError(f"chance: {chance!r}; expected a value between alpha ({alpha}) and 1")
    high = 2
    while power(high, difference, spread, alpha=alpha) < chance:
        high *= 2
        if high > MOST:
            raise ConfigError(
                f"difference: {difference} is too small beside a spread of {spread}: a billion "
                "queries do not show it"
            )
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if power(middle, difference, spread, alpha=alpha) < chance:
            low = middle
        else:
            high = middle
    return high


def smallest_difference(
    queries: int, spread: float, *, chance: float = 0.8, alpha: float = 0.05
) -> float:
    """Return the smallest difference that ``power`` finds with ``chance``, from two queries on."""
    from scipy.optimize import brentq

    whole_number(queries, "queries", 2)
    missed = lambda difference: power(queries, difference, spread, alpha=alpha) - chance  # noqa: E731
    return float(brentq(missed, 0.0, 1000 * spread))


def _below(value: float, freedom: int, shift: float) -> float:
    """Return the noncentral t distribution at ``value``; scipy has nan where that is nearly 0."""
    from scipy.special import nctdtr

    share = float(nctdtr(freedom, shift, value))
    return 0.0 if math.isnan(share) else share


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
    counted if they are at most ``permutations`` (n counts the queries that differ); else p
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
    sums = _sums_of_eight(difference)
    groups = np.arange(len(sums))
    step = max(1, _CELLS // len(sums))
    extreme = 0
    for begin in range(0, trials, step):
        size = min(step, trials - begin)
        if exact:
            numbers = np.arange(begin, begin + size, dtype="<i8")
            flips = numbers[:, None].view(np.uint8)[:, : len(sums)]
        else:
            drawn = np.frombuffer(rng.bytes(size * len(sums)), dtype=np.uint8)
            flips = drawn.reshape(size, len(sums))
        flipped = sums[groups, flips].sum(axis=1)
        extreme += int((np.abs(total - 2.0 * flipped) >= enough).sum())
    return extreme / trials if exact else (extreme + 1) / (trials + 1)


def _sums_of_eight(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``[ceil(n / 8), 256]``: the sum of every subset of each eight values, by its bits."""
    padded = np.zeros(-(-len(values) // 8) * 8)
    padded[: len(values)] = values
    bits = (np.arange(256)[:, None] >> np.arange(8)) & 1
    return padded.reshape(-1, 8) @ bits.T.astype(np.float64)


class Bootstrap(NamedTuple):
    """What ``paired_bootstrap`` found; ``low`` and ``high`` bound the mean difference."""

    p_value: float
    low: float
    high: float


def paired_bootstrap(
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    *,
    resamples: int = 10_000,
    seed: int = 0,
    alpha: float = 0.05,
) -> Bootstrap:
    """Return the two-sided p-value of the studentised paired bootstrap, and a percentile interval.

    Queries are drawn with replacement. Under the null hypothesis the differences are moved to mean
    0, and p = (c + 1) / (resamples + 1) with c the samples whose t statistic is at least as far
    from 0 as the data's. (Efron and Tibshirani, 1993; Sakai, 2006.) Equal values and a single query
    give 1.
    """
    difference = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    count, mean = len(difference), float(difference.mean())
    spread = float(difference.std(ddof=1)) if count > 1 else 0.0
    if spread == 0.0 or difference.min() == difference.max():
        return Bootstrap(1.0 if count < 2 or not difference.any() else 0.0, mean, mean)
    centred = difference - mean
    rng = np.random.default_rng(seed)
    means, deviations = np.empty(resamples), np.empty(resamples)
    step = max(1, _CELLS // count)
    for begin in range(0, resamples, step):
        rows = slice(begin, min(begin + step, resamples))
        drawn = centred[rng.integers(0, count, (rows.stop - begin, count), dtype=np.int32)]
        means[rows] = drawn.mean(axis=1)
        squares = np.einsum("ij,ij->i", drawn, drawn) / count - means[rows] ** 2
        deviations[rows] = np.sqrt(np.maximum(squares, 0.0) * count / (count - 1))
    # |t*| >= |t| without the division: a sample of one value has no deviation, and is far unless 0.
    far = np.abs(means) * spread >= abs(mean) * deviations * (1 - 1e-12)
    far &= (deviations > 0) | (means != 0)
    low, high = np.quantile(means, [alpha / 2, 1 - alpha / 2]) + mean
    return Bootstrap((int(far.sum()) + 1) / (resamples + 1), float(low), float(high))


class Effect(NamedTuple):
    """A mean difference with its size and its interval.

    ``size`` is Cohen's d of paired values, the mean over the standard deviation of the differences;
    None where all differences are one number other than 0.
    """

    difference: float
    size: float | None
    low: float
    high: float


def effect(first: NDArray[np.float64], second: NDArray[np.float64], alpha: float = 0.05) -> Effect:
    """Return the mean difference, its effect size and Student's ``1 - alpha`` interval.

    The interval of a single query is unbounded.
    """
    difference = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    count, mean = len(difference), float(difference.mean())
    if count < 2:
        return Effect(mean, 0.0 if mean == 0 else None, -math.inf, math.inf)
    spread = float(difference.std(ddof=1))
    rounding = 1e-12 * float(np.abs(difference).max())
    if spread <= rounding:  # one number, but for how its last digits were rounded
        return Effect(mean, 0.0 if mean == 0 else None, mean, mean)
    from scipy.special import stdtrit

    reach = float(stdtrit(count - 1, 1 - alpha / 2)) * spread / math.sqrt(count)
    return Effect(mean, mean / spread, mean - reach, mean + reach)


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
    one shows nothing. ``bound`` is absolute, such as 5% of the better mean. A single query gives 1.
    Differences that are all one number give 0 inside the bound, 1 on it and outside. Schuirmann
    (1987). ``ConfigError`` for a bound that is not above 0, ``DataError`` for values not paired.
    """
    if not is_number(bound) or bound <= 0:
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


def bonferroni(p_values: Sequence[float]) -> list[float]:
    """Return Bonferroni's correction of p-values: each times their number, at most 1."""
    return [min(1.0, float(value) * len(p_values)) for value in p_values]


CORRECTIONS: dict[str, Callable[[Sequence[float]], list[float]]] = {
    "holm": holm,
    "bonferroni": bonferroni,
    "none": list,
}
