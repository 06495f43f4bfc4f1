"""How sharp a teacher's distributions are, and how often what a loss believes is true."""

from __future__ import annotations

import logging
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


log = logging.getLogger("sluice")

FLAT, ONE_HOT = 0.98, 0.02  # shares of the highest entropy, log n
QUERIES = 64  # looked at before the alarm


class TeacherWatch:
    """Collects the entropies of a teacher's softmaxes as shares of log n, the highest possible.

    Warns once, when of the first ``QUERIES`` queries most are flat (nothing to tell the documents
    apart by) or one-hot (no more than a label), naming the setting ``key`` that changes it.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self._sum, self._count = 0.0, 0
        self._seen = self._flat = self._sharp = 0
        self._spread = 0.0
        self._warned = False

    @torch.no_grad()
    def see(self, target: Tensor, taking: Tensor, scores: Tensor, temperature: float) -> None:
        """Take a batch's log shares ``[B, L]`` (0 where not ``taking``), and the teacher's scores.

        ``temperature`` is what the shares were made with. Rows with fewer than two cells do not
        count.
        """
        sizes = taking.sum(1)
        rows = sizes > 1
        if not rows.any():
            return
        entropies = -(target.exp() * target).masked_fill(~taking, 0.0).sum(1)[rows]
        shares = entropies / sizes[rows].to(entropies.dtype).log()
        self._sum += float(shares.sum())
        self._count += len(shares)
        if self._warned or self._seen >= QUERIES:
            return
        self._seen += len(shares)
        self._flat += int((shares > FLAT).sum())
        self._sharp += int((shares < ONE_HOT).sum())
        self._spread += float(_deviations(scores, taking, sizes)[rows].sum())
        if self._seen >= QUERIES:
            self._warn(temperature)

    def _warn(self, temperature: float) -> None:
        spread = self._spread / self._seen
        for count, what, change in (
            (self._flat, "flat (all documents alike)", "lower"),
            (self._sharp, "one-hot (a label, no more)", "raise"),
        ):
            if 2 * count > self._seen:
                self._warned = True
                remedy = (
                    f"{change} {self.key} (now {temperature:g}; a query's scores deviate by "
                    f"{spread:.3g}: try a temperature near that)"
                    if spread > 0
                    else "take another teacher: it gives a query's documents equal scores"
                )
                log.warning(
                    "%s: the teacher is %s for %s of the first %s queries, so little can be "
                    "learnt from it; %s",
                    self.key.partition(".")[0], what, count, self._seen, remedy,
                )  # fmt: skip

    def notes(self) -> dict[str, float]:
        """Return the mean entropy since the last call, as a share of the highest, if any."""
        if not self._count:
            return {}
        mean, self._sum, self._count = self._sum / self._count, 0.0, 0
        return {"teacher_entropy": mean}


def _deviations(scores: Tensor, taking: Tensor, sizes: Tensor) -> Tensor:
    """``[B]``: the standard deviation of each row's scores."""
    counts = sizes.clamp(min=1).to(scores.dtype)
    mean = scores.masked_fill(~taking, 0.0).sum(1) / counts
    squares = (scores - mean[:, None]).masked_fill(~taking, 0.0) ** 2
    return (squares.sum(1) / counts).sqrt()
