"""Datasets by name: folders, splits, dev sets held out, identical ids, descriptions."""

from __future__ import annotations

import gzip
import json
import logging
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from command_line import Call

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.datasets.dataset import Dataset, load_dataset, training_splits
from sluice.retrieval.datasets.report import describe
from sluice.retrieval.documents.document import Document

DOCUMENTS = [
    {"_id": "d1", "title": "Gold", "text": "heavy and yellow"},
    {"_id": "d2", "title": "", "text": ""},
    {"_id": "d3", "text": "gravel\u2028is light"},
]
QUERIES = {"q1": "what is heavy", "q2": "what is light", "q3": "unused"}
QRELS = {"test": [("q2", "d3", 2), ("q1", "d1", 1), ("q1", "d2", 0)], "train": [("q1", "d1", 1)]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "toy"
    (path / "qrels").mkdir(parents=True)
    lines = [json.dumps(entry, ensure_ascii=False) for entry in DOCUMENTS]
    (path / "corpus.jsonl").write_text("\n".join(lines) + "\n\n", "utf-8")
    queries = [json.dumps({"_id": name, "text": text}) for name, text in QUERIES.items()]
    (path / "queries.jsonl").write_text("\n".join(queries), "utf-8")
    for split, rows in QRELS.items():
        table = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in rows)]
        (path / "qrels" / f"{split}.tsv").write_text("\n".join(table) + "\n", "utf-8")
    return path


def test_folder(folder: Path) -> None:
    dataset = load_dataset(folder)
    assert (dataset.name, dataset.split, dataset.splits) == ("toy", "test", ["test", "train"])
    expected = [Document(e["_id"], e.get("title", ""), e["text"]) for e in DOCUMENTS]
    assert list(dataset.corpus) == expected == list(dataset.corpus)
    assert len(dataset.corpus) == 3
    assert list(dataset.queries.items()) == [("q2", "what is light"), ("q1", "what is heavy")]
    assert dataset.qrels == {"q2": {"d3": 2}, "q1": {"d1": 1, "d2": 0}}
    assert list(dataset.with_split("train").queries) == ["q1"]
    assert [document.full_text for document in dataset.corpus][:2] == ["Gold heavy and yellow", ""]


def test_compressed_folder_is_the_same(folder: Path) -> None:
    plain = load_dataset(folder)
    corpus, queries = list(plain.corpus), plain.queries
    for name in ("corpus.jsonl", "queries.jsonl"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
        (folder / name).unlink()
    dataset = load_dataset(folder)
    assert dataset.queries == queries
    with pytest.raises(TypeError, match="no known length"):
        len(dataset.corpus)
    assert list(dataset.corpus) == corpus
    assert len(dataset.corpus) == 3


def test_corpus_alone(folder: Path) -> None:
    for file in (folder / "qrels").iterdir():
        file.unlink()
    (folder / "queries.jsonl").unlink()
    dataset = load_dataset(folder, split=None)
    assert describe(dataset)["documents"] == 3
    with pytest.raises(DataError, match="without a split"):
        _ = dataset.queries
    with pytest.raises(DataError, match="toy: no split has judgements; searching and indexing"):
        load_dataset(folder)


def test_description_without_judgements(
    folder: Path, sluice: Call, caplog: pytest.LogCaptureFixture
) -> None:
    for file in (folder / "qrels").iterdir():
        file.unlink()
    unjudged = "dataset toy: no split has judgements; searching and indexing work without"
    with caplog.at_level(logging.WARNING, logger="sluice"):
        report = describe(folder)
    assert (report["documents"], report["split"]) == (3, None)
    assert unjudged in caplog.text
    code, out, err = sluice("data", folder)
    assert (code, json.loads(out)) == (0, report)
    assert unjudged in err


def test_names(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLUICE_DATA", str(folder.parent))
    assert load_dataset("toy").name == "toy"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_dataset({"name": "toy", "ignore_identical_ids": True}, "train").split == "train"
    assert load_dataset({"name": "toy", "split": "train"}).split == "train"
    with pytest.raises(DataError, match=r"'toyy' not found; tried .*did you mean 'toy'"):
        load_dataset("toyy")
    with pytest.raises(DataError, match=r"no split 'tets'; available: test, train.*mean 'test'"):
        load_dataset("toy", "tets")
    with pytest.raises(DataError, match=r"expected a folder in BEIR layout.*did you mean 'toy'"):
        load_dataset(folder.parent / "toi")
    with pytest.raises(ConfigError, match=r"dataset\.ignore_identical_id: .*did you mean"):
        load_dataset({"name": "toy", "ignore_identical_id": True})
    with pytest.raises(ConfigError, match=r"dataset\.ignore_identical_ids: 'yes'"):
        load_dataset({"name": "toy", "ignore_identical_ids": "yes"})
    with pytest.raises(ConfigError, match=r"dataset\.name: None"):
        load_dataset({"split": "test"})
    monkeypatch.delenv("SLUICE_DATA")
    with pytest.raises(DataError, match="SLUICE_DATA \\(which is not set\\)"):
        load_dataset("toy")


def test_dev_by_another_name(folder: Path) -> None:
    (folder / "qrels" / "validation.tsv").write_text("q2\td3\t1\n")
    assert load_dataset(folder, "dev").split == "validation"
    train, dev = training_splits(folder, seed=1)
    assert (list(train.queries), list(dev.queries)) == (["q1"], ["q2"])


def many(size: int) -> Dataset:
    queries = {f"q{i}": f"text {i % (size // 2)}" for i in range(size)}  # every text twice
    qrels = {name: {"d1": 1} for name in queries}
    return Dataset.from_memory([Document("d1", "", "x")], queries, qrels, split="train")


def test_dev_is_held_out_of_train() -> None:
    dataset = many(200)
    train, dev = training_splits(dataset, seed=7)
    assert (len(train.queries), len(dev.queries)) == (180, 20)
    assert train.queries | dev.queries == dataset.queries
    assert not set(train.queries.values()) & set(dev.queries.values())
    assert training_splits(many(200), seed=7)[1].queries == dev.queries
    assert training_splits(dataset, seed=8)[1].queries != dev.queries
    assert len(load_dataset_train_size(dataset)) == 200  # undivided where nothing is trained


def load_dataset_train_size(dataset: Dataset) -> dict[str, str]:
    return dataset.with_split("train").queries


def test_nothing_to_hold_out(folder: Path) -> None:
    with pytest.raises(DataError, match="holding out a dev split takes at least 2"):
        _ = training_splits(folder, seed=1)[1].queries
    (folder / "qrels" / "train.tsv").unlink()
    with pytest.raises(DataError, match="no split 'train'; available: test"):
        training_splits(folder, seed=1)


ARGUMENT = Document("a1", "Zoos", "Zoos are\nprisons for animals.")


@pytest.mark.parametrize(
    ("queries", "qrels", "drop"),
    [
        ({"a1": "Zoos are prisons for animals."}, {"a1": {"b": 1}}, True),
        ({"a1": "Zoos are prisons for animals."}, {"a1": {"a1": 1}}, False),  # it is the answer
        ({"a1": "aeroelastic models"}, {"a1": {"b": 1}}, False),
        ({"a1": "on animal"}, {"a1": {"b": 1}}, False),  # parts of words
        ({"a1": ""}, {"a1": {"b": 1}}, False),
        ({"x": "Zoos are prisons for animals."}, {"x": {"b": 1}}, False),
    ],
)
def test_identical_ids(
    queries: dict[str, str], qrels: dict[str, dict[str, int]], drop: bool
) -> None:
    documents = [ARGUMENT, Document("b", "", "No.")]
    dataset = Dataset.from_memory(documents, queries, qrels)
    assert dataset.identical_ids().drop is drop
    by_id = {document.id: document for document in documents}
    again = Dataset.from_memory(documents, queries, qrels)
    assert again.identical_ids(by_id.get) == dataset.identical_ids()


@pytest.mark.parametrize("asked", [True, False])
def test_identical_ids_as_asked(folder: Path, asked: bool) -> None:
    dataset = load_dataset({"name": str(folder), "ignore_identical_ids": asked})
    assert dataset.identical_ids().drop is asked
    assert dataset.with_split("train").identical_ids().drop is asked


def test_description(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (folder / "qrels" / "test.tsv").open("a") as stream:
        stream.writelines(f"q2\tx{i}\t1\n" for i in range(5))
        stream.write("q9\td1\t1\n")
    with caplog.at_level(logging.WARNING, logger="sluice"):
        report = describe(load_dataset(folder))
    assert json.loads(json.dumps(report))["documents"] == 3
    assert report["words_per_document"] == {"mean": 7 / 3, "max": 4}
    assert report["empty_documents"] == 1
    assert report["grades"] == {0: 1, 1: 7, 2: 1}
    assert report["positives_per_query"] == {"mean": 8 / 3, "min": 1, "max": 6}
    assert report["missing_documents"] == {"count": 5, "examples": ["x0", "x1", "x2"]}
    assert report["unjudged_queries"] == {"count": 1, "examples": ["q3"]}
    assert report["splits"]["train"] == {"queries": 1, "judgements": 1}
    assert report["identical_ids"]["drop"] is False
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 3
    assert warnings[0].endswith("will score 0: q9")
    assert "5 judged documents not in" in warnings[1]
    assert warnings[1].endswith(": x0, x1, x2")
    assert warnings[2].endswith("1 query without judgements in any split, not used: q3")


@pytest.mark.thorough
def test_pydocs() -> None:
    dataset = load_dataset("pydocs", "dev")
    assert set(dataset.queries) == set(dataset.qrels)
    assert all(isinstance(document, Document) for document in dataset.corpus)
    assert training_splits("pydocs", 1)[0].split == "train"


def test_import_is_light() -> None:
    heavy = "{'torch', 'faiss', 'numba', 'transformers', 'pyarrow', 'datasets', 'ir_datasets'}"
    code = (
        "import sys, sluice.retrieval.datasets.dataset, sluice.retrieval.documents.store; "
        "import sluice.retrieval.datasets.libraries, sluice.retrieval.datasets.libraries; "
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "split", "documents", "queries", "judgements", "tenth_id"),
    [
        ("scifact", "test", 5183, 300, 339, "70490"),
        ("scifact", "train", 5183, 809, 919, "70490"),
        ("nfcorpus", "dev", 3633, 324, 11385, "MED-335"),
        ("cranfield", "test", 1400, 225, 1837, "10"),
        ("msmarco-dl-pool", "dl20", 30045, 54, 5148, None),
    ],
)
def test_real_collections(
    collections: Path,
    name: str,
    split: str,
    documents: int,
    queries: int,
    judgements: int,
    tenth_id: str | None,
) -> None:
    dataset = load_dataset(collections / name, split)
    assert len(dataset.corpus) == sum(1 for _ in dataset.corpus) == documents
    assert len(dataset.queries) == queries == len(dataset.qrels)
    assert sum(map(len, dataset.qrels.values())) == judgements
    assert dataset.identical_ids().drop is False
    if tenth_id is not None:
        assert next(islice(dataset.corpus, 9, None)).id == tenth_id
