"""How long batches take, learnt from those of late."""

from __future__ import annotations

KEEP = 0.9  # of a batch's weight is left after the next one
MOST_GAIN = 16.0  # that a token in a batch is cheaper than one alone


class Pace:
    """The seconds of a batch as ``fixed + each * tokens``: least squares, late batches count most.

    A batch of one query says little of one of fifty, so a plain ratio of tokens to seconds refused
    the first burst after quiet hours.
    """

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self.fixed = self.each = 0.0

    def saw(self, tokens: int, seconds: float) -> None:
        """Learn from a batch that ran."""
        self._weight = KEEP * self._weight + 1
        self._x = KEEP * self._x + tokens
        self._y = KEEP * self._y + seconds
        self._xx = KEEP * self._xx + tokens * tokens
        self._xy = KEEP * self._xy + tokens * seconds
        x, y = self._x / self._weight, self._y / self._weight
        ratio, variance = y / x, self._xx / self._weight - x * x
        slope = ratio
        if variance > 1e-4 * x * x:
            slope = (self._xy / self._weight - x * y) / variance
        self.each = min(ratio, max(slope, ratio / MOST_GAIN))
        self.fixed = max(0.0, y - self.each * x)

    def seconds(self, tokens: int, batch: int) -> float:
        """Return the time of so many tokens in batches of at most ``batch``; 0 before the first."""
        return self.fixed * -(-tokens // batch) + self.each * tokens

    def tokens_in(self, seconds: float) -> float:
        """Return the tokens of a batch that takes so long, and at least half of it by its tokens.

        Infinite before the first batch.
        """
        if not self.each:
            return float("inf")
        return max(seconds - self.fixed, self.fixed) / self.each
