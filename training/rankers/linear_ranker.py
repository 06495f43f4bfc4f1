"""Learning to rank by a weighted sum of features, with lambda gradients in plain NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.disk.files import read_json, write_json
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.training.rankers.lambda_gradients import (
    Floats,
    JudgedLists,
    Pairs,
    lambdas,
    ndcg_of,
    weighed_pairs,
)

WEIGHTS = "linear.json"
STEPS = 20  # of L-BFGS in a round
PARTS = ("weights", "mean", "scale")


@dataclass(frozen=True, eq=False)
class LinearRanker:
    """``weights . (features - mean) / scale``: the features' weights, all comparable."""

    weights: Floats
    mean: Floats
    scale: Floats

    kind = "linear"
    files = (WEIGHTS,)

    @property
    def width(self) -> int:
        """The number of features."""
        return len(self.weights)

    def score(self, features: NDArray[np.float32]) -> Floats:
        """Return one score per row of ``features``."""
        scores: Floats = ((features - self.mean) / self.scale) @ self.weights
        return scores

    def importances(self) -> Floats:
        """Return the size of each weight: features were brought to one deviation."""
        return np.abs(self.weights)

    def write(self, folder: Path) -> None:
        """Write the weights into a folder, as JSON."""
        facts = {name: getattr(self, name).tolist() for name in PARTS}
        write_json(folder / WEIGHTS, facts)

    @classmethod
    def read(cls, folder: Path) -> LinearRanker:
        """Read what ``write`` wrote."""
        facts = read_json(folder / WEIGHTS)
        damaged = ModelError(f"{folder / WEIGHTS}: damaged or not Sluice's; train it again")
        try:
            parts = {name: np.array(facts[name], np.float64) for name in PARTS}
        except (KeyError, TypeError, ValueError, OverflowError):
            raise damaged from None
        flat = len({part.shape for part in parts.values()}) == 1 and parts["weights"].ndim == 1
        if not flat or not all(np.isfinite(part).all() for part in parts.values()):
            raise damaged
        return cls(**parts)


@dataclass(frozen=True)
@checked("linear.")
class LambdaLinear:
    """LambdaRank for a weighted sum.

    Each of ``rounds`` weighs the pairs at the ranks the scores have by then and minimises the loss
    with those weights held, which is convex, by L-BFGS: the first round's ranks are those of the
    list given. ``l2`` holds the weights down (the loss is a mean over the queries). The round with
    the best nDCG@10 on dev is kept, the last without dev; after ``patience`` rounds without a
    better one the training ends. ``sigma`` and ``truncation`` are those of ``weighed_pairs``.

    Features are brought to mean 0 and deviation 1 over the training lists; what does not vary
    there has no weight.
    """

    rounds: Annotated[
        int, Ge(1), "How many drafts are written, each followed by a search; 0: none."
    ] = 20
    l2: Annotated[float, "The penalty of squared weights."] = 0.01
    sigma: Annotated[float, "The steepness of the pairs' logistic loss."] = 1.0
    truncation: Annotated[int, Ge(1)] = 30
    patience: Annotated[int, Ge(1)] = 5

    def __post_init__(self) -> None:
        if self.l2 < 0 or self.sigma <= 0:
            raise ConfigError(
                f"linear: l2 {self.l2}, sigma {self.sigma}; expected l2 0 or more, sigma above 0"
            )

    def fit(self, train: JudgedLists, dev: JudgedLists | None = None) -> LinearRanker:
        """Return the ranker that the lists teach; those without different grades teach nothing."""
        from scipy.optimize import minimize

        values = train.features.astype(np.float64)
        mean, spread = values.mean(axis=0), values.std(axis=0)
        varies = spread > 1e-9 * np.maximum(np.abs(mean), 1.0)
        scale = np.where(varies, spread, 1.0)
        values = np.where(varies, (values - mean) / scale, 0.0)
        weights = np.zeros(values.shape[1])
        best, best_value, since = weights, -1.0, 0
        for _ in range(self.rounds):
            pairs = weighed_pairs(values @ weights, train, self.truncation)
            objective = _Objective(values, pairs, self.sigma, self.l2, max(len(train), 1))
            minimum: Any = minimize(
                objective, weights, jac=True, method="L-BFGS-B", options={"maxiter": STEPS}
            )
            weights = np.where(varies, minimum.x, 0.0)
            if dev is None or not len(dev):
                best = weights
                continue
            value = float(
                ndcg_of(LinearRanker(weights, mean, scale).score(dev.features), dev).mean()
            )
            since += 1
            if value > best_value:
                best, best_value, since = weights, value, 0
            elif since >= self.patience:
                break
        return LinearRanker(best, mean, scale)


class _Objective:
    """The loss of weights and its gradient, at fixed pairs."""

    def __init__(self, values: Floats, pairs: Pairs, sigma: float, l2: float, queries: int) -> None:
        seen, places = np.unique(np.concatenate([pairs.better, pairs.worse]), return_inverse=True)
        self.values = values[seen]  # of candidates that stand in a pair
        halves = np.split(places.reshape(-1), 2)
        self.pairs = Pairs(halves[0], halves[1], pairs.weights)
        self.sigma, self.l2, self.queries = sigma, l2, queries

    def __call__(self, weights: Floats) -> tuple[float, Floats]:
        gradients = lambdas(self.values @ weights, self.pairs, self.sigma)
        loss = gradients.loss / self.queries + 0.5 * self.l2 * float(weights @ weights)
        gradient = self.values.T @ gradients.gradient / self.queries + self.l2 * weights
        return loss, gradient
