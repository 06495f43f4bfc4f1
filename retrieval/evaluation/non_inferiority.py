"""Decides whether what a system loses stays within a budget, by paired tests of non-inferiority."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.evaluation.comparison import SignificanceTest, Values
from sluice.retrieval.evaluation.significance import (
    CORRECTIONS,
    effect,
    queries_needed,
    smallest_difference,
)

Verdict = Literal["not worse", "worse", "cannot tell"]

CHANCE: Final = 0.8  # with which a loss would have been seen
FEW: Final = 50  # changed queries; fewer say too little of those that were not drawn
UNSEEN: Final = 0.3  # what a query that was not drawn may lose, at least, of a measure up to 1


@dataclass(frozen=True, slots=True)
class Decision:
    """What paired values say of one budget; a loss is the baseline's value minus the candidate's.

    ``loss`` is the mean over queries, above ``low`` and below ``high`` at the test's confidence
    each. ``p_within`` is the p-value of a loss as large as the budget, ``p_loss`` that of no loss,
    and ``p_corrected`` the latter corrected over all budgets. ``changed`` counts the queries whose
    values differ. ``smallest`` is the least loss that these queries show four times out of five,
    ``needed`` the number of queries that show one as large as the budget; None where all
    differences are one number, or no number is enough.
    """

    loss: float
    low: float
    high: float
    p_within: float
    p_loss: float
    p_corrected: float
    changed: int
    smallest: float | None
    needed: int | None
    verdict: Verdict


def decide(
    baseline: Mapping[str, Values],
    candidate: Mapping[str, Values],
    budgets: Mapping[str, float],
    testing: SignificanceTest,
    *,
    same: bool = False,
) -> dict[str, Decision]:
    """Decide on every budget, by measure; values are those of the same queries, in one order.

    ``not worse``: a loss as large as the budget is rejected at ``alpha`` (non-inferiority, as
    Piaggio et al. 2012 define it). ``worse``: that is not, but no loss is rejected, corrected over
    the budgets. Else the queries cannot tell. To pass on all budgets needs no correction, since
    each has to pass (an intersection-union test, Berger 1982); to fail on any does.

    Where fewer than ``FEW`` queries changed, both tests are too sure: the next may change much. A
    query is then added that loses as much as the largest change, and at least ``UNSEEN``; of more,
    the t-test of a loss within the budget allows for skewness (``skewed``). docs/how-to/gate.md has
    the rates. ``same`` says that the rankings are, so that none can differ.
    """
    if testing.test == "bootstrap" or testing.alpha >= 0.5:
        raise ConfigError("test, alpha: a gate has t-test and fisher, at less than .5")
    decisions = {
        name: _decision(baseline[name] - candidate[name], budget, testing, same)
        for name, budget in budgets.items()
    }
    p_values = CORRECTIONS[testing.correction]([each.p_loss for each in decisions.values()])
    return {
        name: replace(each, p_corrected=p, verdict=_verdict(each.p_within, p, testing.alpha))
        for (name, each), p in zip(decisions.items(), p_values, strict=True)
    }


def p_above_zero(values: Values, testing: SignificanceTest) -> float:
    """Return the one-sided p-value of a mean of at most 0: the tests are symmetric."""
    found = testing.compared("", "", "", values, np.zeros(len(values)))
    return found.p / 2 if found.difference > 0 else 1 - found.p / 2


def skewed(losses: Values, budget: float, alpha: float) -> tuple[float, float]:
    """Return p of a loss as large as the budget, and the bound, where few queries lose much.

    Student's t is too sure there. Johnson (1978, JASA 73) takes t - a / 6 - a t² / 3, where a is
    the losses' skewness over the root of their number; it falls beyond t = 3 / (2a), and what is
    behind is taken for its top: a loss of 1 is then the bound. 0 and -1 where a is not above 0.
    """
    from scipy.special import stdtr, stdtrit

    count, mean, spread = len(losses), float(losses.mean()), float(losses.std(ddof=1))
    third = float(((losses - mean) ** 3).sum()) * count / ((count - 1) * (count - 2))
    error, a = spread / count**0.5, third / spread**3 / count**0.5
    if a <= 0:
        return 0.0, -1.0
    t = min((budget - mean) / error, 1.5 / a)
    needed = float(stdtrit(count - 1, 1 - alpha))
    root = 1 - 4 * a / 3 * (needed + a / 6)
    bound = 1.0 if root < 0 else mean + error * 1.5 / a * (1 - root**0.5)
    return float(stdtr(count - 1, -(t - a / 6 - a * t * t / 3))), bound


def _decision(losses: Values, budget: float, testing: SignificanceTest, same: bool) -> Decision:
    level = 2 * testing.alpha  # a two-sided test at this level has one side at alpha
    measured = effect(losses, np.zeros(len(losses)), level)
    p_within, high = p_above_zero(budget - losses, testing), measured.high
    changed, spread = int((losses != 0).sum()), float(losses.std(ddof=1))
    if changed < FEW and not (same and not changed):
        more = np.append(losses, max(UNSEEN, float(np.abs(losses).max())))
        p_within = max(p_within, p_above_zero(budget - more, testing))
        high = max(high, effect(more, np.zeros(len(more)), level).high)
        spread = float(more.std(ddof=1))
    elif spread > 0 and testing.test == "t-test":
        p, bound = skewed(losses, budget, testing.alpha)
        p_within, high = max(p_within, p), max(high, bound)
    p_loss, smallest, needed = p_above_zero(losses, testing), None, None
    if spread > 0:
        smallest = smallest_difference(len(losses), spread, chance=CHANCE, alpha=level)
        with contextlib.suppress(ConfigError):  # a billion queries are not enough
            needed = queries_needed(budget, spread, chance=CHANCE, alpha=level)
    return Decision(
        measured.difference, measured.low, high, p_within, p_loss, p_loss, changed, smallest,
        needed, "cannot tell",
    )  # fmt: skip


def _verdict(p_within: float, p_loss: float, alpha: float) -> Verdict:
    if p_within < alpha:
        return "not worse"
    return "worse" if p_loss < alpha else "cannot tell"
