"""Sparsity by target: a controller that finds the regulariser's weight during training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

FIRST = 0.03  # what the penalty is on the first batch where no weight is given
RATE = 0.1  # by how much of the logarithmic error the weight's logarithm moves in a step
QUICK = 1.0  # power of the error that acts at once
MEMORY = 0.7  # of the moving average over steps
WIDEST = 2.0  # logarithmic error beyond which nothing more is done
LEAST = 1e-5  # what the penalty falls to where nothing needs it: a lower weight would be slow back
MOST = 20.0  # the logarithm of the largest weight
SLACK = 0.1  # logarithmic shortage of terms that is left to the weight alone
LIFT = 0.1  # share of the rest that the head is raised by in a step
LIFTED = 3.0  # mean heights of an active logit by which a head is raised at most: terms times 20


class Control:
    """Steers one side's weight so that the mean number of active terms meets ``target``.

    A proportional-integral controller on logarithms: with a the moving average of active terms and
    r the set point, ``e = ln(a / r)``; every step ``ln(w) += 0.1 e``, and the weight in force is
    ``w exp(e)``. The set point goes from where the encoder starts to the target along the ramp,
    geometrically, so a dense start is not crushed at once. ``weight`` None begins with the weight
    that makes the first penalty 0.03. Where the target is out of reach the weight stays within
    bounds: as long as it would take to come back, terms would run away.

    Training counts under dropout; ``advance`` receives from time to time how many terms the same
    texts have without it, of those with it, and that share corrects every count.

    A weight can only hold terms down. ``lift`` is what to add to the head's bias where they are
    short: above the threshold logits fall off about exponentially, so with the mean height h of an
    active logit a bias raised by ``h ln(r / a)`` brings a terms to r.
    """

    def __init__(self, target: float, weight: float | None) -> None:
        self.target = target
        self.terms: float | None = None  # moving average over steps, as without dropout
        self.begun: float | None = None  # active terms before the first step
        self.log_weight = None if weight is None else math.log(max(weight, 1e-12))
        self.error = 0.0
        self.dropout = 1.0  # terms without dropout, of those with it
        self.height = 0.0  # of an active logit
        self.lifted = 0.0  # in mean heights, since the training began
        self._sum = 0.0
        self._values = 0.0
        self._heights = 0.0
        self._count = 0

    def observe(self, terms: float, value: float, height: float = 0.0) -> None:
        """Take in a batch: active terms, penalty without weight, mean height of active logits."""
        if self.log_weight is None:
            self.log_weight = math.log(FIRST / max(value, 1e-9))
        self._sum += terms
        self._values += value
        self._heights += height
        self._count += 1

    def advance(self, progress: float, dropout: float | None = None) -> None:
        """End a step: ``progress`` is the share of the ramp that is done, between 0 and 1.

        ``dropout`` is the share terms without dropout are of terms with it, where it was measured.
        """
        if not self._count or self.log_weight is None:
            return
        terms, value = self._sum / self._count, self._values / self._count
        # Vectors that fall silent have no height left to raise them by: it falls slowly.
        self.height = max(self._heights / self._count, 0.97 * self.height)
        self._sum, self._values, self._heights, self._count = 0.0, 0.0, 0.0, 0
        if self.terms is not None:
            terms = MEMORY * self.terms / self.dropout + (1 - MEMORY) * terms
        if dropout is not None:
            self.dropout = min(max(dropout, 0.25), 4.0)
        self.terms = terms * self.dropout
        if self.begun is None:
            self.begun = max(self.terms, 1.0)
        set_point = self.begun ** (1 - progress) * self.target**progress
        error = math.log(max(self.terms, 0.1) / set_point)
        self.error = min(max(error, -WIDEST), WIDEST)
        floor = math.log(LEAST / max(value, 1e-9))
        moved = self.log_weight + RATE * self.error
        if (
            self.error < 0
        ):  # as the penalty vanishes its floor rises: that must not raise the weight
            moved = max(moved, min(self.log_weight, floor))
        self.log_weight = min(moved, MOST)

    @property
    def weight(self) -> float:
        """The weight in force now."""
        if self.log_weight is None:
            return 0.0
        return math.exp(min(self.log_weight + QUICK * self.error, MOST))

    @property
    def lift(self) -> float:
        """What the head's bias should rise by after this step; 0 where terms are not short."""
        short = min(max(0.0, -self.error - SLACK) * LIFT, LIFTED - self.lifted)
        return self.height * max(0.0, short)

    def lift_by(self, amount: float) -> None:
        """Count a head that was raised by ``amount``."""
        self.lifted += amount / max(self.height, 1e-9)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has to keep."""
        names = ("terms", "begun", "log_weight", "error", "dropout", "height", "lifted")
        return {name: getattr(self, name) for name in names}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the state a checkpoint kept."""
        for name, value in state.items():
            setattr(self, name, value)
