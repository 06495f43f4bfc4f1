"""Examples of type clicks: weights, labels, what is left out, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click_logs import Truth, write_log
from command_line import Call
from small_training import refused, short_training
from small_world import documents

from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.datasets.source import MemorySource
from sluice.retrieval.training_data.clicks.examples import graded
from sluice.retrieval.training_data.example_sources import file_examples

HALF = [1.0, 0.5]


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    queries = {"q1": "what is gold", "q2": "where is water", "q3": "a number", "q9": "tested"}
    splits = {
        "train": (queries, {"q1": {"d10": 1}, "q2": {"d03": 1}}),
        "test": ({"q9": "tested"}, {"q9": {"d05": 1}}),
    }
    return Dataset(MemorySource("world", documents(40), splits), "train")


def shown(query: str, document: str, position: int, clicks: int, impressions: int) -> Any:
    return {
        "query_id": query, "doc_id": document, "position": position, "clicks": clicks,
        "impressions": impressions,
    }  # fmt: skip


ROWS = [
    shown("q1", "d00", 1, 6, 10),
    shown("q1", "d01", 2, 3, 10),
    shown("q1", "d02", 2, 0, 30),
    shown("q1", "d04", 1, 0, 40),
    shown("q1", "d10", 2, 0, 9),  # judged relevant: no negative
    shown("q2", "d07", 2, 1, 5),
    shown("q3", "d08", 1, 0, 5),  # without a click
    shown("q9", "d05", 1, 5, 5),  # a test query
]


def made(path: Path, dataset: Dataset, rows: Any = ROWS, **spec: Any) -> list[Any]:
    write_log(path / "log.jsonl", rows)
    spec = {"propensities": HALF, **spec}
    return file_examples({"type": "clicks", "file": str(path / "log.jsonl"), **spec}, dataset, 1)


def test_each_clicked_document_weighs_its_clicks_by_inverse_propensity(
    tmp_path: Path, dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    examples = made(tmp_path, dataset)
    seen = [
        (e.query, [d.id for d in e.documents], e.labels, e.relevant, e.weight) for e in examples
    ]
    mean = (6 + 3 / 0.5 + 1 / 0.5) / 3
    known = frozenset({"d00", "d01", "d10"})
    assert seen == [
        # d04 was looked at 40 times, d02 30 * 0.5 times
        (("q1", "what is gold"), ["d00", "d04", "d02"], (1, 0, 0), known, 6 / mean),
        (("q1", "what is gold"), ["d01", "d04", "d02"], (1, 0, 0), known, 6 / mean),
        (("q2", "where is water"), ["d07"], (1,), frozenset({"d07", "d03"}), 2 / mean),
    ]
    assert "left out 1 of 4 rows of the training file: their query is in the dev or" in caplog.text
    assert "left out 1 of 3 queries: without a click that counts" in caplog.text


def test_together_labels_are_relevance_drawn_to_the_mean(tmp_path: Path, dataset: Dataset) -> None:
    examples = made(tmp_path, dataset, positives="together", smoothing=2.0, per_query=1)
    clicks = 6 + 3 + 1 + 5
    looked = 10 + 10 / 2 + 30 / 2 + 40 + 9 / 2 + 5 / 2 + 5 + 5
    mean = clicks / looked
    expected = [(6 + 2 * mean) / 12, (3 + 2 * mean) / 7, 0.0]
    assert [d.id for d in examples[0].documents] == ["d00", "d01", "d04"]
    assert examples[0].labels == pytest.approx(expected)
    assert examples[0].weight == examples[1].weight == 1.0
    grades = made(tmp_path, dataset, positives="together", smoothing=0, grades=2)
    assert grades[0].labels == (2.0, 2.0, 0.0, 0.0)  # .6 and .6
    assert grades[1].labels == (2.0,)


@pytest.mark.parametrize("grades", [1, 2, 4])
def test_a_grade_has_the_gain_nearest_to_the_relevance(grades: int) -> None:
    """By trying every grade; the best of each query has the highest, nothing has 0."""
    relevance = np.concatenate([np.linspace(0, 0.8, 41), np.linspace(0, 0.03, 23), [0.0]])
    groups = ["a"] * 41 + ["b"] * 23 + ["c"]
    tops, most = {"a": 0.8, "b": 0.03, "c": 1.0}, 2**grades - 1
    expected = []
    for value, group in zip(relevance, groups, strict=True):
        gain = value / tops[group] * most
        far = [abs(math.log(1 + gain) - math.log(2**grade)) for grade in range(grades + 1)]
        expected.append(far.index(min(far)))
    found = graded(relevance, groups, grades)
    assert found.tolist() == expected
    assert (found[40], found[63], found[0], found[64]) == (grades, grades, 0, 0)


def test_clipped_propensities_and_queries_by_text(tmp_path: Path, dataset: Dataset) -> None:
    rows = [{**row, "query": f"asked {row['query_id']}", "query_id": None} for row in ROWS]
    examples = made(tmp_path, dataset, rows, propensities=[1.0, 0.01], clip=0.25)
    # With queries by their texts q9 is no test query of the dataset's.
    weights = [6, 3 / 0.25, 1 / 0.25, 5]
    expected = [weight / (sum(weights) / 4) for weight in [*sorted(weights[:2])[::-1], 4, 5]]
    assert [example.weight for example in examples] == pytest.approx(expected)
    assert {example.query.text for example in examples} == {"asked q1", "asked q2", "asked q9"}
    usual = made(tmp_path, dataset, rows, propensities=[1.0, 0.01])
    assert usual[0].weight / usual[1].weight == pytest.approx((3 / 0.05) / 6)


def test_unknown_documents_and_queries(
    tmp_path: Path, dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [*ROWS, shown("q2", "gone", 1, 2, 2)]
    with pytest.raises(DataError, match=r"log.jsonl:9: document 'gone' is not in world, nor are 0"):
        made(tmp_path, dataset, rows)
    with pytest.raises(DataError, match=r"log.jsonl:9: query 'q77' is not in world"):
        made(tmp_path, dataset, [*ROWS, shown("q77", "d00", 1, 2, 2)])
    skipped = made(tmp_path, dataset, rows, unknown="skip")
    assert [e.documents[0].id for e in skipped] == ["d00", "d01", "d07"]
    assert "left out what world lacks: 0 queries and 1 document" in caplog.text
    with pytest.raises(DataError, match=r":1: document 'x' .* belongs to another collection"):
        made(tmp_path, dataset, [shown("q1", "x", 1, 1, 1)], unknown="skip")


def test_a_log_whose_only_clicks_are_of_tested_queries(tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(DataError, match=r"of 1 query outside dev and test none has a click"):
        made(tmp_path, dataset, [ROWS[-1], ROWS[-2]])


HEAD = "session\tquery_id\tdoc_id\tposition\tclicked\n"
BAD = [
    ("", "log.tsv: empty; expected rows such as"),
    (HEAD, "log.tsv: empty; expected rows such as"),
    ("1\tq1\td00\t1\t0\n", ":1: none of 'position', 'rank' is in the first line"),
    (HEAD + "1\tq1\td00\t0\t0\n", ":2: position is 0; positions count from 1"),
    (HEAD + "1\tq1\td00\t1.5\t0\n", ":2: position is '1.5', expected a whole number"),
    (HEAD + f"1\tq1\td00\t{10**20}\t0\n", ":2: position is '1000.*a whole number, at most"),
    (HEAD + "1\tq1\td00\ttop\t0\n", ":2: position is 'top', expected a finite number"),
    (HEAD + "1\tq1\td00\t1\t2\n", ":2: 2 clicks of 1 impressions; .* its clicks are 0 or 1"),
    (HEAD + "1\tq1\td00\t1\t-1\n", ":2: clicks is -1 of 1 impressions"),
    (HEAD + "1\tq1\td00\t1\t0\n", "not one click in 1 rows"),
    (HEAD + "1\tq1\t\t1\t0\n", ":2: doc_id"),
    (HEAD + "1\tq1\td00\t1\n", ":2: 4 fields, but 5 in the first line"),
    (HEAD.replace("clicked", "seen") + "1\tq1\td00\t1\t0\n", ":2: no clicks: fields are session"),
]
PAGES = [
    ("1\tq1\td00\t2\t0\n1\tq1\td01\t1\t1\n", ":3: position 1 after 2 in session '1'"),
    ("1\tq1\td00\t1\t0\n1\tq2\td01\t2\t1\n", ":3: session '1' asks another query"),
    ("1\tq1\td00\t1\t0\n2\tq1\td01\t2\t1\n1\tq1\td01\t3\t1\n", ":4: session '1' continues here"),
]


def test_a_boolean_is_no_position(tmp_path: Path, dataset: Dataset) -> None:
    rows = [{**ROWS[0], "position": True}]
    with pytest.raises(DataError, match=r"log.*:1: position is True, expected a whole number"):
        made(tmp_path, dataset, rows)


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_logs_are_refused_with_file_and_line(
    text: str, message: str, tmp_path: Path, dataset: Dataset
) -> None:
    path = tmp_path / "log.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        file_examples({"type": "clicks", "file": str(path)}, dataset, 1)


@pytest.mark.parametrize(("text", "message"), PAGES)
def test_bad_pages_are_refused(text: str, message: str, tmp_path: Path, dataset: Dataset) -> None:
    path = tmp_path / "log.tsv"
    path.write_text(HEAD + text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        file_examples({"type": "clicks", "file": str(path), "model": "dbn"}, dataset, 1)
    counted = write_log(tmp_path / "counted.jsonl", ROWS)
    with pytest.raises(DataError, match=r"counted.jsonl:1: no session: this click model follows"):
        file_examples({"type": "clicks", "file": str(counted), "model": "cascade"}, dataset, 1)


def test_a_log_of_ids_needs_its_dataset(tmp_path: Path, bert: Path, sluice: Call) -> None:
    path = write_log(tmp_path / "log.jsonl", ROWS)
    config = short_training(tmp_path, bert, examples={"type": "clicks", "file": str(path)})
    several = {**config, "datasets": [config["dataset"]]}
    refused(several, "examples: a file does not say which of the datasets its rows are of")
    del config["dataset"]
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(config))
    code, _, err = sluice("train", tmp_path / "train.yaml")
    assert code == 2
    assert "dataset: missing: " in err
    assert "log.jsonl:1 has ids whose texts are a corpus's" in err


def test_propensities_of_one_log_train_on_another(tmp_path: Path, bert: Path, sluice: Call) -> None:
    """From the command line: propensities of a log are printed, written, and trained with."""
    random = write_log(tmp_path / "random.tsv", Truth().rows("pbm", pages=60))
    out = tmp_path / "propensities.json"
    code, text, err = sluice("teach", "clicks", random, "--output", out)
    assert code == 0, err
    assert "position 1" in text
    assert "1,440 rows, 6 queries, 4 documents" in text
    written = read_json(out)
    assert written["positions"] == [1, 2, 3, 4]
    code, as_json, _ = sluice("teach", "clicks", random, "--format", "json")
    printed = [row["looked at"] for row in json.loads(as_json)["systems"]]
    assert printed == written["examination"]
    log = write_log(tmp_path / "log.jsonl", [row for row in ROWS if row["query_id"] != "q9"])
    examples = {
        "type": "clicks", "file": str(log), "propensities": str(out), "positives": "together",
    }  # fmt: skip
    config = short_training(tmp_path, bert, examples=examples, loss={"type": "bixse"})
    config["trainer"] = {**config["trainer"], "max_steps": 2}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(config))
    code, _, err = sluice("train", tmp_path / "train.yaml")
    assert code == 0, err
    assert read_json(tmp_path / "out" / "model" / "manifest.json")["examples"] == 2
    out.write_text(json.dumps({"positions": [2, 3], "examination": [1.0, 0.5]}))
    code, _, err = sluice("train", tmp_path / "train.yaml", f"output={tmp_path / 'other'}")
    message = "2 for positions 2 to 3, and the log has position 1"
    assert (code, message in err) == (2, True), err
    for positions in ([0, 1], [True, 2], ["1", 2]):
        out.write_text(json.dumps({"positions": positions, "examination": [1.0, 0.5]}))
        code, _, err = sluice("train", tmp_path / "train.yaml", f"output={tmp_path / 'other'}")
        assert (code, "positions count from 1" in err) == (2, True)
    out.write_text("[]")
    code, _, err = sluice("train", tmp_path / "train.yaml", f"output={tmp_path / 'other'}")
    assert (code, "not a file of propensities" in err) == (2, True)
    code, _, err = sluice("teach", "clicks", random, "--model", "pmb")
    assert (code, "did you mean 'pbm'" in err) == (2, True)


def test_settings_without_effect_in_python_too(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="clip: is of model: pbm"):
        file_examples({"type": "clicks", "file": "x", "model": "dbn", "clip": 0.1}, dataset, 1)
