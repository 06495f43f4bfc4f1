"""``by_dataset``: a loss, examples, prompts, a weight of each; files that stay on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_world import write_marked

from sluice.encoders import DenseEncoder
from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval import load_dataset, train
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.datasets.source import MemorySource
from sluice.retrieval.training_data.example_sources import file_examples, streamed_examples

BM25 = {"encoder": {"type": "bm25"}}


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    rows = [
        {"query": f"wish {n}", "pos": [f"answer {n}"], "neg": [f"other {n}"]} for n in range(12)
    ]
    return written(tmp_path / "pairs.jsonl", rows)


@pytest.fixture
def config(tmp_path: Path, bert: Path) -> dict[str, Any]:
    return {
        "output": str(tmp_path / "out"),
        "datasets": [str(write_marked(tmp_path / name, name)) for name in ("red", "blue")],
        "encoder": {"type": "dense", "model": str(bert), "query_prompt": "own: "},
        "loss": "info_nce",
        "trainer": {"max_steps": 6, "per_device_train_batch_size": 4, "logging_steps": 1},
    }


def test_loss_prompts_examples_and_weight(
    config: dict[str, Any], pairs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: set[tuple[str, str]] = set()
    plain = DenseEncoder.tokenize

    def noted(self: Any, texts: Any, side: Any) -> Any:
        read.update((side, self.prompts[side] + text) for text in texts)
        return plain(self, texts, side)

    monkeypatch.setattr(DenseEncoder, "tokenize", noted)
    config["by_dataset"] = {
        "red": {"weight": 2.0},
        "blue": {
            "loss": {"type": "info_nce", "negatives": "own"}, "query_prompt": "find: ",
            "examples": {"file": pairs, "buffer": 5}, "document_prompt": "text: ",
        },
    }  # fmt: skip
    folder = train(config)
    queries = {text for side, text in read if side == "query"}
    documents = {text for side, text in read if side == "document"}
    red = load_dataset(config["datasets"][0], "train")
    assert {text for text in queries if text.startswith("find: ")} <= {
        f"find: wish {n}" for n in range(12)
    }
    assert {t for t in queries if t.startswith("own: ")} <= {
        f"own: {t}" for t in red.queries.values()
    }
    assert all(text.startswith(("find: ", "own: ")) for text in queries)
    assert {t for t in documents if t.startswith("text: ")} <= {
        f"text: {kind} {n}" for kind in ("answer", "other") for n in range(12)
    }
    lines = (tmp_path / "out" / "training" / "metrics.jsonl").read_text(encoding="utf-8")
    assert '"loss red"' in lines
    assert '"loss blue"' in lines
    # 18 of red in 5 batches and 12 of blue in 3: 8 an epoch, two thirds and one third of them
    assert read_json(folder / "manifest.json")["examples"] == 18 + 12
    assert DenseEncoder.from_pretrained(folder).prompts["query"] == "own: "
    assert train(config) == folder  # the same settings: nothing is trained again


@pytest.mark.thorough
def test_negatives_and_dev_measures_use_the_prompts(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: set[str] = set()
    plain = DenseEncoder.encode_queries

    def noted(self: Any, texts: Any, *more: Any, **options: Any) -> Any:
        encoded.update(self.prompts["query"] + text.split()[0] for text in texts)
        return plain(self, texts, *more, **options)

    monkeypatch.setattr(DenseEncoder, "encode_queries", noted)
    config |= {
        "negatives": {"type": "mined", "retriever": "self", "per_query": 1, "mode": "naive"},
        "evaluate": {"every": 3, "measures": ["nDCG@10"]},
        "by_dataset": {"blue": {"query_prompt": "find: "}},
    }  # fmt: skip
    train(config)
    assert {text.partition(": ")[0] for text in encoded} == {"own", "find"}


def test_a_streamed_file_has_the_examples_of_a_list(pairs: str, tmp_path: Path) -> None:
    dataset = load_dataset(str(write_marked(tmp_path / "red", "red")), "train")
    for more in ({}, {"per_query": 0}, {"rows": 7}, {"scores": False}):
        spec = {"type": "file", "file": [pairs, pairs], **more}
        stream = streamed_examples({**spec, "buffer": 3}, dataset, 13)
        assert stream is not None
        assert list(stream) == list(stream) == file_examples(spec, dataset, 13)
        assert len(stream) == len(file_examples(spec, dataset, 13))
    assert streamed_examples(spec, dataset, 13) is None


def test_tested_queries_are_left_out_of_a_stream(tmp_path: Path) -> None:
    folder = str(write_marked(tmp_path / "red", "red"))
    asked = next(iter(load_dataset(folder, "test").queries.values()))
    rows = [{"query": text, "pos": ["a text"]} for text in (asked.upper(), "another")]
    spec = {"file": written(tmp_path / "p.jsonl", rows), "buffer": 4}
    stream = streamed_examples(spec, load_dataset(folder, "train"), 13)
    assert [example.query.text for example in stream or ()] == ["another"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": "q", "document": "d", "label": 1}, "one document of its query's list"),
        ({"qid": "1", "pos": ["2"], "neg": {"bm25": ["3"]}}, "an id without its text"),
        ({"query": "q", "pos": ["d"], "negative_queries": ["n"]}, "has negative_queries"),
    ],
)
def test_rows_that_need_the_whole_file(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    spec = {"file": written(tmp_path / "p.jsonl", [row]), "buffer": 4}
    empty = Dataset(MemorySource("p", (), {}), None)
    with pytest.raises(DataError, match=rf"p.jsonl.*1: {message}.*leave examples.buffer out"):
        list(streamed_examples(spec, empty, 13) or ())


def test_a_file_of_pairs_is_streamed_without_a_dataset(config: dict[str, Any], pairs: str) -> None:
    del config["datasets"]
    config["examples"] = {"file": pairs, "buffer": 5}
    config["trainer"]["max_steps"] = 3
    assert read_json(train(config) / "manifest.json")["examples"] == 12
    with pytest.raises(ConfigError, match="evaluate: holds some of the examples out"):
        train({**config, "evaluate": {"every": 1}})
