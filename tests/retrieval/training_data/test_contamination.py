"""Tested queries in training texts: n-grams, whole queries, relevant documents."""

from __future__ import annotations

import json
import logging
import random
import re
from pathlib import Path

import pytest
from command_line import Call
from small_world import write_beir

from sluice.retrieval.datasets.dataset import Dataset, load_dataset
from sluice.retrieval.documents.document import Document
from sluice.retrieval.training_data.contamination import (
    Contamination,
    QueryNgrams,
    contamination_of,
    warn_of,
    words_of,
)
from sluice.training import Example, Text

LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
EIGHT = "alpha beta gamma delta epsilon zeta eta theta"


def plainly(query: str, text: str) -> bool:
    """Say by every n-gram whether a query is in a text, as the rule is written."""
    asked, said = re.findall(r"\w+", query.lower()), re.findall(r"\w+", text.lower())
    length = min(len(asked), 13)
    if length < 8:
        return False
    grams = [asked[i : i + length] for i in range(len(asked) - length + 1)]
    return any(said[i : i + length] in grams for i in range(len(said) - length + 1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LONG, {"long"}),
        (f"x {LONG.upper()}, y", {"long"}),
        (LONG.replace(" ", " - "), {"long"}),
        (
            "so two three four five six seven eight nine ten eleven twelve thirteen fourteen",
            {"long"},
        ),
        (" ".join(LONG.split()[:12]), set()),  # twelve of fourteen words
        (f"before {EIGHT} after", {"eight"}),
        (" ".join(EIGHT.split()[:7]), set()),
        ("a short query and more", set()),
        (f"{EIGHT} {LONG}", {"eight", "long"}),
        ("", set()),
    ],
)
def test_queries_in_a_text(text: str, expected: set[str]) -> None:
    known = QueryNgrams({"long": LONG, "eight": EIGHT, "short": "a short query", "blank": " "})
    assert known.found_in(text) == expected


def test_a_short_query_is_only_the_same_as_a_text() -> None:
    known = QueryNgrams({"short": "A short query?", "again": "a short  QUERY"})
    assert known.same_as("a short query") == ["short", "again"]
    assert known.same_as("a short query indeed") == []
    assert known.same_as("") == []


def test_the_index_finds_what_comparing_all_finds() -> None:
    chance = random.Random(3)
    words = ["a", "b"]

    def text(least: int, most: int) -> str:
        return " ".join(chance.choices(words, k=chance.randint(least, most)))

    queries = {f"q{n}": text(6, 16) for n in range(60)}
    known = QueryNgrams(queries)
    found = 0
    for _ in range(60):
        one = text(5, 400)
        expected = {name for name, query in queries.items() if plainly(query, one)}
        assert known.found_in(one) == expected
        found += len(expected)
    assert found > 10


def test_words_are_compared_without_case_and_marks() -> None:
    assert words_of("Don't  PANIC-now, ﬁnally") == ("don", "t", "panic", "now", "finally")


def example(number: int, query: str, positive: str, negative: str = "nothing here") -> Example:
    documents = (Text(f"p{number}", positive), Text(f"n{number}", negative))
    return Example(Text(f"q{number}", query), documents)


def evaluated(name: str = "t") -> Dataset:
    documents = [Document("d1", "Gold", "is found in rivers"), Document("d2", "", "unrelated")]
    queries = {"1": LONG, "2": EIGHT, "3": "where is gold"}
    qrels = {"1": {"d1": 1, "d2": 0}, "2": {"d2": 1}, "3": {"gone": 1}}
    return Dataset.from_memory(documents, queries, qrels, name=name)


def test_a_report_counts_queries_and_documents(caplog: pytest.LogCaptureFixture) -> None:
    examples = [
        example(1, "Where is GOLD?", f"a text with {EIGHT}"),
        example(2, "another", "gold is found  in RIVERS", negative=LONG),
        example(3, "another", "gold is found  in RIVERS"),
    ]
    with caplog.at_level(logging.WARNING, "sluice"):
        report = contamination_of(examples, [evaluated()])
        warn_of(report, "train.x.examples")
    assert report == Contamination(
        queries=3, in_queries=1, in_documents=1, documents=3, trained=1,
        examples=(("3", "where is gold", "Where is GOLD?"),),
    )  # fmt: skip
    assert (
        "train.x.examples: training queries hold 1 of 3 tested queries: 3 ('where is gold') is in "
        "'Where is GOLD?'" in caplog.text
    )
    assert report.as_dict()["examples"] == [["3", "where is gold", "Where is GOLD?"]]


def test_queries_in_documents_alone_are_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sluice"):
        report = contamination_of(
            [example(1, "x", f"{LONG} indeed")], [evaluated("a"), evaluated("b")]
        )
    warn_of(report, "x")
    assert (report.queries, report.in_queries, report.in_documents) == (6, 0, 2)
    assert report.examples[0].in_text == f"{LONG} indeed"
    assert caplog.text == ""


def test_nothing_tested_is_nothing_found() -> None:
    assert contamination_of([example(1, LONG, EIGHT)], []) == Contamination()
    assert contamination_of([], [evaluated()]).in_queries == 0


def test_the_command_line_tells_the_same(tmp_path: Path, sluice: Call) -> None:
    data = write_beir(tmp_path / "world")
    queries = [json.loads(x) for x in (data / "queries.jsonl").read_text().splitlines()]
    asked = next(each["text"] for each in queries if each["_id"] == "q20")  # of the test
    rows = [{"query": asked.upper(), "positive": "a text"}, {"query": "x", "positive": "y"}]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, err = sluice("data", "contamination", pairs, data)
    assert code == 1, err
    assert out.splitlines()[:3] == [
        "      8  tested queries", "      1  of them in training queries",
        "      0  of them in positive documents",
    ]  # fmt: skip
    assert out.splitlines()[5:] == [f"q20: {asked}", f"  in: {asked.upper()}"]
    code, out, _ = sluice("data", "contamination", data, data, "--json")
    assert code == 0
    report = json.loads(out)
    train, test = (load_dataset(data, split) for split in ("train", "test"))
    relevant, positives = (
        {doc for grades in each.qrels.values() for doc, grade in grades.items() if grade > 0}
        for each in (test, train)
    )
    assert (report["in_queries"], report["documents"]) == (0, len(relevant))
    assert report["trained"] == len(relevant & positives) > 0
