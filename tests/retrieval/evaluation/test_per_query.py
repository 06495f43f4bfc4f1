"""Per-query tables, equivalence tables, and ``sluice compare`` with both."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import Run, evaluate
from sluice.retrieval.evaluation.comparison import (
    SignificanceTest,
    compare_scores,
    differences,
    equivalences,
    per_query_csv,
)
from sluice.retrieval.evaluation.scores import Scores
from sluice.retrieval.evaluation.significance import equivalence

Call = Callable[..., tuple[int, str, str]]
QRELS = {f"q{i}": {"a": 1, "c": 1} for i in range(12)}


@pytest.fixture
def scores() -> dict[str, Scores]:
    chance = np.random.default_rng(2)
    names = "abcd"
    found = {}
    for system in ("base", "near", "far"):
        ranks = {q: chance.permutation(4) for q in QRELS}
        run = Run({q: {names[d]: 9.0 - r for r, d in enumerate(ranks[q])} for q in QRELS})
        found[system] = evaluate(run, QRELS, ["RR", "nDCG@3"])
    return found


def test_queries_stand_by_difference(scores: dict[str, Scores]) -> None:
    header, *rows = csv.reader(per_query_csv(scores, "nDCG@3").splitlines())
    assert header == ["query", "base", "near", "far", "near - base", "far - base"]
    last = [float(row[-1]) for row in rows]
    assert last == sorted(last, reverse=True)
    assert {row[0] for row in rows} == set(QRELS)
    for row in rows:
        assert float(row[2]) == scores["near"].per_query["nDCG@3"][row[0]]
        assert float(row[4]) == pytest.approx(float(row[2]) - float(row[1]))
    with pytest.raises(ConfigError, match="did you mean 'near'"):
        per_query_csv(scores, "RR", "nearr")


def test_equivalence_by_share_of_the_baseline(scores: dict[str, Scores]) -> None:
    table = equivalences(scores, 0.5, "near")
    assert next(iter(table.rows)) == "base = near, RR"
    row = table.rows["far = near, nDCG@3"]
    values = [np.array(list(scores[s].per_query["nDCG@3"].values())) for s in ("far", "near")]
    bound = 0.5 * values[1].mean()
    assert row["bound"] == pytest.approx(bound)
    assert row["p (TOST)"] == pytest.approx(equivalence(*values, bound).p_value)
    for share in (0, 1, -0.1):
        with pytest.raises(ConfigError, match="between 0 and 1"):
            equivalences(scores, share)


def test_a_baseline_of_nothing_has_no_bound() -> None:
    nothing = evaluate(Run({q: {"x": 1.0} for q in QRELS}), QRELS, "RR")
    table = equivalences({"base": nothing, "same": nothing}, 0.1)
    assert "-" in str(table)


@pytest.mark.parametrize("correction", ["holm", "bonferroni", "none"])
@pytest.mark.parametrize("test", ["t-test", "fisher", "bootstrap"])
def test_every_test_with_every_correction(
    test: str, correction: str, scores: dict[str, Scores]
) -> None:
    testing = SignificanceTest(test, correction, permutations=500)  # type: ignore[arg-type]
    table = compare_scores(scores, testing=testing)
    for found in table.comparisons:
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.difference <= found.high
        assert found.p <= found.p_corrected <= min(1.0, 2 * found.p) + 1e-12
        assert (found.p == found.p_corrected) or correction != "none"
    rows = differences(table.comparisons).rows
    assert next(iter(rows)) == "near - base, RR"


def test_a_single_query_has_no_interval() -> None:
    one = evaluate(Run({"q0": {"a": 1.0}}), {"q0": {"a": 1}}, "RR")
    two = evaluate(Run({"q0": {"b": 2.0, "a": 1.0}}), {"q0": {"a": 1}}, "RR")
    for test in ("t-test", "fisher", "bootstrap"):
        testing = SignificanceTest(test, permutations=9)  # type: ignore[arg-type]
        table = compare_scores({"one": one, "two": two}, testing=testing)
        assert (table.comparisons[0].low, table.comparisons[0].effect_size) == (None, None)
        assert "NaN" not in table.to_json()
        assert "Infinity" not in table.to_json()
        assert "-" in str(differences(table.comparisons))


def test_the_command_line(tmp_path: Path, sluice: Call) -> None:
    qrels = tmp_path / "qrels.tsv"
    qrels.write_text("".join(f"q{i}\t0\ta\t1\n" for i in range(9)))
    for name, place in (("one", 1), ("two", 2)):
        lines = [f"q{i} Q0 a 1 {i % (place + 1)} {name}\nq{i} Q0 b 2 0.5 {name}" for i in range(9)]
        (tmp_path / f"{name}.trec").write_text("\n".join(lines) + "\n")
    runs = [tmp_path / "one.trec", tmp_path / "two.trec"]
    words = ["compare", *runs, "--qrels", qrels, "-m", "RR", "--test", "bootstrap"]
    by_query = tmp_path / "by.csv"
    code, out, _ = sluice(*words, "--per-query", by_query, "--equivalent", "0.5")
    assert code == 0
    assert "two - one, RR" in out
    assert "p (TOST)" in out
    assert len(by_query.read_text().splitlines()) == 10
    code, out, _ = sluice(*words, "--equivalent", "0.5", "--format", "json")
    assert json.loads(out)["equivalences"]["systems"]
    for wrong, said in (
        (("--test", "z"), "known: t-test, fisher, bootstrap"),
        (("--correction", "holms"), "did you mean 'holm'"),
        (("--equivalent", "2"), "between 0 and 1"),
        (("--baseline", "on"), "did you mean 'one'"),
    ):
        code, _, error = sluice(*words, *wrong)
        assert (code, said in error) == (2, True), error
