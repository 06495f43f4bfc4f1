"""A table on a terminal: never wider than it, measures before costs, nothing lost in silence."""

import pytest

from sluice.retrieval.cli.terminal.printing import fitted
from sluice.retrieval.evaluation.table import Table, add_costs


def results(systems: int = 3, measures: tuple[str, ...] = ("nDCG@10", "AP", "R@100")) -> Table:
    table = Table(columns=dict.fromkeys(measures, ".4f"))
    names = [f"system-{number}" for number in range(systems)]
    table.rows = {name: dict.fromkeys(measures, 0.5) for name in names}
    cost = {
        "latency_ms": {"p50": 1.0, "p95": 2.0, "p99": 3.0}, "queries_per_second": 1e4,
        "index_bytes": 1e9, "bytes_per_document": 9e3, "documents_per_second": 1e5,
        "peak_memory_bytes": 4e9,
    }  # fmt: skip
    add_costs(table, dict.fromkeys(names, cost))
    table.marks["system-1", "R@100"] = "†"
    table.caption = "† differs from system-0: " + "a caption that is long " * 5
    return table


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    table = results()
    text, left_out = fitted(table, width)
    assert max(map(len, text.splitlines())) <= width
    for column in table.columns:
        assert (column in left_out) != (f" {column}" in text), column
    assert "nDCG@10" in text
    assert "AP" in text


def test_costs_go_before_measures_and_some_of_both_stay() -> None:
    assert fitted(results(), 200)[1] == []
    assert fitted(results(), 80)[1] == ["bytes/doc", "indexed docs/s", "peak MB"]
    text, left_out = fitted(results(), 50)
    assert "R@100" in left_out
    assert text.splitlines()[0].split() == ["system", "nDCG@10", "AP", "p95", "ms", "index", "MB"]


def test_a_table_of_datasets_goes_on_below() -> None:
    names = [f"dataset-{number}" for number in range(12)]
    table = Table(columns=dict.fromkeys(names, ".4f"))
    table.rows = {name: dict.fromkeys(names, 0.25) for name in ("bm25", "dense")}
    text, left_out = fitted(table, 60)
    assert left_out == []
    assert max(map(len, text.splitlines())) <= 60
    assert all(name in text for name in names)
    assert text.count("bm25") == text.count("\n\n") + 1 == 3


def test_a_name_wider_than_the_terminal_is_not_cut() -> None:
    table = Table(columns={"AP": ".4f", "RR": ".4f"}, rows={"x" * 70: {"AP": 0.5, "RR": 0.5}})
    assert fitted(table, 40)[0].count("x" * 70) == 2
