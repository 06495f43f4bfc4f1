"""The reliability curve of a run, against plain formulas."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from command_line import Call

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.evaluation.calibration_error import calibration
from sluice.retrieval.runs.run import Run

Lists = dict[str, dict[str, float]]
Qrels = dict[str, dict[str, int]]


def world(queries: int = 60) -> tuple[Lists, Qrels]:
    """Hits that are relevant as often as ``sigmoid(2 * score - 1)`` says."""
    chance = random.Random(3)
    lists: Lists = {}
    qrels: Qrels = {}
    for query in range(queries):
        scores = {f"d{n}": chance.uniform(-2, 3) for n in range(30)}
        lists[f"q{query}"] = scores
        likely = {name: 1 / (1 + math.exp(1 - 2 * s)) for name, s in scores.items()}
        qrels[f"q{query}"] = {n: int(chance.random() < p) for n, p in likely.items()}
    return lists, qrels


def test_error_and_curve_by_the_formula() -> None:
    lists, qrels = world()
    found = calibration(Run(lists), qrels, scale=1.5, bias=-0.2, k=7, max_grade=2, bins=5)
    bins: dict[int, list[tuple[float, float]]] = {}
    for query, scores in lists.items():
        for name in sorted(scores, key=lambda name: -scores[name])[:7]:
            likely = 1 / (1 + math.exp(-1.5 * scores[name] + 0.2))
            bins.setdefault(min(int(5 * likely), 4), []).append((likely, qrels[query][name] / 2))
    count = sum(map(len, bins.values()))
    means = {
        b: [sum(column) / len(hits) for column in zip(*hits, strict=True)]
        for b, hits in bins.items()
    }
    expected = sum(len(bins[b]) * abs(p - o) for b, (p, o) in means.items()) / count
    assert (found.hits, count) == (420, 420)
    assert found.error == pytest.approx(expected, abs=1e-6)
    assert [each.low for each in found.bins] == [b / 5 for b in sorted(bins)]
    for b, each in zip(sorted(bins), found.bins, strict=True):
        assert each.hits == len(bins[b])
        assert [each.predicted, each.observed] == pytest.approx(means[b], abs=1e-6)


def test_scale_and_bias_are_found_again() -> None:
    lists, qrels = world(queries=1200)
    found = calibration(Run(lists), qrels)
    assert found.hits == 600 * 30
    assert found.scale == pytest.approx(2.0, abs=0.1)
    assert found.bias == pytest.approx(-1.0, abs=0.1)
    assert found.error < 0.02
    shifted = {q: {d: 100 + 7 * s for d, s in scores.items()} for q, scores in lists.items()}
    moved = calibration(Run(shifted), qrels)  # another unit and zero: the same probabilities
    assert moved.error == pytest.approx(found.error, abs=1e-4)
    assert calibration(Run(lists), qrels, scale=8.0, bias=-4.0).error > 0.05


def test_the_fit_is_where_the_likelihood_is_flat() -> None:
    lists, qrels = world(queries=40)
    found = calibration(Run(lists), qrels)
    slopes = [0.0, 0.0]
    for query in list(lists)[::2]:
        for name, score in lists[query].items():
            left = qrels[query][name] - 1 / (1 + math.exp(-found.scale * score - found.bias))
            slopes = [slopes[0] + left * score, slopes[1] + left]
    assert slopes == pytest.approx([0.0, 0.0], abs=1e-3)


@pytest.mark.parametrize("scores", [[3.0, 2.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0], [1.0]])
def test_scores_that_part_the_classes_or_are_all_the_same(scores: list[float]) -> None:
    lists = {q: {f"d{n}": score for n, score in enumerate(scores)} for q in ("a", "b")}
    found = calibration(Run(lists), {q: {"d0": 1, "d1": 1} for q in ("a", "b")})
    assert math.isfinite(found.scale)
    assert math.isfinite(found.bias)
    assert 0 <= found.error < 0.01


def test_unjudged_hits_are_not_relevant_and_queries_without_hits_do_not_count() -> None:
    run = Run({"a": {"x": 0.0, "y": 0.0}, "b": {}, "other": {"x": 5.0}})
    found = calibration(run, {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1}}, scale=1, bias=0)
    assert (found.hits, found.error) == (2, 0.0)


def test_logits_beyond_floats_are_certain() -> None:
    run = Run({"q": [("a", 9.0), ("b", -9.0)]})
    found = calibration(run, {"q": {"a": 1}}, scale=1e308, bias=0.0)
    assert [(each.hits, each.predicted, each.observed) for each in found.bins] == [
        (1, 0.0, 0.0), (1, 1.0, 1.0),
    ]  # fmt: skip


def test_what_cannot_be_compared() -> None:
    run, qrels = Run({"a": {"x": 1.0}}), {"a": {"x": 1}}
    for options, message in (
        ({"scale": 1.0}, "scale and bias go together"),
        ({"scale": math.nan, "bias": 0.0}, "scale is nan"),
        ({"max_grade": 0}, "max_grade: 0"),
        ({"bins": 0}, "bins is 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            calibration(run, {**qrels, "b": {"x": 1}} if "scale" in options else qrels, **options)
    with pytest.raises(DataError, match="1 judged query with hits; expected one or more, and two"):
        calibration(run, qrels)
    with pytest.raises(DataError, match="0 judged queries"):
        calibration(run, {"z": {"x": 1}}, scale=1, bias=0)


def test_the_command(sluice: Call, tmp_path: Path) -> None:
    lists, qrels = world(queries=6)
    Run(lists).save(tmp_path / "a.trec")
    lines = [f"{q}\t{d}\t{g}" for q, grades in qrels.items() for d, g in grades.items()]
    (tmp_path / "q.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    words = ("diagnose", "calibration", tmp_path / "a.trec", tmp_path / "q.tsv")
    code, out, err = sluice(*words, "--scale", 2, "--bias", -1, "--json")
    assert code == 0, err
    expected = calibration(Run(lists), qrels, scale=2, bias=-1)
    assert json.loads(out)["error"] == pytest.approx(expected.error, abs=1e-6)
    code, out, err = sluice(*words, "--scale", 2, "--bias", -1)
    assert code == 0, err
    assert out.startswith(f"calibration error {expected.error:.4f} of 180 hits; scale 2, bias -1\n")
    assert len(out.splitlines()) == 2 + len(expected.bins)
    assert sluice(*words, "--scale", 2)[0] == 2
