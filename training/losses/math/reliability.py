"""The reliability curve: how often what a loss believes is true, by how much it believes it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BINS = 10


class Bin(NamedTuple):
    """Pairs whose predicted probability lies in [``low``, ``high``), the last one's end included.

    ``pairs`` is their number, or the sum of their weights, ``predicted`` and ``observed`` the means
    of prediction and grade.
    """

    low: float
    high: float
    pairs: float
    predicted: float
    observed: float


class Reliability:
    """Collects predicted probabilities and grades, both in [0, 1], in bins of equal width."""

    def __init__(self, bins: int = BINS) -> None:
        self._sums = torch.zeros(3, bins, dtype=torch.float64)  # counts, predictions, grades

    @torch.no_grad()
    def add(self, predicted: Tensor, grades: Tensor, share: Tensor) -> None:
        """Take pairs ``[...]``, each counted ``share`` times."""
        used = share > 0
        weights = share[used].double().cpu()
        likely = predicted[used].double().cpu()
        bins = self._sums.shape[1]
        places = (likely * bins).long().clamp(max=bins - 1)
        for row, values in enumerate((weights, weights * likely, weights * grades[used].cpu())):
            self._sums[row].index_add_(0, places, values.double())

    @property
    def error(self) -> float | None:
        """The expected calibration error, ``sum_b n_b |predicted_b - observed_b| / n``.

        None without pairs. Guo et al. 2017 (arXiv 1706.04599), eq. 3, with grades for accuracy.
        """
        counts, predicted, observed = self._sums
        total = float(counts.sum())
        return float((predicted - observed).abs().sum()) / total if total else None

    @property
    def curve(self) -> list[Bin]:
        """The bins that hold pairs, from the lowest probability to the highest."""
        bins = self._sums.shape[1]
        return [
            Bin(place / bins, (place + 1) / bins, count, likely / count, grade / count)
            for place, (count, likely, grade) in enumerate(self._sums.T.tolist())
            if count
        ]


def reliability(predicted: Tensor, grades: Tensor, bins: int = BINS) -> Reliability:
    """Return the reliability of predicted probabilities against grades, of one shape ``[...]``."""
    found = Reliability(bins)
    found.add(predicted, grades, torch.ones_like(predicted))
    return found
