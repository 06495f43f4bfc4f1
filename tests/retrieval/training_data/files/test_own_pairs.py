"""Pairs of the user's own: columns of any name, and rows that a program has in memory."""

import csv
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from datasets import Dataset as HubDataset
from pyarrow import parquet
from training_files import lines, plain, read

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.training_data.example_sources import with_rows_written
from sluice.retrieval.training_data.files.examples import FileExamples

PAIR = ("where is gold", ["in the river"], [1], [])
TRIPLE = ("where is gold", ["in the river", "in the sky"], [1, 0], [])


def write(path: Path, names: list[str], *rows: list[str]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, delimiter="\t" if path.suffix == ".tsv" else ",").writerows(
            [*([names] if names else []), *rows]
        )
    return path


@pytest.mark.parametrize(
    ("names", "row", "expected"),
    [
        (["Question", "Answer"], ["where is gold", "in the river"], PAIR),
        (["id", "title", "search query", "Text"], ["7", "x", "where is gold", "in the river"],
         PAIR),
        (["Frage", "Antwort"], ["where is gold", "in the river"], PAIR),
        (["nr", "Frage", "Antwort"], ["7", "where is gold", "in the river"], PAIR),
        (["title", "Customer question", "Our reply"], ["x", "where is gold", "in the river"], PAIR),
        (["Frage", "doc"], ["where is gold", "in the river"], PAIR),
        (["q", "p", "n"], ["where is gold", "in the river", "in the sky"], TRIPLE),
        (["anchor", "positive", "hard_negative_1", "hard_negative_2"],
         ["where is gold", "in the river", "in the sky", ""], TRIPLE),
    ],
)  # fmt: skip
def test_columns_are_guessed_by_their_names(
    names: list[str], row: list[str], expected: Any, tmp_path: Path, dataset: Dataset,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    with caplog.at_level(logging.INFO, "sluice"):
        (made,) = read(write(tmp_path / "pairs.csv", names, row), dataset)
    assert plain(made) == expected
    said = names[row.index("where is gold")]
    assert f"query {said!r}" in caplog.text or "(columns)" in caplog.text


def test_pairs_without_a_header(tmp_path: Path, dataset: Dataset) -> None:
    path = write(tmp_path / "a.tsv", [], ["where is gold", "in the river"])
    assert plain(read(path, dataset)[0]) == PAIR


def test_csv_with_semicolons(tmp_path: Path, dataset: Dataset) -> None:
    (tmp_path / "a.csv").write_text('query;positive\n"where is gold";in the river\n')
    assert plain(read(tmp_path / "a.csv", dataset)[0]) == PAIR


def test_a_header_of_known_names_in_tsv(tmp_path: Path, dataset: Dataset) -> None:
    path = write(tmp_path / "a.tsv", ["id", "Query", "n"], ["7", "where is gold", "in the sky"])
    with pytest.raises(DataError, match="unknown format"):
        read(path, dataset)
    rows = ["7", "where is gold", "in the river"]
    path = write(tmp_path / "a.tsv", ["id", "Query", "Reply"], rows)
    assert plain(read(path, dataset, columns={"positive": "Reply"})[0]) == PAIR


def test_columns_are_told(tmp_path: Path, dataset: Dataset) -> None:
    path = write(
        tmp_path / "a.tsv", ["a", "b", "query", "c", "d"],
        ["where is gold", "in the river", "not this", "in the sky", "at sea"],
    )  # fmt: skip
    told = {"query": "a", "positive": "b", "negative": ["c", "d"]}
    (made,) = read(path, dataset, columns=told)
    assert plain(made) == (
        "where is gold", ["in the river", "in the sky", "at sea"], [1, 0, 0], [],
    )  # fmt: skip
    (made,) = read(path, dataset, columns={"query": "a", "positive": "d"})
    assert plain(made) == ("where is gold", ["at sea"], [1], [])


def test_labels_make_one_example_of_a_query(tmp_path: Path, dataset: Dataset) -> None:
    rows = [["where is gold", "in the sky", "0"], ["where is gold", "in the river", "1"]]
    path = write(tmp_path / "a.csv", ["a", "b", "good"], *rows)
    told = {"query": "a", "positive": "b", "label": "good"}
    (made,) = read(path, dataset, columns=told)
    assert plain(made) == ("where is gold", ["in the river", "in the sky"], [1, 0], [])


PAIRS = [("q", ["good", "bad"], [1, 0], [])]
GOOD, BAD = {"question": "q", "answer": "good"}, {"question": "q", "answer": "bad", "label": 0}


@pytest.mark.parametrize(
    "rows",
    [[GOOD, BAD], [BAD, GOOD], [{**GOOD, "label": None}, BAD], [BAD, {**GOOD, "label": None}]],
)
def test_a_label_that_some_rows_lack(rows: list[Any], tmp_path: Path, dataset: Dataset) -> None:
    assert [plain(made) for made in read(lines(tmp_path / "a.jsonl", rows), dataset)] == PAIRS
    for number, held in enumerate((rows, pd.DataFrame(rows))):
        section = with_rows_written({"examples": held}, tmp_path / str(number), "examples")
        made = read(Path(section["examples"]["file"]), dataset)
        assert [plain(each) for each in made] == PAIRS
    named = [{"query": row["question"], "positive": row["answer"], **row} for row in rows]
    assert [plain(made) for made in read(lines(tmp_path / "b.jsonl", named), dataset)] == PAIRS
    for row in named:
        row |= {"relevance": row.pop("label", None)}
    assert [plain(made) for made in read(lines(tmp_path / "c.jsonl", named), dataset)] == PAIRS


@pytest.mark.parametrize("before", [1, 150])
def test_columns_that_only_later_rows_have(before: int, tmp_path: Path, dataset: Dataset) -> None:
    pairs = [{"question": f"q{number}", "answer": "a"} for number in range(before)]
    later = {"question": "q", "answer": "a", "hard_negative_2": "b", "Neg": ["c"]}
    made = read(lines(tmp_path / "a.jsonl", [*pairs, later]), dataset)
    assert plain(made[0]) == ("q0", ["a"], [1], [])
    assert plain(made[-1]) == ("q", ["a", "b", "c"], [1, 0, 0], [])
    made = read(lines(tmp_path / "b.jsonl", [*pairs, {**BAD, "label": 0.5}]), dataset)
    assert plain(made[-1])[1:3] == (["bad"], [0.5])
    noted = {
        "question": "q",
        "answer": "a",
        "text": "x",
        "query": "y",
    }  # the first row's pair stays
    made = read(lines(tmp_path / "c.jsonl", [*pairs, noted]), dataset)
    assert plain(made[-1]) == ("q", ["a"], [1], [])
    told = {"examples": {"file": [*pairs, later], "columns": {"negative": "Neg"}}}
    spec = with_rows_written(told, tmp_path, "examples")["examples"]
    made = read(Path(spec["file"]), dataset, columns=spec["columns"])
    assert plain(made[-1]) == ("q", ["a", "c"], [1, 0], [])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"qery": "a"}, r"columns.qery: columns takes query.*did you mean 'query'"),
        ({"query": ["a"]}, r"columns.query: \['a'\]; expected the name of a column$"),
        ({"negative": []}, r"columns.negative: \[\]; expected the name of a column, or a list"),
    ],
)
def test_columns_told_wrongly(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FileExamples("a.csv", columns=columns)
    with pytest.raises(ConfigError, match="leave format out"):
        FileExamples("a.csv", format="bge", columns={"query": "a"})


def test_columns_that_the_file_lacks(tmp_path: Path, dataset: Dataset) -> None:
    path = write(tmp_path / "a.csv", ["ask", "b", "c"], ["where is gold", "river", "sky"])
    with pytest.raises(DataError, match=r"no column 'aks'.*columns.query.*did you mean 'ask'"):
        read(path, dataset, columns={"query": "aks", "positive": "b"})
    with pytest.raises(DataError, match=r"none of 'aks' is in the first line, which has 'ask'"):
        read(path, dataset, columns={"query": "aks"})
    with pytest.raises(DataError, match=r"which column holds the positive\? The columns are"):
        read(path, dataset, columns={"query": "ask"})


TABLE = {"question": ["where is gold"], "answer": ["in the river"], "negative": [None]}


@pytest.mark.parametrize(
    "rows",
    [
        [("where is gold", "in the river")],
        [{"query": "where is gold", "positive": "in the river", "score": None}],
        (pair for pair in [["where is gold", "in the river"]]),
        pd.DataFrame(TABLE),
        pd.DataFrame({**TABLE, "title": ["x"]}).set_index("title"),
        pa.table({name: pa.array(values, pa.string()) for name, values in TABLE.items()}),
        HubDataset.from_dict(TABLE),
    ],
    ids=["tuples", "mappings", "generator", "pandas", "index", "arrow", "datasets"],
)
def test_rows_in_memory(rows: Any, tmp_path: Path, dataset: Dataset) -> None:
    section = with_rows_written({"examples": rows, "seed": 1}, tmp_path / "work", "examples")
    assert section["seed"] == 1
    (made,) = read(Path(section["examples"]["file"]), dataset)
    assert plain(made) == PAIR


@pytest.mark.parametrize("negatives", [["n1", "n2"], ("n1", None, "n2"), np.array(["n1", "n2"])])
def test_a_list_of_negatives_in_a_tuple(negatives: Any, tmp_path: Path, dataset: Dataset) -> None:
    rows = [("q", "p", negatives), ("r", "p", [])]
    section = with_rows_written({"examples": rows}, tmp_path, "examples")
    made = read(Path(section["examples"]["file"]), dataset)
    assert [plain(each) for each in made] == [
        ("q", ["p", "n1", "n2"], [1, 0, 0], []), ("r", ["p"], [1], []),
    ]  # fmt: skip


def test_two_columns_of_one_name(tmp_path: Path, dataset: Dataset) -> None:
    names, row = ["query", "positive", "negative", "negative"], ["q", "p", "n1", "n2"]
    table = pa.Table.from_arrays([pa.array([text]) for text in row], names)
    parquet.write_table(table, tmp_path / "a.parquet")
    for path in (*(write(tmp_path / f"a.{form}", names, row) for form in ("csv", "tsv")),
                 tmp_path / "a.parquet"):  # fmt: skip
        with pytest.raises(DataError, match="two columns are called 'negative'; rename one"):
            read(path, dataset)
    for held in (table, pd.DataFrame([row], columns=names)):
        with pytest.raises(DataError, match="examples: two columns are called 'negative'"):
            with_rows_written({"examples": held}, tmp_path, "examples")
    unnamed = write(tmp_path / "b.csv", ["query", "positive", "", ""], ["q", "p", "", ""])
    assert plain(read(unnamed, dataset)[0]) == ("q", ["p"], [1], [])


def test_rows_in_memory_stay_the_same_file(tmp_path: Path, dataset: Dataset) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": ["where is gold"], "b": ["in the river"], "good": [1.0]})
    told = {"query": "a", "positive": "b", "label": "good"}
    section = {"examples": {"file": frame, "columns": told}}
    spec = with_rows_written(section, tmp_path, "examples")["examples"]
    assert plain(read(**{**spec, "path": Path(spec.pop("file"))}, dataset=dataset)[0]) == (
        *PAIR[:2], [1.0], [],
    )  # fmt: skip
    written = (tmp_path / "pairs.jsonl").stat().st_mtime_ns
    with_rows_written(section, tmp_path, "examples")
    assert (tmp_path / "pairs.jsonl").stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.jsonl"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "examples: no rows; expected a data frame"),
        (pd.DataFrame({"query": []}), "examples: no rows"),
        ([("q", "p"), ("q",)], r"row 1: \('q',\); expected a data frame"),
        ([3], "row 0: 3; expected"),
        ([("q", "p", [1, 0])], r"row 0: the third part is \[1, 0\]; expected a negative"),
        (object(), "examples: of type object; expected a data frame"),
    ],
)
def test_rows_that_are_none(rows: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        with_rows_written({"examples": rows}, tmp_path, "examples")
    assert not list(tmp_path.iterdir())


def test_files_and_settings_are_left_alone(tmp_path: Path) -> None:
    for examples in ("a.csv", ["a.csv", "b.csv"], {"file": "a.csv"}, {"type": "ict"}, None):
        section = {"examples": examples}
        assert with_rows_written(section, tmp_path, "examples") == section
