"""AND and OR of probabilities, in logarithms: between products and the best or worst alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def some_of(logits: Sequence[float], sharpness: float) -> float:
    """Return the log-odds that at least one holds, of the log-odds of each; -inf of none.

    ``1 - exp(-(sum_i (-log(1 - p_i))^s)^(1/s))``: with sharpness s = 1 ``1 - prod_i(1 - p_i)``, for
    ever larger s the largest p alone. (The t-conorm of Aczel and Alsina, 1982.) One value is
    itself; p of 0 and 1, log-odds of -inf and inf, follow Boolean logic.
    """
    # a_i = -log(1 - p_i) = log(1 + exp(logit))
    logs = np.array([_log_softplus(float(logit)) for logit in logits])
    return -_odds(_joined(logs, sharpness))


def all_of(logits: Sequence[float], sharpness: float) -> float:
    """Return the log-odds that all hold; inf of none.

    ``not some_of(not p_i)``: with sharpness 1 the product, for ever larger ones the least alone.
    """
    return -some_of([-logit for logit in logits], sharpness)


def _joined(logs: Array, sharpness: float) -> float:
    """Return ``log((sum_i exp(log_i)^s)^(1/s))``; -inf of none."""
    most = float(logs.max(initial=-np.inf))
    if np.isinf(most) or np.isinf(sharpness):
        return most
    return most + float(np.log(np.exp(sharpness * (logs - most)).sum())) / sharpness


def _log_softplus(value: float) -> float:
    """Return ``log(log(1 + exp(value)))``."""
    if value < -30:
        return value  # log(1 + x) is x
    return float(np.log(np.logaddexp(0.0, value)))


def _odds(log_a: float) -> float:
    """Return the log-odds of ``exp(-a)`` of ``log a``: ``-a - log(1 - exp(-a))``."""
    if log_a < -30:
        return -log_a  # 1 - exp(-a) is a
    if log_a > 700:
        return -np.inf
    a = float(np.exp(log_a))
    return -a - float(np.log(-np.expm1(-a)))
