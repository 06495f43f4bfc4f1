"""Where the queries come from that negatives answer: judgements, examples, files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import tiny
from training_files import lines, read

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.config.sections import TrainConfig, checked
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.datasets.source import MemorySource
from sluice.retrieval.experiments.training.checks import check_training
from sluice.retrieval.training_data.examples import with_answered
from sluice.training import fit
from sluice.training.losses.own.negatives import CLP
from sluice.training.protocol import Example, Text

NOTHING = Dataset(MemorySource("none", (), {}), None)


def example(query: str, *documents: str, **changes: Any) -> Example:
    named = tuple(Text(name, f"text of {name}") for name in documents)
    return Example(Text(query, f"about {query}"), named, **changes)


def answered(examples: list[Example], dataset: Dataset = NOTHING, *files: Path) -> list[Any]:
    made = with_answered(examples, dataset, [str(file) for file in files], 13, "answered")
    return [one.answered for one in made]


def test_another_examples_positive_answers_its_query() -> None:
    found = answered([example("q1", "a", "b", "c"), example("q2", "b", "a"), example("q3", "b")])
    assert found == [("", "about q2", ""), ("", "about q1"), ()]


def test_never_the_query_itself() -> None:
    """Neither under its id nor under another with the same text."""
    twin = Example(Text("q9", "About  Q1"), (Text("b", "text of b"),))
    assert answered([example("q1", "a", "b"), twin]) == [(), ()]
    both = answered([example("q1", "a", "b"), twin, example("q2", "b")])
    assert both[0] == ("", "about q2")


def test_by_text_where_ids_differ() -> None:
    copy = Example(Text("q2", "about q2"), (Text("other id", "Text of  b"),))
    assert answered([example("q1", "a", "b"), copy])[0] == ("", "about q2")


def test_by_judgements_of_documents_that_no_example_has() -> None:
    data = Dataset.from_memory(
        (), {"q1": "about q1", "q7": "seven"}, {"q7": {"b": 1, "c": 0}}, split="train"
    )
    assert answered([example("q1", "a", "b", "c")], data) == [("", "seven", "")]


def test_by_files_of_generated_queries(tmp_path: Path) -> None:
    rows = [
        {"query": "made for b", "pos": ["text of b"], "pos_ids": ["b"]},
        {"query": "made for c", "pos": ["text of c"]},
    ]
    file = lines(tmp_path / "generated.jsonl", rows)
    assert answered([example("q1", "a", "b", "c")], NOTHING, file) == [
        ("", "made for b", "made for c")
    ]


def test_what_a_row_says_itself_comes_first(tmp_path: Path) -> None:
    row = {"query": "q", "pos": ["yes"], "neg": ["no", "never"], "neg_queries": ["is it no", ""]}
    made = read(lines(tmp_path / "a.jsonl", [row]), NOTHING)
    assert made[0].answered == ("", "is it no", "")
    other = Example(Text("z", "another"), (Text("d", "no"),))
    assert answered([*made, other])[0] == ("", "is it no", "")
    plain = read(lines(tmp_path / "b.jsonl", [{**row, "neg_queries": None}]), NOTHING)
    assert plain[0].answered == ()
    short = lines(tmp_path / "c.jsonl", [{**row, "neg_queries": ["one"]}])
    with pytest.raises(DataError, match="1 neg_queries for 2 negatives; expected one for each"):
        read(short, NOTHING)


def test_negatives_of_a_row_keep_their_queries_when_some_are_chosen(tmp_path: Path) -> None:
    row = {"query": "q", "pos": ["yes"], "neg": ["no", "never"], "neg_queries": ["", "when"]}
    file = lines(tmp_path / "a.jsonl", [row])
    (first,) = read(file, NOTHING, per_query=1)
    assert first.answered == ()
    (last,) = read(lines(tmp_path / "b.jsonl", [{**row, "neg_queries": ["when", ""]}]), NOTHING,
                   per_query=1)  # fmt: skip
    assert last.answered == ("", "when")


JOB = {"trainer": {"max_steps": 1, "per_device_train_batch_size": 2}}


def test_a_penalty_of_nothing_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    examples = [example("q1", "a", "b"), example("q2", "c", "d")]
    with caplog.at_level(logging.INFO, "sluice"):
        fit(tiny.Dense(), examples, CLP(), output=tmp_path / "none", **JOB)  # type: ignore[arg-type]
    assert (
        "none of 2 negatives is known to answer one, so its penalty changes nothing" in caplog.text
    )
    caplog.clear()
    some = [example("q1", "a", "b", answered=("", "what is b")), *examples[1:]]
    with caplog.at_level(logging.INFO, "sluice"):
        report = fit(tiny.Dense(), some, CLP(), output=tmp_path / "some",
                     trainer={**JOB["trainer"], "logging_steps": 1})  # fmt: skip
    assert "1 of 2 negatives answer another query" in caplog.text
    assert report.history[0]["clp_answered"] == 1
    caplog.clear()
    with caplog.at_level(logging.INFO, "sluice"):
        fit(tiny.Dense(), examples, CLP(penalty=0.0), output=tmp_path / "off", **JOB)  # type: ignore[arg-type]
    assert "clp" not in caplog.text


def config(**changes: Any) -> TrainConfig:
    plain = {
        "output": "x", "dataset": "d", "encoder": {"type": "dense", "model": "m"}, "loss": "clp",
    }  # fmt: skip
    return checked({**plain, **changes}, TrainConfig)


def test_the_section_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"answered.file: no file .*nowhere.jsonl"):
        check_training(config(answered=str(tmp_path / "nowhere.jsonl")), "")
    file = lines(tmp_path / "generated.jsonl", [{"query": "q", "pos": ["d"]}])
    check_training(config(answered=str(file)), "")
    check_training(config(answered=[str(file)]), "")
    with pytest.raises(ConfigError, match="answered: info_nce looks at no queries that negatives"):
        check_training(config(answered=str(file), loss="info_nce"), "")
    off = {"type": "clp", "penalty": 0.0}
    with pytest.raises(ConfigError, match="answered: clp looks at no queries that negatives answ"):
        check_training(config(answered=str(file), loss=off), "")
