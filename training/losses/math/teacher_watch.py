"""Watches how sharp a teacher's distributions are, and warns where they teach nothing."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

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
