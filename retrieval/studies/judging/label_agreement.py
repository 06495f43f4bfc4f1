"""Measures the agreement of two sets of labels: kappa, Krippendorff's alpha, confusion matrix.

Pairs of a query and a document that both sets label are compared. Confidence intervals come from
a bootstrap over queries, because labels of one query depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import whole_number

Qrels: TypeAlias = Mapping[str, Mapping[str, int]]
Floats: TypeAlias = NDArray[np.float64]
Scale: TypeAlias = Literal["nominal", "ordinal", "interval"]
Weights: TypeAlias = Literal["none", "linear", "quadratic"]

WEIGHTS: tuple[Weights, ...] = ("none", "linear", "quadratic")
SCALES: tuple[Scale, ...] = ("nominal", "ordinal", "interval")
MOST_LEVELS = 101  # grades from the lowest to the highest: a matrix has this many rows


class Estimate(NamedTuple):
    """A figure and its 95% interval; NaN if undefined, as kappa is for a single grade."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.value):
            return "undefined (one grade only)"
        return f"{self.value:.4f}  [{self.low:.4f}, {self.high:.4f}]"


@dataclass(frozen=True, slots=True)
class LabelAgreement:
    """How two sets of labels agree on the ``pairs`` of ``queries`` that both label.

    ``confusion[i][j]`` counts pairs with grade ``levels[i]`` in the first set and ``levels[j]`` in
    the second. ``kappa`` is keyed by weights, ``binary`` (Cohen's kappa of grade t or more) by t,
    ``alpha`` by scale. ``only_first`` and ``only_second`` count pairs that are left out.
    """

    queries: int
    pairs: int
    only_first: int
    only_second: int
    levels: tuple[int, ...]
    confusion: tuple[tuple[int, ...], ...]
    same: float
    kappa: Mapping[str, Estimate]
    binary: Mapping[int, Estimate]
    alpha: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON; an undefined figure is null."""
        values = asdict(self)
        for kind in ("kappa", "binary"):
            values[kind] = {
                str(key): {name: _number(part) for name, part in estimate._asdict().items()}
                for key, estimate in getattr(self, kind).items()
            }
        values["alpha"] = {scale: _number(value) for scale, value in self.alpha.items()}
        return values

    def __str__(self) -> str:
        width = max(6, *(len(f"{n:,}") for row in self.confusion for n in row)) + 1
        lines = [
            f"{self.pairs:,} pairs of {self.queries:,} queries in both; {self.only_first:,} in the "
            f"first only, {self.only_second:,} in the second only",
            f"same grade           {self.same:.4f}",
        ]
        lines += [
            f"kappa {'(' + name + ')' if name != 'none' else '':<15}{each}"
            for name, each in self.kappa.items()
        ]
        lines += [f"kappa (grade >= {t:<2})  {each}" for t, each in self.binary.items()]
        lines += [
            f"alpha ({scale + ')':<14}"
            + ("undefined (one grade only)" if math.isnan(value) else f"{value:.4f}")
            for scale, value in self.alpha.items()
        ]
        heads = "".join(f"{level:>{width}}" for level in self.levels)
        lines += ["first \\ second" + heads]
        lines += [
            f"{level:>14}" + "".join(f"{count:>{width},}" for count in row)
            for level, row in zip(self.levels, self.confusion, strict=True)
        ]
        return "\n".join(lines)


def label_agreement(
    first: Qrels,
    second: Qrels,
    *,
    samples: Annotated[int, Ge(1), "Bootstrap samples of the queries."] = 1000,
    seed: Annotated[int, "Random seed for the bootstrap."] = 0,
) -> LabelAgreement:
    """Compare two sets of labels on what both label.

    ``samples`` bootstrap samples of queries give the intervals (percentiles 2.5 and 97.5). Levels
    are all integers from the lowest grade to the highest, so that weights depend on the difference
    of grades. ``DataError`` if no pair is in both.
    """
    whole_number(samples, "samples", 1)
    shared = {q: [d for d in first[q] if d in second[q]] for q in first if q in second}
    shared = {query: documents for query, documents in shared.items() if documents}
    if not shared:
        raise DataError(
            "the two sets of labels share no pair of query and document; are they of the same "
            "dataset, and does the judge's file have judged pairs?"
        )
    one = [np.array([first[q][d] for d in docs], np.int64) for q, docs in shared.items()]
    other = [np.array([second[q][d] for d in docs], np.int64) for q, docs in shared.items()]
    everything = np.concatenate([*one, *other])
    low, high = int(everything.min()), int(everything.max())
    size = high - low + 1
    if size > MOST_LEVELS:
        raise DataError(
            f"grades from {low} to {high}; expected {MOST_LEVELS} levels at most: are these scores?"
        )
    cells = [(a - low) * size + b - low for a, b in zip(one, other, strict=True)]
    by_query = np.stack([np.bincount(own, minlength=size * size) for own in cells])
    matrix = by_query.sum(axis=0).reshape(size, size)
    pairs = int(matrix.sum())
    drawn = _resampled(by_query, samples, seed).reshape(samples, size, size)
    rated = np.stack([np.concatenate(one), np.concatenate(other)]).astype(np.float64)
    return LabelAgreement(
        queries=len(shared),
        pairs=pairs,
        only_first=sum(map(len, first.values())) - pairs,
        only_second=sum(map(len, second.values())) - pairs,
        levels=tuple(range(low, high + 1)),
        confusion=tuple(tuple(row) for row in matrix.tolist()),
        same=float(np.trace(matrix)) / pairs,
        kappa={
            weights: _estimate(kappa_of(matrix, weights), kappa_of(drawn, weights))
            for weights in WEIGHTS
        },
        binary={
            low + cut: _estimate(*(kappa_of(_binarised(counts, cut)) for counts in (matrix, drawn)))
            for cut in range(1, size)
        },
        alpha={scale: krippendorff_alpha(rated, scale) for scale in SCALES},
    )


def kappa_of(confusion: NDArray[Any], weights: Weights = "none") -> Floats:
    """Return Cohen's kappa of confusion matrices ``[..., L, L]``, float64 ``[...]``.

    1 - observed / expected disagreement, a disagreement of d levels weighing 1, d or d^2 (Cohen,
    1960 and 1968). NaN where both raters use one and the same level, so that none is expected.
    """
    if weights not in WEIGHTS:
        raise ConfigError(f"weights: {weights!r}; expected one of {', '.join(WEIGHTS)}")
    counts = np.asarray(confusion, np.float64)
    size = counts.shape[-1]
    distance = np.abs(np.subtract.outer(np.arange(size), np.arange(size))).astype(np.float64)
    weight = (distance > 0).astype(np.float64) if weights == "none" else distance
    weight = weight**2 if weights == "quadratic" else weight
    rows, columns = counts.sum(axis=-1), counts.sum(axis=-2)
    observed = (weight * counts).sum(axis=(-2, -1)) * rows.sum(axis=-1)
    expected = np.einsum("...i,ij,...j->...", rows, weight, columns)
    ratio = np.full(np.shape(expected), np.nan)
    np.divide(observed, expected, out=ratio, where=expected > 0)
    return 1.0 - ratio


def krippendorff_alpha(ratings: Sequence[Sequence[float]] | Floats, scale: Scale) -> float:
    """Return Krippendorff's alpha of ratings ``[raters, units]``, NaN where a rater has none.

    Any number of raters; units with fewer than two ratings do not count. Disagreement of values c
    and k is 1 (nominal), (c - k)^2 (interval), or the square of how many ratings lie between them,
    half of those equal to either counted (ordinal). Krippendorff (2011), Computing Krippendorff's
    Alpha-Reliability, section D. NaN where all ratings that count are equal.
    """
    if scale not in SCALES:
        raise ConfigError(f"scale: {scale!r}; expected one of {', '.join(SCALES)}")
    table = np.asarray(ratings, np.float64)
    if table.ndim != 2:
        raise DataError(f"ratings of shape {table.shape}; expected [raters, units]")
    counted = table[:, np.isfinite(table).sum(axis=0) >= 2]
    values = np.unique(counted[np.isfinite(counted)])
    if len(values) < 2:
        return math.nan
    # How many raters gave each unit each value [units, values].
    counts = np.stack([(counted == value).sum(axis=0) for value in values], axis=1).astype(float)
    raters = counts.sum(axis=1)
    share = counts / (raters - 1.0)[:, None]
    coincidences = counts.T @ share - np.diag(share.sum(axis=0))
    totals = counts.sum(axis=0)
    weight = _disagreement(values, totals, scale)
    observed = float((coincidences * weight).sum())
    expected = float(totals @ weight @ totals)
    return float(1.0 - (totals.sum() - 1.0) * observed / expected)


def _disagreement(values: Floats, totals: Floats, scale: Scale) -> Floats:
    if scale == "nominal":
        return 1.0 - np.eye(len(values))
    # By ordinal scale a value stands where half of its own ratings are behind it.
    places = values if scale == "interval" else np.cumsum(totals) - totals / 2.0
    return np.subtract.outer(places, places) ** 2


def _binarised(counts: NDArray[Any], cut: int) -> NDArray[Any]:
    """Return matrices ``[..., 2, 2]`` of levels below ``cut`` and from it on."""
    parts = (slice(None, cut), slice(cut, None))
    rows = [[counts[..., one, other].sum(axis=(-2, -1)) for other in parts] for one in parts]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def _resampled(by_query: NDArray[Any], samples: int, seed: int) -> NDArray[Any]:
    """Return summed rows ``[samples, cells]`` of queries drawn with replacement."""
    rng = np.random.default_rng(seed)
    count = len(by_query)
    times = rng.multinomial(count, np.full(count, 1.0 / count), size=samples)
    drawn: NDArray[Any] = times @ by_query
    return drawn


def _estimate(value: Floats, drawn: Floats) -> Estimate:
    known = drawn[np.isfinite(drawn)]
    if math.isnan(float(value)) or not len(known):
        return Estimate(float(value), math.nan, math.nan)
    low, high = np.percentile(known, [2.5, 97.5])
    return Estimate(float(value), float(low), float(high))


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
