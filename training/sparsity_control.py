"""Sparsity by target: a controller that finds the regulariser's weight while training goes on."""

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


class Control:
    """Steers one side's weight so that the mean number of active terms meets ``target``.

    A proportional-integral controller on logarithms: with a the moving average of active terms and
    r the set point, ``e = ln(a / r)``; every step ``ln(w) += 0.1 e``, and the weight in force is
    ``w exp(e)``. The set point goes from where the encoder starts to the target along the ramp,
    geometrically, so a dense start is not crushed at once. ``weight`` None begins with the weight
    that makes the first penalty 0.03. Where the target is out of reach the weight stays within
    bounds: as long as it would take to come back, terms would run away.
    """

    def __init__(self, target: float, weight: float | None) -> None:
        self.target = target
        self.terms: float | None = None  # moving average over steps
        self.begun: float | None = None  # active terms before the first step
        self.log_weight = None if weight is None else math.log(max(weight, 1e-12))
        self.error = 0.0
        self._sum = 0.0
        self._values = 0.0
        self._count = 0

    def observe(self, terms: float, value: float) -> None:
        """Take in a batch's mean number of active terms and its penalty without weight."""
        if self.log_weight is None:
            self.log_weight = math.log(FIRST / max(value, 1e-9))
        if self.begun is None:
            self.begun = max(terms, 1.0)
        self._sum += terms
        self._values += value
        self._count += 1

    def advance(self, progress: float) -> None:
        """End a step: ``progress`` is the share of the ramp behind, between 0 and 1."""
        if not self._count or self.log_weight is None or self.begun is None:
            return
        terms, value = self._sum / self._count, self._values / self._count
        self._sum, self._values, self._count = 0.0, 0.0, 0
        self.terms = terms if self.terms is None else MEMORY * self.terms + (1 - MEMORY) * terms
        set_point = self.begun ** (1 - progress) * self.target**progress
        error = math.log(max(self.terms, 0.1) / set_point)
        self.error = min(max(error, -WIDEST), WIDEST)
        floor = math.log(LEAST / max(value, 1e-9))
        self.log_weight = min(max(self.log_weight + RATE * self.error, floor), MOST)

    @property
    def weight(self) -> float:
        """The weight in force now."""
        if self.log_weight is None:
            return 0.0
        return math.exp(min(self.log_weight + QUICK * self.error, MOST))

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has to keep."""
        names = ("terms", "begun", "log_weight", "error")
        return {name: getattr(self, name) for name in names}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the state a checkpoint kept."""
        for name, value in state.items():
            setattr(self, name, value)
