"""How sure a ranking looks by its scores alone: predictors of a query's performance."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import finite_number, whole_number
from sluice.retrieval.runs.run import Ranking

Kind = Literal["margin", "softmax", "top", "energy", "deviation"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
SHARES: Final = ("margin", "softmax")  # that lie in 0 to 1
TEMPERED: Final = ("softmax", "energy")
WIDTH = 25  # scores that are looked at
LEAST = -sys.float_info.max  # of a ranking without documents, by a measure that has no lower bound


@dataclass(frozen=True, slots=True)
class Confidence:
    """A number for each ranking, of its first ``width`` scores s; more is surer.

    - ``margin``: how far the first is above the second, as a share of its distance from the lowest:
      the scores' unit and zero do not matter. 0 to 1.
    - ``softmax``: the first one's part of the softmax of s / T, T the ``temperature``. 0 to 1.
    - ``top``: the first score.
    - ``energy``: T log sum exp(s / T), the negative free energy; T to 0 it is the highest score.
      (Liu et al. 2020, Energy-based Out-of-distribution Detection, eq. 4.)
    - ``deviation``: the standard deviation of the scores. (Shtok et al. 2012, Predicting Query
      Performance by Query-Drift Estimation: NQC without the score of the corpus.)

    A ranking of at most one document has margin and softmax 1; the top and the energy of an empty
    one are the least numbers.
    """

    kind: Kind = "margin"
    width: int = WIDTH
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(
                f"kind: {self.kind!r}; expected {', '.join(KINDS)}{suggest(str(self.kind), KINDS)}"
            )
        whole_number(self.width, "width", 2)
        if finite_number(self.temperature, "temperature") <= 0:
            raise ConfigError(f"temperature: {self.temperature!r}, expected a number above 0")
        if self.kind not in TEMPERED and self.temperature != 1:
            raise ConfigError(
                f"temperature: {self.temperature!r}: {self.kind} reads none, which are for "
                f"{' and '.join(TEMPERED)}; leave it out"
            )

    @property
    def bounded(self) -> bool:
        """Whether the numbers lie in 0 to 1."""
        return self.kind in SHARES

    def of(self, ranking: Ranking) -> float:
        """Return the number of one ranking."""
        scores = ranking.scores[: self.width].astype(np.float64)
        if not len(scores):
            return 1.0 if self.bounded else 0.0 if self.kind == "deviation" else LEAST
        return float(_VALUES[self.kind](scores, self.temperature))


def auroc(positives: NDArray[np.float64], negatives: NDArray[np.float64]) -> float:
    """Return the chance that a positive's number is above a negative's, equal ones counted half."""
    both = np.sort(negatives)
    below, to = (np.searchsorted(both, positives, side) for side in ("left", "right"))
    return float((below + to).mean() / (2 * len(negatives)))


def _margin(scores: NDArray[np.float64], temperature: float) -> Any:
    if len(scores) < 2:
        return 1.0
    spread = scores.max() - scores.min()
    return max(0.0, (scores[0] - scores[1]) / spread) if spread > 0 else 0.0


def _softmax(scores: NDArray[np.float64], temperature: float) -> Any:
    tempered = (scores - scores.max()) / temperature
    return np.exp(tempered[0]) / np.exp(tempered).sum()


def _energy(scores: NDArray[np.float64], temperature: float) -> Any:
    highest = scores.max()  # s / T may be too large for a float where T is small
    return highest + temperature * logsumexp((scores - highest) / temperature)


_VALUES: Final[Mapping[Kind, Callable[[NDArray[np.float64], float], Any]]] = {
    "margin": _margin,
    "softmax": _softmax,
    "top": lambda scores, temperature: scores[0],
    "energy": _energy,
    "deviation": lambda scores, temperature: scores.std(),
}
