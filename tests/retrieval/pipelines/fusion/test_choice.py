"""The choice among weights: smoothing, bagging, folds, against their formulas in plain Python."""

import math

import numpy as np
import pytest

from sluice.retrieval.pipelines.fitting.choice import (
    SAMPLES,
    WIDTH,
    bagged,
    gain_over,
    held_out,
    kernel,
    nearest,
)
from sluice.retrieval.pipelines.fusion.fusion import FLATTEST, STEEP_RANKS, Fusion
from sluice.retrieval.runs.run import Run

POINTS = np.array([[step / 10, 1 - step / 10] for step in range(11)])


def test_smoothed_bagging_is_its_formula() -> None:
    values = np.random.default_rng(5).random((11, 30))
    weights = [
        [math.exp(-sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) / (2 * WIDTH**2))
         for q in POINTS]
        for p in POINTS
    ]  # fmt: skip
    smoothing = [[w / sum(row) for w in row] for row in weights]
    np.testing.assert_allclose(kernel(POINTS), smoothing, rtol=1e-12)
    rng = np.random.default_rng(3)
    chosen = []
    for counts in rng.multinomial(30, [1 / 30] * 30, SAMPLES):
        means = [
            sum(v * int(c) for v, c in zip(row, counts, strict=True)) / 30
            for row in values.tolist()
        ]
        smooth = [sum(w * m for w, m in zip(row, means, strict=True)) for row in smoothing]
        chosen.append(POINTS[smooth.index(max(smooth))])
    mean = [sum(point[i] for point in chosen) / SAMPLES for i in (0, 1)]
    distances = [sum((a - b) ** 2 for a, b in zip(p, mean, strict=True)) for p in POINTS.tolist()]
    assert bagged(values, POINTS, kernel(POINTS), seed=3) == distances.index(min(distances))


def test_of_equals_the_first_is_taken() -> None:
    assert bagged(np.full((11, 4), 0.3), POINTS, kernel(POINTS)) == 0
    assert nearest(np.array([[0.0], [1.0]]), np.array([0.5])) == 0
    assert bagged(np.full((11, 1), 0.3), POINTS, kernel(POINTS)) == 0


def test_held_out_values_are_of_what_the_other_folds_choose() -> None:
    values = np.random.default_rng(1).random((4, 12))

    def best(given: np.ndarray) -> int:
        return int(given.mean(axis=1).argmax())

    expected = []
    for query in range(12):
        others = [place for place in range(12) if place % 5 != query % 5]
        means = [sum(row[place] for place in others) / len(others) for row in values.tolist()]
        expected.append(values[means.index(max(means)), query])
    np.testing.assert_array_equal(held_out(values, best), expected)
    assert held_out(values[:, :1], best) is None
    two = held_out(values[:, :2], best)
    assert two is not None
    assert two[0] == values[int(values[:, 1].argmax()), 0]


def test_the_gain_is_a_mean_with_an_interval_around_it() -> None:
    rng = np.random.default_rng(2)
    baseline = rng.random(200)
    better = baseline + rng.normal(0.1, 0.2, 200)
    gain = gain_over(better, baseline)
    assert gain is not None
    assert gain.mean == pytest.approx(float(np.mean(better - baseline)))
    error = float(np.std(better - baseline, ddof=1)) / math.sqrt(200)
    assert gain.low == pytest.approx(gain.mean - 1.96 * error, abs=0.3 * error)
    assert gain.high == pytest.approx(gain.mean + 1.96 * error, abs=0.3 * error)
    assert gain_over(None, baseline) is None


def test_steep_is_its_formula() -> None:
    steep = {"a": 9.0, "b": 2.0, "c": 1.0, "d": 0.5}
    flat = {"d": 3.0, "c": 2.9, "b": 2.8, "e": 0.0}
    fused = dict(
        Fusion("weighted", [0.4, 0.6], "steep").fuse([Run({"q": steep}), Run({"q": flat})])["q"]
    )
    expected = dict.fromkeys([*steep, *flat], 0.0)
    for weight, scores in ((0.4, steep), (0.6, flat)):
        ordered = sorted(scores.values(), reverse=True)
        scaled = [(s - ordered[-1]) / (ordered[0] - ordered[-1]) for s in ordered]
        below = scaled[1:STEEP_RANKS]
        factor = (1 - sum(below) / len(below)) ** 2
        for name, score in scores.items():
            value = (score - ordered[-1]) / (ordered[0] - ordered[-1])
            expected[name] += weight * factor * value
    assert fused == pytest.approx(expected, rel=1e-6)


def test_steep_looks_at_the_first_hundred_and_has_a_least_value() -> None:
    many = {f"d{place:03d}": float(300 - place) for place in range(300)}
    scaled = [(299 - place) / 299 for place in range(300)]
    below = scaled[1:STEEP_RANKS]
    factor = (1 - sum(below) / len(below)) ** 2
    found = dict(Fusion("weighted", None, "steep").fuse([Run({"q": many})])["q"])
    assert found["d010"] == pytest.approx(scaled[10] * factor, rel=1e-6)
    one = Run({"q": {"a": 5.0, "b": 5.0}, "p": {"a": 4.0}, "empty": {}})
    found_run = Fusion("weighted", None, "steep").fuse([one])
    assert dict(found_run["q"]) == pytest.approx({"a": FLATTEST**2, "b": FLATTEST**2})
    assert dict(found_run["p"]) == pytest.approx({"a": 1.0})
    assert len(found_run["empty"]) == 0
