"""Listwise rerankers from YAML: trained on full rankings, measured, searched with; refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Call
from small_training import refused
from small_world import documents, write_beir
from tiny_generators import save_gpt2, save_t5
from training_files import lines

from sluice.encoders.generative.listwise import ListwiseRanker
from sluice.retrieval import load_pipeline
from sluice.retrieval.pipelines.rerank import Rerank

PROMPT = "{query} {documents} rank"
CORPUS = documents()


def rankings(folder: Path, depth: int = 3) -> Path:
    """Write what `sluice teach rank` writes, about the train queries of the small world."""
    rows = []
    for number in range(12):
        chosen = [CORPUS[(number * 3 + at) % 40] for at in range(depth)]
        rows.append({
            "query_id": f"q{number}", "query": " ".join(chosen[0].text.split()[:3]),
            "documents": [each.full_text for each in chosen],
            "doc_ids": [each.id for each in chosen],
            "grades": [1 / math.log2(1 + rank) for rank in range(1, depth + 1)],
        })  # fmt: skip
    return lines(folder / "ranked.jsonl", rows)


def training(folder: Path, model: Path, **changes: Any) -> dict[str, Any]:
    return {
        "encoder": {"type": "listwise", "model": str(model), "prompt": PROMPT,
                    "document_length": 4},
        "examples": str(folder / "ranked.jsonl"),
        "loss": {"type": "rankings", "importance": 1.0},
        "trainer": {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1.0e-3},
        **changes,
    }  # fmt: skip


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_t5(tmp_path_factory.mktemp("models") / "t5")


def test_a_journey(sluice: Call, tmp_path: Path, t5: Path) -> None:
    file, output = tmp_path / "x.yaml", tmp_path / "out"
    rankings(tmp_path)
    dev = {"measures": ["nDCG@10"], "queries": 2, "margin": 0, "by": "examples"}
    facts = {
        "dataset": str(write_beir(tmp_path / "data")), "output": str(output),
        "train": {"ranker": training(tmp_path, t5, evaluate=dev)},
        "retrievers": {"bm25": {"encoder": {"type": "bm25"}}},
        "rerankers": {"full": {"type": "listwise", "model": "ranker"},
                      "windows": {"type": "listwise", "model": "ranker", "window": 3}},
        "pipelines": {"full": "bm25 % 4 >> full(depth=4)", "windows": "bm25 % 4 >> windows"},
        "evaluate": {"measures": ["nDCG@10"], "baseline": "full", "latency_queries": 0},
    }  # fmt: skip
    file.write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    for words in (["config", "check", file], ["run", file]):
        code, _, err = sluice(*words)
        assert code == 0, err
    systems = json.loads((output / "results.json").read_text())["systems"]
    assert {each["name"] for each in systems} == {"full", "windows"}
    card = (output / "models" / "ranker" / "README.md").read_text()
    assert "print(model.order(" in card
    assert "Listwise ranker trained with rankings" in card
    hits = load_pipeline(output, "full").search("gold river", 10)
    assert len(hits) == 4
    assert [hit.score for hit in hits] == [3, 2, 1, 0]
    for words in (["verify", output / "models" / "ranker"],
                  ["search", output, "gold", "--pipeline", "windows", "-k", 100]):  # fmt: skip
        code, _, err = sluice(*words)
        assert code == 0, err
    opened = Rerank(str(output / "models" / "ranker"), 5)
    assert isinstance(opened.scorer, ListwiseRanker)
    assert opened.scorer.settings()["document_length"] == 4


def test_a_list_longer_than_the_window_is_no_example(sluice: Call, tmp_path: Path) -> None:
    rankings(tmp_path)
    facts = {"dataset": str(write_beir(tmp_path / "data")), "output": str(tmp_path / "a"),
             **training(tmp_path, save_gpt2(tmp_path / "gpt2"))}  # fmt: skip
    facts["encoder"]["window"] = 2
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(facts), encoding="utf-8")
    code, _, err = sluice("train", file)
    assert code == 2
    assert "a list of 3 documents, and the model reads windows of 2" in err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "info_nce"}, "a listwise encoder takes rankings"),
        ({"loss": {"type": "sum", "losses": [{"type": "rankings"}]}}, "cannot be combined"),
        ({"loss": {"type": "rankings", "importance": -1}}, "rankings.importance: -1"),
        ({"encoder": {"type": "cross_encoder", "model": "m"}}, "loss: rankings trains listwise"),
        ({"encoder": {"type": "listwise", "model": "m", "windows": 3}}, "did you mean 'window'"),
        ({"gradient_cache": 4}, "gradient_cache: rankings learns what a language model writes"),
        ({"head_learning_rate": 0.1}, "head_learning_rate"),
        ({"teacher": "bm25"}, "teacher: rankings learns nothing from a teacher's scores"),
        ({"sparsity": {"document": {"type": "flops", "weight": 1}}}, "has no terms"),
        ({"scoring": "max_sim"}, "scoring"),
        ({"negatives": {"type": "live"}}, "live candidates are for encoders of queries alone"),
        ({"negatives": {"type": "mined", "retriever": "self"}, "examples": None},
         "a listwise cannot retrieve"),
        ({"examples": None}, "compares a positive with the query's own documents only"),
        ({"evaluate": {"measures": ["nDCG@10"]}}, "reranks what a retriever finds"),
    ],
)  # fmt: skip
def test_settings_that_mean_nothing(
    changes: dict[str, Any], message: str, t5: Path, tmp_path: Path
) -> None:
    rankings(tmp_path)
    facts = {**training(tmp_path, t5), **changes}
    facts = {key: value for key, value in facts.items() if value is not None}
    refused({"dataset": "d", "output": "o", **facts}, message)
