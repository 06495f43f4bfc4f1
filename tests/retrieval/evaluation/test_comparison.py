import csv
import io
import json

import numpy as np
import pytest
import scipy.stats

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.evaluation.comparison import compare, compare_scores
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.evaluation.table import Table
from sluice.retrieval.runs.run import Run

QRELS = {f"q{i}": {"a": 1} for i in range(30)}
GOOD = Run({f"q{i}": {"a": 2.0, "b": 1.0} for i in range(30)})
BAD = Run({f"q{i}": {"b": 2.0, "a": 1.0} if i % 3 else {"a": 2.0, "b": 1.0} for i in range(30)})
RUNS = {"bm25": BAD, "good": GOOD, "same": BAD}


@pytest.mark.parametrize("test", ["t-test", "fisher"])
def test_compare(test: str) -> None:
    table = compare(RUNS, QRELS, ["RR@10", "recall.100"], test=test)  # type: ignore[arg-type]
    assert list(table.columns) == ["RR@10", "R@100"]
    assert table.rows["good"]["RR@10"] == 1.0
    assert table.marks == {("good", "RR@10"): "†"}
    good, same = table.comparisons[:2]
    assert (good.wins, good.ties, good.losses) == (20, 10, 0)
    assert good.difference == pytest.approx(1 / 3)
    assert good.p_corrected == pytest.approx(2 * good.p)
    assert (same.p, same.p_corrected, same.significant) == (1.0, 1.0, False)
    assert "differs from bm25" in table.caption
    assert "over 2 systems" in table.caption
    if test == "t-test":
        values = [evaluate(run, QRELS, "RR").per_query["RR"] for run in (GOOD, BAD)]
        first, second = (list(value.values()) for value in values)
        assert good.p == pytest.approx(scipy.stats.ttest_rel(first, second).pvalue)


def test_baseline_by_name_and_alone() -> None:
    table = compare(RUNS, QRELS, "RR", baseline="good")
    assert {c.system for c in table.comparisons} == {"bm25", "same"}
    assert set(table.marks) == {("bm25", "RR"), ("same", "RR")}
    alone = compare({"bm25": BAD}, QRELS, "RR")
    assert (alone.caption, alone.comparisons) == ("", [])


def test_one_query_shows_nothing() -> None:
    table = compare({"x": {"q0": {"b": 1.0}}, "y": {"q0": {"a": 1.0}}}, {"q0": {"a": 1}}, "RR")
    assert table.comparisons[0].p == 1.0
    assert not table.marks


def test_errors() -> None:
    with pytest.raises(ConfigError, match="did you mean 'bm25'"):
        compare(RUNS, QRELS, "RR", baseline="bm52")
    with pytest.raises(ConfigError, match="known: t-test, fisher"):
        compare(RUNS, QRELS, "RR", test="z")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="alpha"):
        compare(RUNS, QRELS, "RR", alpha=5)
    with pytest.raises(ConfigError, match="permutations"):
        compare(RUNS, QRELS, "RR", permutations=0)
    with pytest.raises(ConfigError, match="no runs"):
        compare({}, QRELS, "RR")
    some = evaluate(BAD, {"q0": {"a": 1}}, "RR")
    with pytest.raises(ConfigError, match="different queries"):
        compare_scores({"all": evaluate(BAD, QRELS, "RR"), "some": some})


def sample() -> Table:
    table = compare({"b<m>_25|": BAD, "good": GOOD}, QRELS, ["RR", "R@5"])
    table.add_column("p50 ms", {"good": 12.345})
    table.add_column("index bytes", {"good": 1234567, "b<m>_25|": 10}, ",d")
    return table


def test_text_table_is_aligned() -> None:
    lines = str(sample()).splitlines()
    assert lines[0].split() == ["system", "RR", "R@5", "p50", "ms", "index", "bytes"]
    assert lines[3].split() == ["good", "1.0000†", "1.0000", "12.3", "1,234,567"]
    assert lines[2].index("0.6667") == lines[3].index("1.0000†")
    assert lines[2].split()[-2:] == ["-", "10"]
    assert lines[4].startswith("†")


def test_other_forms() -> None:
    table = sample()
    markdown = table.to_markdown().splitlines()
    assert markdown[1] == "| --- | ---: | ---: | ---: | ---: |"
    assert markdown[2].startswith(r"| b&lt;m>_25\| | 0.6667")
    assert "b<m>_25|" in table.caption
    assert markdown[-1] == table.caption.replace("b<m>_25|", r"b&lt;m>_25\|")
    table.rows["=1+1"] = {**table.rows["good"], "RR": -0.5}
    assert "\n'=1+1,-0.5," in table.to_csv()
    del table.rows["=1+1"]
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert float(rows[0]["RR"]) == pytest.approx(2 / 3)
    assert rows[0]["p50 ms"] == ""
    data = json.loads(table.to_json())
    assert data == json.loads(json.dumps(table.to_dict()))
    assert data["systems"][1]["name"] == "good"
    assert data["comparisons"][0]["significant"] is True
    latex = table.to_latex()
    assert r"b<m>\_25| & 0.6667" in latex
    assert r"1.0000$^{\dagger}$" in latex
    page = table.to_html()
    assert "b&lt;m&gt;_25|" in page
    assert "<m>" not in page


def test_columns_are_checked() -> None:
    table = sample()
    with pytest.raises(ConfigError, match="already"):
        table.add_column("RR", {})
    with pytest.raises(ConfigError, match="no system 'x'"):
        table.add_column("new", {"x": 1})


def test_empty_table() -> None:
    assert str(Table()) == "system\n------"
    assert np.all([form() for form in (Table().to_csv, Table().to_html, Table().to_latex)])
