"""ir_datasets ids and hub names, without a network."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import ir_datasets
import pytest
from huggingface_hub import HfApi, constants
from ir_datasets.datasets.base import Dataset as IrDataset
from ir_datasets.formats import BaseDocs, BaseQrels, BaseQueries, GenericQuery, TrecQrel

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.datasets.dataset import load_dataset, training_splits
from sluice.retrieval.documents.document import Document


class TitledDoc(NamedTuple):
    doc_id: str
    title: str
    text: str


class PartedDoc(NamedTuple):
    doc_id: str
    abstract: str

    def default_text(self) -> str:
        return self.abstract


class Docs(BaseDocs):  # type: ignore[misc]
    def docs_iter(self) -> Iterator[Any]:
        yield TitledDoc("d1", "Gold", "heavy")
        yield PartedDoc("d2", "gravel")

    def docs_count(self) -> int:
        return 2


class Queries(BaseQueries):  # type: ignore[misc]
    def queries_iter(self) -> Iterator[GenericQuery]:
        for i in range(20):
            yield GenericQuery(f"q{i}", f"text {i}")


class Qrels(BaseQrels):  # type: ignore[misc]
    def __init__(self, *names: str) -> None:
        self.names = names

    def qrels_iter(self) -> Iterator[TrecQrel]:
        for name in self.names:
            yield TrecQrel(name, "d1", 2, "0")


class Contradicting(BaseQrels):  # type: ignore[misc]
    def qrels_iter(self) -> Iterator[TrecQrel]:
        for grade in (2, 2, 0):
            yield TrecQrel("q1", "d1", grade, "0")


class Broken(BaseDocs):  # type: ignore[misc]
    def docs_iter(self) -> Iterator[Any]:
        raise ConnectionError("no route to host")

    def docs_count(self) -> None:
        return None


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    names = {
        "sluicetoy": IrDataset(Docs()),
        "sluicetoy/train": IrDataset(Docs(), Queries(), Qrels(*(f"q{i}" for i in range(10)))),
        "sluicetoy/test": IrDataset(Docs(), Queries(), Qrels("q12", "q11")),
        "sluicetoy/dev/small": IrDataset(Docs(), Queries(), Qrels("q13")),
        "sluicetoy/track": IrDataset(Docs(), Queries(), Qrels("q14")),
        "sluicetoy/unjudged": IrDataset(Docs(), Queries()),
        "sluicetwice": IrDataset(Docs(), Queries(), Contradicting()),
        "sluicebroken": IrDataset(Broken(), Queries(), Qrels("q1")),
    }
    for name, dataset in names.items():
        ir_datasets.registry.register(name, dataset)
    yield
    for name in names:
        del ir_datasets.registry._registered[name]


@pytest.mark.parametrize("name", ["sluicetoy/test", "sluicetoy/train", "ir_datasets:sluicetoy"])
def test_an_id_that_names_a_split_stands_for_its_family(name: str) -> None:
    dataset = load_dataset(name)
    assert dataset.name == "sluicetoy"
    assert set(dataset.splits) == {"train", "test", "dev/small", "track"}
    assert list(dataset.corpus) == [Document("d1", "Gold", "heavy"), Document("d2", "", "gravel")]
    assert len(dataset.corpus) == 2
    assert dataset.queries == {"q12": "text 12", "q11": "text 11"}
    assert dataset.qrels == {"q12": {"d1": 2}, "q11": {"d1": 2}}
    assert list(load_dataset(name, "dev/small").queries) == ["q13"]
    train, dev = training_splits(name, seed=3)
    assert (len(train.queries), len(dev.queries)) == (9, 1)


def test_a_track_trains_on_its_family() -> None:
    dataset = load_dataset("sluicetoy/track")
    assert list(dataset.queries) == ["q14"]
    assert len(dataset.with_split("train").queries) == 10


def test_ir_datasets_errors() -> None:
    with pytest.raises(DataError, match="no split 'dev'; available: "):
        load_dataset("sluicetoy", "dev")
    with pytest.raises(DataError, match=r"sluicetoj.*did you mean 'sluicetoy"):
        load_dataset("ir_datasets:sluicetoj")
    with pytest.raises(DataError, match=r"ir_datasets:sluicebroken: cannot read its docs \(Conn"):
        list(load_dataset("sluicebroken").corpus)


def test_a_pair_judged_twice_is_read_as_in_a_qrels_file(
    hub: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refused = "document 'd1' of query 'q1' has grade 0, and 2 in"
    with pytest.raises(DataError, match=rf"twice, judgement 3: {refused} .*judgement 1; keep"):
        _ = load_dataset("ir_datasets:sluicetwice").qrels
    splits = {
        "test": judged(("q1", "d1", 2), ("q0", "d0", 1), ("q1", "d1", 0)),
        "train": judged(("q1", "d1", 2), ("q1", "d1", 2)),
    }
    path = hub_folder(hub / "toy", {**CORPUS, "qrels": splits})
    with pytest.raises(DataError, match=rf"test, row 2: {refused} .* test, row 0; keep one"):
        _ = load_dataset(f"hf:{path}").qrels
    assert load_dataset(f"hf:{path}", "train").qrels == {"q1": {"d1": 2}}
    assert "train, row 1: judged before, with the same grade (1 such judgement)" in caplog.text


def hub_folder(path: Path, configs: dict[str, dict[str, list[dict[str, Any]]]]) -> Path:
    lines = ["---", "configs:"]
    for config, splits in configs.items():
        lines += [f"- config_name: {config}", "  data_files:"]
        for split, rows in splits.items():
            file = path / config / f"{split}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            lines.append(f"  - {{split: {split}, path: {config}/{split}.jsonl}}")
    (path / "README.md").write_text("\n".join([*lines, "---", ""]))
    return path


CORPUS = {
    "corpus": {"corpus": [{"_id": f"d{i}", "title": "t", "text": "x"} for i in range(3)]},
    "queries": {"queries": [{"_id": f"q{i}", "text": f"text {i}"} for i in range(4)]},
}


def judged(*pairs: tuple[str, str, float]) -> list[dict[str, Any]]:
    return [{"query-id": q, "corpus-id": d, "score": s} for q, d, s in pairs]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    return tmp_path


def test_hub_with_judgements_as_default(hub: Path) -> None:
    default = {"train": judged(("q0", "d0", 1)), "validation": judged(("q3", "d1", 1.0))}
    path = hub_folder(hub / "toy", {**CORPUS, "default": default})
    dataset = load_dataset(f"hf:{path}", "dev")
    assert (dataset.split, dataset.splits) == ("validation", ["train", "validation"])
    assert dataset.corpus.size is None
    assert [document.id for document in dataset.corpus] == ["d0", "d1", "d2"]
    assert len(dataset.corpus) == 3
    assert dataset.queries == {"q3": "text 3"}
    assert dataset.qrels == {"q3": {"d1": 1}}


def test_hub_with_metadata(hub: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        {"_id": "d0", "text": "x", "metadata": {"lang": "en", "tags": ["a"], "deep": {"a": 1}}},
        {"_id": "d1", "text": "x", "metadata": {"lang": "de", "tags": None, "deep": None}},
        {"_id": "d2", "text": "x"},
    ]
    default = {"test": judged(("q0", "d0", 1))}
    path = hub_folder(hub / "toy", {**CORPUS, "corpus": {"corpus": rows}, "default": default})
    found = [document.metadata for document in load_dataset(f"hf:{path}").corpus]
    assert found == [{"lang": "en", "tags": ["a"]}, {"lang": "de"}, {}]
    assert "left out 1 metadata value that no filter can use (deep: 1)" in caplog.text


def test_hub_with_judgements_beside(hub: Path) -> None:
    path = hub_folder(hub / "toy", CORPUS)
    hub_folder(hub / "toy-qrels", {"default": {"test": judged(("q1", "d2", 2))}})
    assert load_dataset(f"hf:{path}").qrels == {"q1": {"d2": 2}}


def test_hub_errors(hub: Path) -> None:
    path = hub_folder(hub / "toy", {**CORPUS, "qrels": {"test": judged(("q1", "d2", 0.5))}})
    with pytest.raises(DataError, match=r"\(qrels\) test, row 0: score 0.5 is not a whole"):
        _ = load_dataset(f"hf:{path}").qrels
    bad = {"corpus": {"corpus": [{"_id": "d", "body": "x"}]}}
    path = hub_folder(hub / "bad", {**CORPUS, **bad, "qrels": {"test": judged(("q1", "d", 1))}})
    with pytest.raises(DataError, match=r"\(corpus\): it has 'body' and should have 'text'"):
        list(load_dataset(f"hf:{path}").corpus)
    with pytest.raises(DataError, match=r"no split 'tset'; available: test; did you mean"):
        load_dataset(f"hf:{path}", "tset")


def test_offline_hub_is_one_quick_error() -> None:
    start = time.monotonic()
    with pytest.raises(DataError, match=r"hf:nobody/nothing: cannot be read .*when the network"):
        load_dataset("hf:nobody/nothing")
    assert time.monotonic() - start < 5


def test_unreachable_hub_is_one_quick_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "dataset_info", unreachable)
    start = time.monotonic()
    with pytest.raises(DataError, match=r"hf:nobody/nothing: cannot be read"):
        load_dataset("hf:nobody/nothing")
    assert time.monotonic() - start < 5
    assert "the hub is not reachable (ConnectionError)" in caplog.text
    assert constants.HF_HUB_OFFLINE is False
