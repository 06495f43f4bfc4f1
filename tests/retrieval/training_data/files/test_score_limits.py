"""Stored negatives under thresholds that are chosen when the file is read."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from training_files import lines, read

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.datasets.source import MemorySource
from sluice.retrieval.documents.document import Document
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.training_data.mining import mine_negatives, write_mined

NOTHING = Dataset(MemorySource("none", (), {}), None)
ROW: dict[str, Any] = {
    "query": "q", "pos": ["yes", "sure"], "neg": ["a", "b", "c", "d"],
    "pos_scores": [10.0, 20.0], "neg_scores": [19.0, 9.6, 9.4, -3.0],
}  # fmt: skip


def kept(path: Path, **options: Any) -> list[str]:
    (example,) = read(path, NOTHING, positives="together", **options)
    return [d.text for d, x in zip(example.documents, example.labels, strict=True) if x <= 0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "abcd"),
        ({"max_positive_ratio": 0.95}, "cd"),  # below 9.5
        ({"max_positive_ratio": 0.95, "positive_score": "highest"}, "bcd"),  # 19.0 is not below 19
        ({"max_positive_ratio": 0.95, "positive_score": "mean"}, "bcd"),
        ({"margin": 0.5}, "cd"),
        ({"margin": 0.4}, "cd"),  # 9.6 is not below 9.6
        ({"margin": 0.39}, "bcd"),
        ({"margin": 0.39, "max_positive_ratio": 0.5}, "d"),
        ({"max_positive_ratio": 0.95, "per_query": 1}, "c"),
        ({"max_positive_ratio": 100.0}, "abcd"),
    ],
)
def test_thresholds(options: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert kept(lines(tmp_path / "a.jsonl", [ROW]), **options) == list(expected)


def test_a_negative_positive_has_its_limit_below_it(tmp_path: Path) -> None:
    row = {**ROW, "pos_scores": [-10.0, -10.0], "neg_scores": [-10.0, -10.4, -10.6, -20.0]}
    assert kept(lines(tmp_path / "a.jsonl", [row]), max_positive_ratio=0.95) == ["c", "d"]


def test_each_example_of_a_row_has_the_rows_limit(tmp_path: Path) -> None:
    found = read(lines(tmp_path / "a.jsonl", [ROW]), NOTHING, max_positive_ratio=0.95)
    assert [[d.text for d in one.documents] for one in found] == [
        ["yes", "c", "d"], ["sure", "c", "d"]
    ]  # fmt: skip


def test_the_limits_need_no_teacher(tmp_path: Path) -> None:
    (example,) = read(lines(tmp_path / "a.jsonl", [ROW]), NOTHING, positives="together",
                      scores=False, max_positive_ratio=0.95)  # fmt: skip
    assert example.scores == ()
    assert len(example.documents) == 4


def test_rows_without_scores_keep_theirs_and_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bare = {"query": "other", "pos": ["x"], "neg": ["y"]}
    path = lines(tmp_path / "a.jsonl", [ROW, bare])
    with caplog.at_level(logging.INFO, "sluice"):
        found = read(path, NOTHING, positives="together", max_positive_ratio=0.95)
    assert len(found[1].documents) == 2
    assert "kept all negatives of 1 of 2 rows, whose scores are incomplete" in caplog.text
    assert "2 negatives are too near their positives" in caplog.text
    with pytest.raises(DataError, match="no row has scores of its positive and its negatives"):
        read(lines(tmp_path / "b.jsonl", [bare]), NOTHING, max_positive_ratio=0.95)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_positive_ratio": 0}, "max_positive_ratio: 0, expected above 0"),
        ({"margin": float("inf")}, "margin: inf, expected a finite number"),
        ({"positive_score": "mean"}, "is for max_positive_ratio and margin, of which there is no"),
    ],
)
def test_bad_limits(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read(lines(tmp_path / "a.jsonl", [ROW]), NOTHING, **options)


TEXTS = [
    "gold gold gold", "gold in the river", "the gold of a king", "silver and gold and lead",
    "a river of gold and of silver", "stone", "the river runs deep",
]  # fmt: skip


@pytest.mark.parametrize("ratio", [0.5, 0.8, 0.95])
def test_a_threshold_on_stored_candidates_is_that_of_mining(ratio: float, tmp_path: Path) -> None:
    """One file of all candidates, read under a threshold, has the negatives mined under it."""
    corpus = [Document(f"d{place}", "", text) for place, text in enumerate(TEXTS)]
    queries = {"q1": "gold", "q2": "river", "q3": "silver gold"}
    data = Dataset.from_memory(
        corpus, queries, {"q1": {"d0": 1}, "q2": {"d6": 1}, "q3": {"d3": 1}}, split="train"
    )
    retriever = Retriever.build(BM25Encoder(), corpus, name="bm25")
    stored = tmp_path / "all.jsonl"
    spec = {"type": "mined", "retriever": "bm25", "per_query": 10}
    write_mined(stored, data, mine_negatives(retriever, data, {**spec, "mode": "naive"}, seed=1))
    assert all("neg_scores" in json.loads(line) for line in stored.read_text().splitlines())
    mined = mine_negatives(retriever, data, {**spec, "max_positive_ratio": ratio}, seed=1)
    found = {e.query.id: tuple(d.id for d in e.documents[1:])
             for e in read(stored, data, max_positive_ratio=ratio)}  # fmt: skip
    assert found == mined.negatives
    assert len({len(own) for own in found.values()}) > 1  # the threshold is felt
