"""Where every candidate came from: columns, and the parquet file they go to and come back from."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import DataError
from sluice.training import Mining, mine, mine_lists, read_provenance, write_provenance
from sluice.training.negatives import report as module
from sluice.training.negatives.provenance import REASONS, MinedRows
from sluice.training.negatives.report import MinedNegatives


def mined(queries: int = 7, depth: int = 9, seed: int = 0) -> MinedNegatives:
    rng = np.random.default_rng(seed)
    lists: dict[str, dict[str, list[tuple[str, float]]]] = {"bm25": {}, "dense": {}}
    positives = {}
    for query in range(queries):
        for ranked in lists.values():
            names = rng.permutation(20)[:depth]
            scores = np.sort(rng.normal(size=depth))[::-1]
            hits = zip(names.tolist(), scores.tolist(), strict=True)
            ranked[f"q{query}"] = [(f"d{name}", score) for name, score in hits]
        positives[f"q{query}"] = {f"d{rng.integers(20)}": 1, "é": 1}
    given = {"bm25": {f"q{query}": {"é": 0.5} for query in range(queries)}}
    return mine_lists(lists, positives, Mining(3), positive_scores=given)


@pytest.mark.parametrize("rows", [1, 4, 1 << 18])
def test_written_and_read_back(tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", rows)
    made = mined()
    path = tmp_path / "deep" / "negatives.parquet"
    assert write_provenance(path, made) == len(made.rows) > 7 * 18
    found = read_provenance(path)
    assert isinstance(found, MinedRows)
    assert [str(row) for row in found] == [str(row) for row in made.rows]  # NaN is NaN
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["negatives.parquet"]


def test_columns_are_plain_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_provenance(tmp_path / "n.parquet", mined())
    table = parquet.read_table(tmp_path / "n.parquet")
    assert table.column_names == list(module.COLUMNS)
    row = table.to_pylist()[0]
    assert (row["query"], row["source"], row["rank"], row["judge"]) == ("q0", "bm25", 0, None)
    assert row["reason"] in REASONS
    missed = [row for row in table.to_pylist() if row["rank"] < 0]
    assert {(row["document"], row["score"], row["source"]) for row in missed} == {
        ("é", 0.5, "bm25")
    }


def test_rows_agree_with_the_negatives() -> None:
    made = mined(queries=20)
    kept: dict[str, set[str]] = {}
    for row in made.rows:
        if row.reason == "kept":
            kept.setdefault(row.query, set()).add(row.document)
            assert row.score < row.positive_score or math.isnan(row.positive_score)
    assert {query: set(found) for query, found in made.negatives.items() if found} == kept
    table = made.table
    assert len(table) == len(list(table)) == int(table.starts[-1])
    assert str(table[-1]) == str(table[len(table) - 1])
    assert str(table[:2]) == str([table[0], table[1]])
    with pytest.raises(IndexError):
        table[len(table)]


def test_scores_of_a_query_are_the_judges_or_the_lists() -> None:
    hits = {"q": [("a", 3.0), ("p", 2.0), ("b", 1.0)]}
    one = mine(hits, {"q": {"p": 1}}, Mining(1))
    assert one.table.scores_of(0) == {"a": 3.0, "p": 2.0, "b": 1.0}
    two = mine_lists({"x": hits, "y": hits}, {"q": {"p": 1}}, Mining(1))
    assert two.table.scores_of(0) == {}

    class Judge:
        name, needs_texts = "j", False

        def scores(self, pairs: list[tuple[str, str, str, str]]) -> list[float]:
            return [0.5 if document == "p" else 0.1 for _, _, document, _ in pairs]

    settings_ = Mining.in_mode("judge", {"per_query": 1})
    many = mine_lists({"x": hits, "y": hits}, {"q": {"p": 1}}, settings_, judge=Judge())
    assert many.table.scores_of(0) == {"a": 0.1, "p": 0.5, "b": 0.1}


def test_nothing_mined(tmp_path: Path) -> None:
    for made in (mine({}, {}, Mining()), mine({}, {"q": {"p": 1}}, Mining(), provenance=False)):
        assert write_provenance(tmp_path / "n.parquet", made) == 0
        assert list(read_provenance(tmp_path / "n.parquet")) == []


def test_files_that_are_not_ours(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "x.parquet"
    path.write_text("no parquet")
    with pytest.raises(DataError, match="not readable as the provenance"):
        read_provenance(path)
    pa.parquet.write_table(pa.table({"query": ["q"]}), path)
    with pytest.raises(DataError, match="no column 'document'"):
        read_provenance(path)
    write_provenance(path, mined())
    table = pa.parquet.read_table(path)
    pa.parquet.write_table(table.take([*range(len(table)), 0]), path)
    with pytest.raises(DataError, match="are not together"):
        read_provenance(path)
    renamed = table.set_column(7, "reason", pa.array(["odd"] * len(table)))
    pa.parquet.write_table(renamed, path)
    with pytest.raises(DataError, match="reason 'odd'"):
        read_provenance(path)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 10_000))
def test_every_candidate_has_one_verdict(seed: int) -> None:
    made = mined(queries=3, seed=seed)
    verdicts: dict[tuple[str, str], set[str]] = {}
    for row in made.rows:
        verdicts.setdefault((row.query, row.document), set()).add(row.reason)
    assert all(len(found) == 1 for found in verdicts.values())
    listed = [pair for pair in verdicts if any(
        (row.query, row.document) == pair and row.rank >= 0 for row in made.rows
    )]  # fmt: skip
    assert made.report.candidates == len(listed)
    assert made.report.kept + sum(made.report.dropped.values()) == len(listed)
