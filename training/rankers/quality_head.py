"""A passage-quality head: one logit over a document's vector, fitted to how useful it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.encoders.foundation.disk.files import write_bytes
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError, suggest
from sluice.encoders.foundation.numbers import whole_number

Loss = Literal["bce", "pairwise"]
Floats = NDArray[np.float64]
FORMAT = "sluice.quality_head"
ROUNDS = 500  # of L-BFGS at most


@dataclass(frozen=True, slots=True)
class QualityHead:
    """``quality = vectors @ weights + bias``; higher is better.

    ``facts`` say what it was fitted on, among them the encoder's ``fingerprint``.
    """

    weights: NDArray[np.float32]
    bias: float
    facts: Mapping[str, Any] = field(default_factory=dict)

    def quality(self, vectors: ArrayLike) -> NDArray[np.float32]:
        """Return the quality of dense vectors ``[n, dim]``."""
        rows = np.asarray(vectors, np.float32)
        if rows.ndim != 2 or rows.shape[1] != len(self.weights):
            raise DataError(
                f"quality head: vectors of shape {rows.shape}, expected [n, {len(self.weights)}]"
            )
        quality: NDArray[np.float32] = (rows @ self.weights + np.float32(self.bias)).astype(
            np.float32, copy=False
        )
        return quality

    def save(self, path: str | Path) -> None:
        """Write one safetensors file, in one step."""
        from safetensors.numpy import save

        tensors = {"weights": self.weights, "bias": np.asarray([self.bias], np.float64)}
        metadata = {"format": FORMAT, "facts": json.dumps(dict(self.facts))}
        write_bytes(Path(path), save(tensors, metadata))

    @classmethod
    def load(cls, path: str | Path) -> QualityHead:
        """Read a saved head; ``ModelError`` for a file that holds none."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(Path(path), "numpy") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != FORMAT:
                    raise ModelError(f"{path}: {metadata.get('format')!r}, expected {FORMAT!r}")
                weights, bias = file.get_tensor("weights"), file.get_tensor("bias")
            if weights.ndim != 1 or bias.shape != (1,):
                raise ValueError(f"weights {weights.shape}, bias {bias.shape}")
            if not np.isfinite(weights).all() or not np.isfinite(bias).all():
                raise ValueError("a weight is not finite")
            return cls(weights, float(bias[0]), dict(json.loads(metadata["facts"])))
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{path}: not a quality head ({error}); fit it again") from None


def fit_quality_head(
    vectors: ArrayLike,
    targets: ArrayLike,
    *,
    loss: Loss = "bce",
    l2: float = 1.0,
    pairs: int = 200_000,
    seed: int = 13,
    facts: Mapping[str, Any] | None = None,
) -> QualityHead:
    """Fit a head to vectors ``[n, dim]`` and how much each document matters, ``targets`` ``[n]``.

    ``bce`` is logistic regression on targets from 0 to 1. ``pairwise`` is the logistic loss of the
    difference of two documents' logits over all pairs with different targets (RankNet; Burges et
    al. 2005), or over ``pairs`` of them drawn by ``seed``; targets are any numbers, and the bias
    stays 0. ``l2 / 2n`` times the squared weights is added, on features scaled to a deviation of
    1. Minimised by L-BFGS in float64. ``DataError`` where all targets are the same.
    """
    if loss not in get_args(Loss):
        near = suggest(str(loss), get_args(Loss))
        raise ConfigError(f"loss: {loss!r}; expected bce or pairwise{near}")
    if isinstance(l2, bool) or not isinstance(l2, (int, float)) or not 0 < l2 < np.inf:
        raise ConfigError(f"l2: {l2!r}; expected a number above 0")
    pairs = whole_number(pairs, "pairs", 1)
    rows, goals = np.asarray(vectors, np.float64), np.asarray(targets, np.float64)
    _check(rows, goals, loss)
    centre, deviation = rows.mean(0), rows.std(0)
    deviation[deviation == 0] = 1.0
    penalty = l2 / len(rows)
    chosen = drawn_pairs(goals, pairs, seed) if loss == "pairwise" else None

    def cost(parameters: Floats) -> tuple[float, Floats]:
        scaled = parameters[:-1] / deviation
        logits = rows @ scaled - centre @ scaled + parameters[-1]
        if chosen is None:
            value, slopes = _cross_entropy(logits, goals)
        else:
            value, slopes = _pairwise(logits, *chosen)
        total = float(slopes.sum())
        gradient = (rows.T @ slopes - centre * total) / deviation
        value += penalty / 2 * float(parameters[:-1] @ parameters[:-1])
        gradient += penalty * parameters[:-1]
        return value, np.append(gradient, 0.0 if chosen is not None else total)

    minimum = _minimised(cost, rows.shape[1] + 1)
    weights = minimum[:-1] / deviation
    bias = 0.0 if chosen is not None else float(minimum[-1] - centre @ weights)
    return QualityHead(weights.astype(np.float32), bias, {"loss": loss, "l2": l2, **(facts or {})})


def drawn_pairs(
    targets: Floats, most: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows (higher, lower) of pairs with different targets: all, or ``most`` drawn evenly.

    Drawn ones may repeat.
    """
    order = np.argsort(targets, kind="stable").astype(np.int64)
    below = np.searchsorted(targets[order], targets[order], side="left")  # rows under each
    ends = np.cumsum(below)
    count = int(ends[-1])
    if count <= most:
        numbers = np.arange(count)
    else:
        numbers = np.random.default_rng(seed).integers(0, count, most)
    higher = np.searchsorted(ends, numbers, side="right")
    lower = numbers - (ends[higher] - below[higher])
    return order[higher], order[lower]


def _cross_entropy(logits: Floats, targets: Floats) -> tuple[float, Floats]:
    """Return the mean of softplus(s) - y s, and its slope in each logit."""
    losses = np.logaddexp(0.0, logits) - targets * logits
    return float(losses.mean()), (_sigmoid(logits) - targets) / len(logits)


def _pairwise(
    logits: Floats, higher: NDArray[np.int64], lower: NDArray[np.int64]
) -> tuple[float, Floats]:
    """Return the mean of softplus(s_lower - s_higher) over pairs, and its slope in each logit."""
    gaps = logits[lower] - logits[higher]
    parts = _sigmoid(gaps) / len(gaps)
    slopes: Floats = np.bincount(lower, parts, len(logits)).astype(np.float64)
    slopes -= np.bincount(higher, parts, len(logits))
    return float(np.logaddexp(0.0, gaps).mean()), slopes


def _sigmoid(values: Floats) -> Floats:
    shares: Floats = np.exp(-np.logaddexp(0.0, -values))
    return shares


def _minimised(cost: Callable[[Floats], tuple[float, Floats]], size: int) -> Floats:
    from scipy.optimize import fmin_l_bfgs_b

    minimum, _, _ = fmin_l_bfgs_b(cost, np.zeros(size), factr=1e3, pgtol=1e-7, maxiter=ROUNDS)
    return np.asarray(minimum, np.float64)


def _check(rows: Floats, targets: Floats, loss: Loss) -> None:
    if rows.ndim != 2 or targets.shape != rows.shape[:1]:
        raise DataError(
            f"quality head: vectors of shape {rows.shape} and targets of shape {targets.shape}; "
            "expected [n, dim] and [n]"
        )
    if not np.isfinite(rows).all() or not np.isfinite(targets).all():
        raise DataError("quality head: a vector or target is not finite")
    if not len(targets) or targets.min() == targets.max():
        raise DataError(
            f"quality head: all {len(targets):,} documents have the same target; there is nothing "
            "to learn from (with labels='share' they differ by what queries find in them)"
        )
    if loss == "bce" and not 0 <= targets.min() <= targets.max() <= 1:
        raise DataError("quality head: bce learns targets from 0 to 1; pairwise takes any numbers")
