"""Learning to rank by a weighted sum of features, with lambda gradients in plain NumPy.

For documents i, j of one list with grades ``l_i > l_j`` at present ranks r (Burges, 2010):

    |dN_ij| = |(2^l_i - 2^l_j) (1 / log2(1 + r_i) - 1 / log2(1 + r_j))| / IDCG
    rho_ij = 1 / (1 + exp(sigma (s_i - s_j)))
    lambda_ij = -sigma rho_ij |dN_ij|

The gradient of a document is the sum of its lambdas, plus as i, minus as j: that of the loss ``sum
|dN_ij| ln(1 + exp(-sigma (s_i - s_j)))`` while the ranks are held. All is NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.disk.files import read_json, write_json
from sluice.encoders.foundation.errors import ConfigError, ModelError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class JudgedLists:
    """Candidates of some queries, one list after the other, in the order they were given.

    ``ideals`` ``[lists]`` is the best DCG@10 that any documents could have, trec_eval's, of all
    that are judged and not of the candidates alone: 0 for a query without anything relevant.
    """

    features: NDArray[np.float32]  # [candidates, features]
    grades: Integers  # [candidates], 0 where unjudged
    starts: Integers  # [lists + 1]
    ideals: Floats

    def __len__(self) -> int:
        return len(self.ideals)

    @property
    def owners(self) -> Integers:
        """The number of each candidate's list."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def taking(self, columns: Integers) -> JudgedLists:
        """Return the lists with some of the features."""
        return replace(self, features=np.ascontiguousarray(self.features[:, columns]))

    def teaching(self) -> JudgedLists:
        """Return the lists that hold two different grades: others have nothing to teach."""
        sizes = np.diff(self.starts)
        least, most = np.full(len(self), 1 << 62), np.full(len(self), -1)
        np.minimum.at(least, self.owners, self.grades)
        np.maximum.at(most, self.owners, self.grades)
        keep = most > least
        rows = np.repeat(keep, sizes)
        starts = np.concatenate([[0], np.cumsum(sizes[keep])])
        return JudgedLists(self.features[rows], self.grades[rows], starts, self.ideals[keep])


def joined(parts: Sequence[JudgedLists]) -> JudgedLists:
    """Return the lists of all ``parts``, which have the same features."""
    sizes = np.concatenate([np.diff(part.starts) for part in parts])
    return JudgedLists(
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.grades for part in parts]),
        np.concatenate([[0], np.cumsum(sizes)]),
        np.concatenate([part.ideals for part in parts]),
    )


def ranks_of(scores: Floats, starts: Integers) -> Integers:
    """Return each candidate's rank in its list, from 1; ties stay in the order given."""
    sizes = np.diff(starts)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((-np.asarray(scores, np.float64), owners))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order)) - np.repeat(starts[:-1], sizes) + 1
    return ranks


def ndcg_of(scores: Floats, lists: JudgedLists, cutoff: int = 10) -> Floats:
    """Return nDCG@cutoff ``[lists]`` as trec_eval has it: the gain is the grade; 0 without ideal.

    Right for the ``cutoff`` that ``lists.ideals`` were made for.
    """
    ranks = ranks_of(scores, lists.starts)
    gains = np.where(ranks <= cutoff, np.maximum(lists.grades, 0), 0) / np.log2(1.0 + ranks)
    sums = np.bincount(lists.owners, gains, minlength=len(lists))
    return np.divide(sums, lists.ideals, out=np.zeros(len(lists)), where=lists.ideals > 0)


def ideal_dcg(grades: Sequence[int], cutoff: int = 10) -> float:
    """Return the DCG@cutoff of the best order of ``grades``, trec_eval's gains."""
    best = np.sort(np.maximum(np.asarray(grades, np.float64), 0.0))[::-1][:cutoff]
    return float((best / np.log2(np.arange(2, len(best) + 2))).sum())


def _ideal(gains: Floats) -> float:
    return float((np.sort(gains)[::-1] / np.log2(np.arange(2, len(gains) + 2))).sum())


class Pairs(NamedTuple):
    """Candidates of one list where ``better`` has the higher grade, and what the pair weighs."""

    better: Integers
    worse: Integers
    weights: Floats


def weighed_pairs(scores: Floats, lists: JudgedLists, truncation: int | None = 30) -> Pairs:
    """Return the pairs of all lists, weighed by how far an exchange of ranks moves the nDCG.

    Ranks are those that scores give now; gains are 2^grade - 1. Pairs that are both beyond rank
    ``truncation`` are left out. Memory: 24 bytes a pair.
    """
    ranks = ranks_of(scores, lists.starts)
    discounts = 1.0 / np.log2(1.0 + ranks)
    gains = np.exp2(np.maximum(lists.grades, 0).astype(np.float64)) - 1.0
    better, worse, weights = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0)]
    for start, stop in zip(lists.starts[:-1].tolist(), lists.starts[1:].tolist(), strict=True):
        grades, rank = lists.grades[start:stop], ranks[start:stop]
        graded = np.flatnonzero(grades > grades.min(initial=0))
        taking = grades[graded, None] > grades[None, :]
        if truncation is not None:
            taking &= np.minimum(rank[graded, None], rank[None, :]) <= truncation
        i, j = np.nonzero(taking)
        if len(i):
            i, j = graded[i] + start, j + start
            better.append(i)
            worse.append(j)
            moved = (gains[i] - gains[j]) * np.abs(discounts[i] - discounts[j])
            weights.append(moved / _ideal(gains[start:stop]))
    return Pairs(np.concatenate(better), np.concatenate(worse), np.concatenate(weights))


class Lambdas(NamedTuple):
    """The loss of scores, its gradient and the diagonal of its second derivative, by candidate."""

    loss: float
    gradient: Floats
    hessian: Floats


def lambdas(scores: Floats, pairs: Pairs, sigma: float = 1.0) -> Lambdas:
    """Return the lambda gradients of ``scores`` with the weights of ``pairs`` held."""
    apart = sigma * (scores[pairs.better] - scores[pairs.worse])
    loss = float((pairs.weights * np.logaddexp(0.0, -apart)).sum())
    rho = np.exp(-np.logaddexp(0.0, apart))  # 1 / (1 + exp(apart)), without overflow
    pull = -sigma * rho * pairs.weights
    bend = sigma**2 * rho * (1.0 - rho) * pairs.weights
    return Lambdas(
        loss,
        _by_candidate(pairs.better, pull, len(scores))
        - _by_candidate(pairs.worse, pull, len(scores)),
        _by_candidate(pairs.better, bend, len(scores))
        + _by_candidate(pairs.worse, bend, len(scores)),
    )


def _by_candidate(candidates: Integers, values: Floats, count: int) -> Floats:
    return np.asarray(np.bincount(candidates, values, count), np.float64)


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
