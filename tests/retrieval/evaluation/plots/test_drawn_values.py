"""Figures of values: they show the numbers, name the units, and touch nothing global."""

import sys
from pathlib import Path

import numpy as np
import pytest

from sluice.encoders.foundation.errors import ConfigError, DataError, MissingPackageError
from sluice.retrieval import Scores, evaluate
from sluice.retrieval.evaluation.plots import (
    Point,
    draw_depths,
    draw_differences,
    draw_tradeoff,
    save_figure,
)

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.figure import Figure  # noqa: E402

QRELS = {f"q{n}": {"d": 1} for n in range(6)}
RANKS = {"one": (1, 1, 2, 3, 2, 9), "two": (2, 1, 1, 3, 4, 1)}


def scores(name: str, qrels: dict[str, dict[str, int]] = QRELS) -> Scores:
    runs = {
        f"q{n}": {"d" if place == rank else f"x{place}": 20.0 - place for place in range(1, 10)}
        for n, rank in enumerate(RANKS[name])
        if f"q{n}" in qrels
    }
    return evaluate(runs, qrels, ["RR@10", "nDCG@10"])


def test_tradeoff_draws_every_point_in_order_of_cost() -> None:
    lines = {"ivf": [Point(4.0, 0.9, "8"), Point(0.1, 0.5, "1")], "flat": [Point(2.0, 1.0)]}
    tried = [Point(1.0, 0.4), Point(3.0, 0.2)]
    figure = draw_tradeoff(
        lines, cost="latency, ms", quality="R@10", tried=tried, front=tried[:1], chosen=tried[0]
    )
    (axes,) = figure.axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert drawn["ivf"] == [[0.1, 0.5], [4.0, 0.9]]
    assert drawn["flat"] == [[2.0, 1.0]]
    assert axes.collections[0].get_offsets().tolist() == [list(each[:2]) for each in tried]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("latency, ms", "R@10")
    assert axes.get_xscale() == "log"
    assert sorted(text.get_text() for text in axes.texts) == ["1", "8"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "tried", "front", "ivf", "flat", "chosen",
    ]  # fmt: skip
    near = draw_tradeoff({"a": [Point(1, 1), Point(2, 1)]}, cost="MB", quality="AP")
    assert near.axes[0].get_xscale() == "linear"
    free = draw_tradeoff({"a": [Point(0, 1), Point(200, 1)]}, cost="price", quality="AP")
    assert free.axes[0].get_xscale() == "linear"


def test_differences_are_sorted_and_counted() -> None:
    figure = draw_differences(scores("one"), scores("two"), names=("a", "b"))
    (axes,) = figure.axes
    one, two = (1 / np.array(RANKS[name], dtype=np.float64) for name in ("one", "two"))
    expected = np.sort(one - two)[::-1]
    gains, losses = (patch.get_data().values for patch in axes.patches)
    np.testing.assert_allclose(gains + losses, expected)
    assert (gains >= 0).all()
    assert (losses <= 0).all()
    assert axes.get_title() == "2 wins, 2 ties, 2 losses"
    assert axes.get_xlabel() == "6 queries, sorted by difference"
    assert axes.get_ylabel() == "RR@10: a minus b"
    assert axes.lines[1].get_ydata()[0] == pytest.approx(expected.mean())
    single = draw_differences(scores("one", {"q0": {"d": 1}}), scores("two", {"q0": {"d": 1}}))
    assert single.axes[0].get_title() == "1 win, 0 ties, 0 losses"
    assert draw_differences(scores("one"), scores("two"), "ndcg@10").axes[0].get_ylabel() == (
        "nDCG@10: system minus baseline"
    )


def test_depths_end_where_the_lists_end() -> None:
    figure = draw_depths({"deep": [0.1, 0.4, 0.9], "short": [0.2]}, (1, 10, 100))
    (axes,) = figure.axes
    assert [line.get_xydata().tolist() for line in axes.lines] == [
        [[1, 0.1], [10, 0.4], [100, 0.9]], [[1, 0.2]],
    ]  # fmt: skip
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "10", "100"]


def test_a_part_of_ones_own_figure() -> None:
    figure = Figure()
    outer, inner = figure.subfigures(1, 2)
    assert draw_depths({"a": [0.5]}, [1], ax=outer.add_subplot()) is figure
    ax = inner.add_subplot()
    assert draw_tradeoff({"a": [Point(1, 2)]}, cost="ms", quality="AP", ax=ax) is figure
    assert ax.get_xlabel() == "ms"
    with pytest.raises(ConfigError, match="ax: Figure; expected one matplotlib Axes"):
        draw_depths({"a": [0.5]}, [1], ax=figure)  # type: ignore[arg-type]


def test_nothing_global_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it raises
    before = matplotlib.rcParams.copy()
    save_figure(draw_depths({"_a $x$": [0.5], "b": [0.2]}, [1]), tmp_path / "new" / "x.svg")
    assert matplotlib.rcParams.copy() == before
    text = (tmp_path / "new" / "x.svg").read_text()
    assert "<!--  _a $x$ -->" in text  # a name is text, not mathematics, and not hidden
    again = save_figure(draw_depths({"_a $x$": [0.5], "b": [0.2]}, [1]), tmp_path / "y.svg")
    assert again.read_text() == text


def test_empty_and_broken_values_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="no points to draw"):
        draw_tradeoff({"a": []}, cost="ms", quality="AP")
    with pytest.raises(DataError, match=r"p has cost nan and value 1.*finite numbers"):
        draw_tradeoff({"a": [Point(float("nan"), 1, "p")]}, cost="ms", quality="AP")
    with pytest.raises(DataError, match="no system has a value"):
        draw_depths({"a": []}, [1])
    with pytest.raises(DataError, match="a has 2 values for 1 depths"):
        draw_depths({"a": [1, 2]}, [1])
    with pytest.raises(ConfigError, match=r"measure: 'AP' was not computed for both; there are RR"):
        draw_differences(scores("one"), scores("two"), "AP")
    with pytest.raises(ConfigError, match="scored on different queries"):
        draw_differences(scores("one"), scores("two", {"q0": {"d": 1}}))
    with pytest.raises(DataError, match="no query has a value"):
        draw_differences(Scores({"AP": 0.0}, {"AP": {}}, 0), Scores({"AP": 0.0}, {"AP": {}}, 0))
    with pytest.raises(ConfigError, match="expected a name that ends in svg, png, pdf"):
        save_figure(Figure(), tmp_path / "x.gif")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'sluice-ir\[plots\]'"):
        draw_depths({"a": [0.5]}, [1])
