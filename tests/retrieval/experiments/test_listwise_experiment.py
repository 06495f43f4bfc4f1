"""Listwise rerankers from YAML: trained on full rankings, measured, searched with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from command_line import Call
from kinds import ranked
from small_world import documents, write_beir
from tiny_generators import save_gpt2, save_t5
from training_files import lines, read

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.generative.listwise import ListwiseRanker
from sluice.encoders.tuning.tune import merge, tune
from sluice.retrieval.datasets.dataset import Dataset

PROMPT = "{query} {documents} rank"
CORPUS = documents()


def training(folder: Path, model: Path, **changes: Any) -> dict[str, Any]:
    return {
        "encoder": {"type": "listwise", "model": str(model), "prompt": PROMPT,
                    "document_length": 4},
        "examples": str(folder / "ranked.jsonl"),
        "loss": {"type": "rankings", "importance": 1.0},
        "trainer": {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1.0e-3},
        **changes,
    }  # fmt: skip


def test_a_list_longer_than_the_window_is_no_example(sluice: Call, tmp_path: Path) -> None:
    ranked(tmp_path)
    facts = {"dataset": str(write_beir(tmp_path / "data")), "output": str(tmp_path / "a"),
             **training(tmp_path, save_gpt2(tmp_path / "gpt2"))}  # fmt: skip
    facts["encoder"]["window"] = 2
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(facts), encoding="utf-8")
    code, _, err = sluice("train", file)
    assert code == 2
    assert "a list of 3 documents, and the model reads windows of 2" in err


def test_a_tuned_ranker_is_merged_and_writes_as_before(tmp_path: Path) -> None:
    start = save_gpt2(tmp_path / "gpt2", tie_word_embeddings=False)
    ranker = ListwiseRanker.from_pretrained(start, prompt=PROMPT)
    tune(ranker, {"type": "lora"})
    assert all(
        "lora_" in name for name, each in ranker.module.named_parameters() if each.requires_grad
    )
    with torch.no_grad():
        for name, parameter in ranker.module.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.3)
    ranker.module.eval()
    lists = [("gold", ["river stone", "water"])]
    before = ranker.log_probabilities(lists)
    assert before[0] != pytest.approx(untuned(tmp_path, lists), abs=1e-3)
    merge(ranker)
    ranker.save_pretrained(tmp_path / "tuned")
    opened = ListwiseRanker.from_pretrained(tmp_path / "tuned")
    assert opened.log_probabilities(lists) == pytest.approx(before, rel=1e-4)
    bare = ListwiseRanker.from_pretrained(save_t5(tmp_path / "t5"), prompt=PROMPT)
    with pytest.raises(ConfigError, match="tuning: T5ForConditionalGeneration: an encoder with a"):
        tune(bare, {"type": "lora"})


def untuned(folder: Path, lists: list[tuple[str, list[str]]]) -> float:
    ranker = ListwiseRanker.from_pretrained(folder / "gpt2", prompt=PROMPT)
    return float(ranker.log_probabilities(lists)[0])


def test_a_list_with_two_grades_of_a_document_is_refused(tmp_path: Path) -> None:
    row = {"query": "gold", "documents": ["a", "b", "a"], "grades": [3, 2, 1], "doc_ids": [*"xyx"]}
    dataset = Dataset.from_memory(CORPUS, {"t": "x"}, {"t": {"d00": 1}}, split="train")
    with pytest.raises(DataError, match=r"documents\[2\] \('x'\) is in the list twice, with the g"):
        read(lines(tmp_path / "r.jsonl", [row]), dataset)
    same = {**row, "grades": [3, 2, 3]}
    (example,) = read(lines(tmp_path / "s.jsonl", [same]), dataset)
    assert [text.id for text in example.documents] == ["x", "y"]
