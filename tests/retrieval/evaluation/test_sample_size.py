"""The power of the paired t-test equals statsmodels', and what is simulated."""

import math
import re

import numpy as np
import pytest
from places import ROOT

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.evaluation.significance import paired_t_test, power, queries_needed


def test_it_equals_statsmodels() -> None:
    tests = pytest.importorskip("statsmodels.stats.power").TTestPower()
    for queries in (2, 5, 43, 300, 1992):
        for effect in (0.0, 0.03, 0.2, 0.8):
            for alpha in (0.01, 0.05):
                expected = tests.power(effect, queries, alpha, alternative="two-sided")
                found = power(queries, -effect * 0.3, 0.3, alpha=alpha)
                if math.isnan(expected):  # statsmodels has no figure where nothing is missed
                    expected = 1.0
                assert found == pytest.approx(expected, abs=1e-7), (queries, effect)


def test_it_is_the_share_of_samples_that_are_significant() -> None:
    rng = np.random.default_rng(5)
    samples = rng.normal(0.1, 0.3, (2_000, 60))
    share = np.mean([paired_t_test(row, np.zeros(60)) < 0.05 for row in samples])
    assert power(60, 0.1, 0.3) == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize(
    ("difference", "spread"), [(0.01, 0.25), (0.05, 0.13), (-0.2, 0.3), (9, 1)]
)
def test_the_fewest_queries(difference: float, spread: float) -> None:
    for chance in (0.5, 0.8, 0.95):
        count = queries_needed(difference, spread, chance=chance)
        assert power(count, difference, spread) >= chance
        assert count == 2 or power(count - 1, difference, spread) < chance
    if count > 10_000:  # there the t distribution is the normal one: (z + z')^2 spread^2 / d^2
        assert count == pytest.approx(((1.959964 + 1.644854) * spread / difference) ** 2, rel=1e-4)


def test_the_page_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "findings" / "queries.md").read_text(encoding="utf-8")
    code, printed = re.findall(r"```(?:python|text)\n(.*?)```", page, re.S)
    exec(compile(code, "queries.md", "exec"), {})
    assert capsys.readouterr().out == printed
    rows = re.findall(r"^\| \S+, ([\d,]+) \|.*\| (0\.\d+) \| (0\.\d+) \| (.+) \|$", page, re.M)
    assert len(rows) == 10
    for queries, spread, least, needed in rows:
        assert power(int(queries.replace(",", "")), float(least), float(spread)) > 0.78
        for sought, count in zip((0.05, 0.02, 0.01), needed.split(" | "), strict=True):
            expected = queries_needed(sought, float(spread))  # the spread is rounded there
            assert int(count.replace(",", "")) == pytest.approx(expected, rel=0.02)


def test_what_is_refused() -> None:
    assert power(1, 1.0, 0.1) == power(0, 1.0, 0.1) == 0.0
    for arguments, said in (
        ({"spread": 0.0}, "expected a standard deviation above 0"),
        ({"difference": float("nan")}, "expected a finite number"),
        ({"alpha": 0.0}, "alpha: 0.0; expected a value between 0 and 1"),
        ({"chance": 0.01}, r"between alpha \(0.05\) and 1"),
        ({"difference": 0.0}, "a billion queries do not show it"),
    ):
        with pytest.raises(ConfigError, match=said):
            queries_needed(**{"difference": 0.1, "spread": 0.2, **arguments})
