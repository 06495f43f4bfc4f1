"""How many queries a paired t-test needs to see a difference, and how likely it sees one."""

from __future__ import annotations

import math

from sluice.encoders.foundation.errors import ConfigError
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


def _below(value: float, freedom: int, shift: float) -> float:
    """Return the noncentral t distribution at ``value``; scipy has nan where that is nearly 0."""
    from scipy.special import nctdtr

    found = float(nctdtr(freedom, shift, value))
    return 0.0 if math.isnan(found) else found
