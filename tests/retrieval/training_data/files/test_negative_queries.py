"""Rows with queries that their positives do not answer, and the losses that they go with."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from small_world import documents, write_beir
from training_files import BGE, TEVATRON, lines, read

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.config.sections import TrainConfig, checked
from sluice.retrieval.datasets.dataset import Dataset, load_dataset
from sluice.retrieval.experiments.training.checks import check_training
from sluice.retrieval.training_data.files.formats import rows_of

MISFITS = ["m one", "m two", "m three"]
DESCRIBED = {"sentence": "the text", "good": ["a fit", "another"], "bad": ["m one", "m two"]}


@pytest.mark.parametrize(
    "row",
    [
        BGE,
        {"anchor": "q", "positive": "yes"},
        {"Frage": "q", "Antwort": "yes", "nr": 7},  # columns of other names
        TEVATRON,
        {"query": "q", "document": "yes", "grade": 1},
    ],
)
def test_any_format_may_have_them(row: dict[str, Any], tmp_path: Path, dataset: Dataset) -> None:
    file = lines(tmp_path / "a.jsonl", [{**row, "negative_queries": MISFITS}, row])
    first, *rest = read(file, dataset)
    assert first.negative_queries == tuple(MISFITS)
    assert all(example.negative_queries == () for example in rest)
    one = lines(tmp_path / "b.jsonl", [{**row, "negative_queries": "m one"}])
    assert read(one, dataset)[0].negative_queries == ("m one",)


def test_a_csv_has_one_in_its_column(tmp_path: Path, dataset: Dataset) -> None:
    file = tmp_path / "a.csv"
    file.write_text("query,positive,negative_queries\nq,yes,wrong\nr,no,\n")
    assert [e.negative_queries for e in read(file, dataset)] == [("wrong",), ()]


def test_graded_rows_of_a_query_share_theirs(tmp_path: Path, dataset: Dataset) -> None:
    rows = [
        {"query": "q", "document": "a b", "grade": 1, "negative_queries": ["x", "y"]},
        {"query": "q", "document": "c d", "grade": 2, "negative_queries": ["y", "z"]},
    ]
    (made,) = read(lines(tmp_path / "a.jsonl", rows), dataset)
    assert made.negative_queries == ("x", "y", "z")


def test_files_of_descriptions(tmp_path: Path, dataset: Dataset) -> None:
    """One example for each good description of a sentence, with all the bad ones."""
    file = lines(tmp_path / "a.jsonl", [DESCRIBED, {**DESCRIBED, "sentence": "two", "bad": []}])
    assert rows_of(file)[0] == "descriptions"
    made = read(file, dataset)
    assert [e.query.text for e in made] == ["a fit", "another"] * 2
    assert [e.documents[0].text for e in made] == ["the text", "the text", "two", "two"]
    assert [e.negative_queries for e in made] == [("m one", "m two")] * 2 + [()] * 2
    named = lines(tmp_path / "b.jsonl", [{**DESCRIBED, "_id": "d00"}])
    assert read(named, dataset)[0].relevant == {"d00"}
    for wrong, fault in (
        ({"good": []}, "b.jsonl:1: no good description"),
        ({"bad": [3]}, r"bad\[0\] is 3, expected a text"),
        ({"sentence": " "}, "the sentence is empty"),
    ):
        with pytest.raises(DataError, match=fault):
            read(lines(tmp_path / "b.jsonl", [{**DESCRIBED, **wrong}]), dataset)


def test_those_that_the_positive_answers_are_left_out(
    tmp_path: Path, dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    """The row's own query, another row's of the same document, the dataset's, and repetitions."""
    text = {d.id: d.full_text for d in documents(40)}
    rows = [
        {**BGE, "negative_queries": ["Q ", "fits too", "wrong", "Wrong"]},
        {"query": "fits  too", "pos": ["YES"], "negative_queries": ["q", "bad"]},
        {"query": "x", "pos": [text["d00"]], "pos_ids": ["d00"],
         "negative_queries": ["What is gold", "worse"]},
    ]  # fmt: skip
    with caplog.at_level(logging.WARNING, "sluice"):
        made = read(lines(tmp_path / "a.jsonl", rows), dataset)
    assert [e.negative_queries for e in made] == [("wrong",), ("bad",), ("worse",)]
    assert "left out 4 negative_queries that a positive answers" in caplog.text


def test_tested_queries_are_never_learnt_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = load_dataset(str(write_beir(tmp_path / "data")), None)
    tested = next(iter(data.with_split("test").queries.values()))
    row = {**BGE, "negative_queries": [tested.upper(), "wrong"]}
    with caplog.at_level(logging.WARNING, "sluice"):
        (made,) = read(lines(tmp_path / "a.jsonl", [row]), data)
    assert made.negative_queries == ("wrong",)
    assert "left out 1 negative_queries that are dev or test queries" in caplog.text


def test_a_limit_draws_some_and_zero_none(tmp_path: Path, dataset: Dataset) -> None:
    rows = [{**BGE, "query": f"q{n}", "negative_queries": MISFITS} for n in range(12)]
    file = lines(tmp_path / "a.jsonl", rows)
    one, again = (read(file, dataset, negative_queries=1) for _ in range(2))
    assert one == again
    assert {e.negative_queries for e in one} == {(text,) for text in MISFITS}
    assert all(e.negative_queries == () for e in read(file, dataset, negative_queries=0))
    assert read(file, dataset, negative_queries=5)[0].negative_queries == tuple(MISFITS)
    plain = lines(tmp_path / "b.jsonl", [BGE])
    with pytest.raises(ConfigError, match=r"negative_queries: 2 does nothing: no row of .*b.jsonl"):
        read(plain, dataset, negative_queries=2)


@pytest.mark.parametrize("wrong", [[""], [3], {"a": 1}, 5, ["a", None]])
def test_what_is_no_text_is_refused(wrong: Any, tmp_path: Path, dataset: Dataset) -> None:
    file = lines(tmp_path / "a.jsonl", [BGE, {**BGE, "negative_queries": wrong}])
    with pytest.raises(DataError, match=r"a.jsonl:2: negative_queries"):
        read(file, dataset)


def test_the_section_is_checked_before_any_work(tmp_path: Path) -> None:
    file = str(lines(tmp_path / "some.jsonl", [BGE, {**BGE, "negative_queries": MISFITS}]))
    first = str(lines(tmp_path / "first.jsonl", [{**BGE, "negative_queries": MISFITS}]))

    def check(loss: Any = "misfits", **changes: Any) -> None:
        plain = {"output": "x", "dataset": "d", "encoder": {"type": "dense", "model": "m"}}
        check_training(checked({**plain, "loss": loss, **changes}, TrainConfig), "")

    check(examples={"file": file})
    check("info_nce", examples={"file": first, "negative_queries": 0})
    check({"type": "sum", "losses": [{"type": "misfits"}, {"type": "star"}]}, examples=file)
    for changes, fault in (
        (
            {"loss": "info_nce", "examples": first},
            r"info_nce reads no negative_queries, which .*:1",
        ),
        (
            {"examples": file, "encoder": {"type": "tokens", "model": "m"}},
            "misfits trains dense, splade",
        ),
    ):
        with pytest.raises(ConfigError, match=fault):
            check(**changes)  # type: ignore[arg-type]
