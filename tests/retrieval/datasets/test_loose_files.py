"""Datasets of one's own files: corpus, topics and judgements in the forms that people have."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.config.file_keys import (
    corpus_contents,
    normalised_dataset,
    training_contents,
)
from sluice.retrieval.config.sections import ExperimentConfig, load_config
from sluice.retrieval.datasets.dataset import load_dataset
from sluice.retrieval.datasets.report import describe
from sluice.retrieval.datasets.topics import read_topics
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.readers import as_documents

QUERIES = {"q1": "gold river", "q2": "sluice"}
TOPICS = {
    "topics.tsv": "q1\tgold river\nq2\tsluice\n",
    "header.tsv": "query\tqid\ngold river\tq1\nsluice\tq2\n",
    "topics.csv": "qid,query\nq1,gold river\nq2,sluice\n",
    "queries.jsonl": '{"qid": "q1", "query": "gold river"}\n{"qid": "q2", "query": "sluice"}\n',
    "queries.json": '[{"id": "q1", "text": "gold river"}, {"id": "q2", "text": "sluice"}]',
    "topics.txt": (
        "<top>\n<num> Number: q1\n<title> gold\n river\n<desc> Description:\nlong\n</top>\n"
        "<top><num>q2</num><title>sluice</title></top>\n"
    ),
    "topics.xml": (
        '<?xml version="1.0"?>\n<topics>\n<topic number="q1"><query>gold river</query></topic>\n'
        '<topic number="q2"><title>sluice</title></topic></topics>\n'
    ),
}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "c.jsonl").write_text(
        '{"docid": "d1", "contents": "gold in the river"}\n{"docid": "d2", "contents": "sluice"}\n'
    )
    (tmp_path / "topics.tsv").write_text(TOPICS["topics.tsv"])
    (tmp_path / "q.txt").write_text("q1 0 d1 1\nq2 0 d2 2\n")
    return tmp_path


def mapping(folder: Path, **more: Any) -> dict[str, Any]:
    files = {"corpus": "c.jsonl", "queries": "topics.tsv", "qrels": "q.txt"}
    return {key: str(folder / name) for key, name in files.items()} | more


@pytest.mark.parametrize("name", TOPICS)
def test_topics(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(TOPICS[name])
    assert dict(read_topics(tmp_path / name)) == QUERIES


def test_topics_without_ids_and_with_named_columns(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("gold river\n\nsluice\n")
    assert dict(read_topics(tmp_path / "lines")) == {"1": "gold river", "2": "sluice"}
    (tmp_path / "x.csv").write_text("nr,ask\n7,gold\n")
    assert dict(read_topics(tmp_path / "x.csv", id="nr", text="ask")) == {"7": "gold"}


def test_queries_of_several_columns(own: Path) -> None:
    rows = [
        {"id": "q1", "ask": "gold", "shelf": "rivers"},
        {"id": "q2", "ask": "sluice"},
        {"id": "q3", "ask": "", "shelf": "mills"},
    ]
    (own / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = "".join(f"{row['id']} 0 d1 1\n" for row in rows)
    (own / "q.txt").write_text(judged)
    columns = {"query": ["ask", "shelf"]}
    data = load_dataset(mapping(own, queries=str(own / "q.jsonl"), columns=columns))
    assert data.queries == {"q1": "gold rivers", "q2": "sluice", "q3": "mills"}
    (own / "q.jsonl").write_text('{"id": "q1", "ask": "gold", "shelf": 3}\n')
    with pytest.raises(DataError, match=r"q\.jsonl:1: 'shelf' is 3, expected a text"):
        dict(load_dataset(mapping(own, queries=str(own / "q.jsonl"), columns=columns)).queries)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.tsv", "a\tb\tc\n", "x.tsv:1: 3 tab-separated columns, expected 2"),
        ("x.csv", "nr,ask\n7,gold\n", "no column of query texts; its columns are 'nr', 'ask'"),
        ("x.txt", "<top>\n<num> 1\n</top>\n", "topic 1: no <title>; expected <num> and <title>"),
        ("x.tsv", "a\tx\na\ty\n", "x.tsv:2: id 'a' again"),
        ("x.txt", "\n", "empty; expected one query a line"),
    ],
)
def test_bad_topics(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        list(read_topics(tmp_path / name))


def test_a_dataset_of_loose_files(own: Path) -> None:
    data = load_dataset(mapping(own, level=2))
    assert list(as_documents(data.corpus)) == list(data.corpus)  # of unknown length at first
    assert (data.name, data.split, data.splits, data.level) == ("c", "test", ["test"], 2)
    assert list(data.corpus) == [
        Document("d1", "", "gold in the river"),
        Document("d2", "", "sluice"),
    ]
    assert data.queries == QUERIES
    assert data.qrels == {"q1": {"d1": 1}, "q2": {"d2": 2}}
    assert load_dataset(mapping(own, name="mine")).name == "mine"
    report = describe(mapping(own))
    assert report["corpus"].endswith("c.jsonl: id from 'docid', text from 'contents'")
    assert (report["documents"], report["queries"]) == (2, 2)


def test_splits_and_columns(own: Path) -> None:
    (own / "train.csv").write_text("nr,ask\nq9,gold\n")
    (own / "train.tsv").write_text("q9\td1\t1\n")
    data = load_dataset(
        mapping(
            own,
            queries={"train": own / "train.csv", "test": own / "topics.csv"},
            qrels={"train": own / "train.tsv", "test": own / "q.txt"},
            columns={"query_id": "nr", "query": "ask", "text": "docid", "id": "row"},
        )
        | {"queries": {"train": own / "train.csv", "test": own / "train.csv"}},
        "train",
    )
    assert data.queries == {"q9": "gold"}
    assert [document.text for document in data.corpus] == ["d1", "d2"]


def test_a_corpus_alone(own: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert len(list(load_dataset({"corpus": str(own / "c.jsonl")}, None).corpus)) == 2
    assert len(list(load_dataset(own / "c.jsonl", None).corpus)) == 2
    with pytest.raises(
        DataError, match=r"no split has judgements; .* {queries: FILE, qrels: FILE}"
    ):
        load_dataset({"corpus": str(own / "c.jsonl")})
    folder = own / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("# A\nb\n")
    with pytest.raises(DataError, match=r"notes: a folder without corpus.jsonl.* sluice index "):
        load_dataset(folder, None)
    with caplog.at_level(logging.WARNING, "sluice"):
        assert describe(folder)["documents"] == 1
    assert "no split has judgements" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"queries": "topics.tsv"}, "dataset.queries: goes with a corpus"),
        ({"corpus": "c.jsonl", "qrels": "q.txt"}, "judgements need their queries"),
        ({"corpus": "c.jsonl", "queries": "topic.tsv"}, "no file 'topic.tsv', seen from .*topics"),
        ({"corpus": "c.jsonl", "columns": {"txt": "a"}}, "dataset.columns.txt: known are id, text"),
        ({"corpus": "c.jsonl", "columns": {"text": "txt"}}, "no column 'txt'"),
        ({"corpus": "c.jsonl", "columns": {"query": []}}, "dataset.columns.query: empty"),
        ({"corpus": "c.jsonl", "columns": {"query": 3}}, "dataset.columns.query: 3; expected the"),
        ({"corpus": "c.jsonl", "queries": 3}, "dataset.queries: 3; expected a file"),
        ({"corpsu": "c.jsonl"}, "dataset.corpsu: .* did you mean 'corpus'"),
    ],
)
def test_mistakes(
    own: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(own)
    with pytest.raises((ConfigError, DataError), match=message):
        list(load_dataset(settings, None).corpus)


def test_keys_are_of_contents(own: Path) -> None:
    import os

    (own / "train.tsv").write_text("q1\td1\t1\n")
    data = mapping(own, qrels={"train": str(own / "train.tsv")})
    corpus, training = corpus_contents(data), training_contents(data)
    for file in own.iterdir():
        os.utime(file, (1, 1))
    assert (corpus, training) == (corpus_contents(data), training_contents(data))
    (own / "train.tsv").write_text("q1\td2\t1\n")
    assert training_contents(data) != training
    assert corpus_contents(data) == corpus
    (own / "c.jsonl").write_text((own / "c.jsonl").read_text().replace("gold", "cold"))
    assert corpus_contents(data) != corpus
    # Judgements that are added later rebuild no index.
    alone = {"corpus": data["corpus"]}
    assert normalised_dataset(data) == normalised_dataset(alone)


def test_beir_folders_take_the_usual_names(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"id": "d1", "headline": "G", "contents": "gold"}\n')
    (tmp_path / "queries.jsonl").write_text('{"qid": 1, "query": "river"}\n')
    (tmp_path / "qrels" / "test.txt").write_text("1 0 d1 1\n")
    data = load_dataset(tmp_path)
    assert list(data.corpus) == [Document("d1", "G", "gold")]
    assert (data.queries, data.qrels) == ({"1": "river"}, {"1": {"d1": 1}})
    (tmp_path / "corpus.jsonl").write_text(
        '{"id": "d1", "text": "gold"}\n' + json.dumps({"_id": "d2", "text": "x"})
    )
    with pytest.raises(DataError, match=r"corpus.jsonl:2: it has '_id' and should have 'id'"):
        list(load_dataset(tmp_path).corpus)


def test_paths_are_found_beside_the_file(
    own: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (own / "elsewhere").mkdir()
    (own / "deep").mkdir()
    (own / "deep" / "corpus.jsonl").write_text('{"_id": "1", "text": "x"}\n')
    file = own / "x.yaml"
    file.write_text("dataset: {corpus: c.jsonl, queries: {test: topics.tsv}, qrels: q.txt}\n")
    monkeypatch.chdir(own)
    assert load_config(file, ExperimentConfig).dataset == {
        "corpus": "c.jsonl", "queries": {"test": "topics.tsv"}, "qrels": "q.txt",
    }  # fmt: skip
    monkeypatch.chdir(own / "elsewhere")
    with caplog.at_level(logging.INFO, "sluice"):
        dataset = load_config(file, ExperimentConfig).dataset
    assert load_dataset(dataset).queries == QUERIES
    assert f"c.jsonl is not in the current folder; using {own / 'c.jsonl'}" in caplog.text
    file.write_text("dataset: deep\n")
    assert load_config(file, ExperimentConfig).dataset == str(own / "deep")
    file.write_text("dataset: pydocs\n")
    assert load_config(file, ExperimentConfig).dataset == "pydocs"


def test_named_columns_of_files_without_ids_or_marks(tmp_path: Path) -> None:
    table = tmp_path / "q.tsv"
    table.write_text("question\tanswer\nriver gold\ta\nstone\tb\n")
    assert list(read_topics(table, text="question")) == [("1", "river gold"), ("2", "stone")]
    lines = tmp_path / "queries.txt"
    lines.write_text('{"question": "river gold", "text": "not this"}\n')
    assert list(read_topics(lines, text="question")) == [("1", "river gold")]


@pytest.mark.parametrize(
    ("content", "form"),
    [("river gold\n", "a query in each line"),
     ("<top>\n<num> 1\n<title> river gold\n</top>\n", "TREC topics")],
)  # fmt: skip
def test_columns_are_refused_where_there_are_none(tmp_path: Path, content: str, form: str) -> None:
    file = tmp_path / "queries.txt"
    file.write_text(content)
    with pytest.raises(DataError, match=f"holds {form} and has no columns, so none is named 'q'"):
        list(read_topics(file, text="q"))
