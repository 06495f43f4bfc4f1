"""Static embeddings from YAML to results: trained, indexed, searched, as a tower of queries."""

import json
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers.base.modules import Normalize
from small_world import write_beir
from static_embeddings import DIM, save_static

from sluice.encoders import StaticEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import Retriever, run
from sluice.retrieval.config.sections import TrainConfig, checked
from sluice.retrieval.experiments.training.checks import check_training

TRAINER = {"max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 0.05}
LOSS = {"loss": {"type": "info_nce"}, "trainer": {**TRAINER, "logging_steps": 1}}


def test_static_embeddings_are_trained_and_searched(tmp_path: Path, bert: Path) -> None:
    save_static(tmp_path / "m", Normalize())
    static = {"type": "static", "model": str(tmp_path / "m")}
    small = {"type": "dense", "model": str(bert), "projection": DIM}
    towers = {"type": "towers", "query": static, "document": small}
    config = {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        "train": {"one": {"encoder": static, **LOSS}, "two": {"encoder": towers, **LOSS}},
        "retrievers": {
            "before": {"encoder": static},
            "after": {"encoder": {"type": "static", "model": "one"}},
            "both": {"encoder": {"type": "towers", "model": "two"}},
        },
        "evaluate": {"measures": ["nDCG@10"], "latency_queries": 2},
    }
    run(config)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {system["name"] for system in results["systems"]} == {"before", "after", "both"}
    retriever = Retriever.open(tmp_path / "out" / "retrievers" / "after")
    assert isinstance(retriever.encoder, StaticEncoder)
    assert retriever.search("gold river", k=3)
    assert retriever.search("日本", k=3) is not None
    card = (tmp_path / "out" / "models" / "one" / "README.md").read_text()
    assert "StaticEncoder.from_pretrained" in card
    assert "SentenceTransformer(" in card


def test_what_static_embeddings_have_not(tmp_path: Path) -> None:
    save_static(tmp_path / "m")
    base: dict[str, Any] = {
        "dataset": "anywhere", "output": str(tmp_path), **LOSS,
        "encoder": {"type": "static", "model": str(tmp_path / "m")},
    }  # fmt: skip
    check_training(checked(base, TrainConfig), "")
    for change, words in (
        ({"tuning": {"type": "lora"}}, "tuning.type: lora: a static encoder has no network"),
        ({"encoder": {**base["encoder"], "pooling": "mean"}}, r"encoder\.pooling"),
        ({"encoder": {**base["encoder"], "projection": 0}}, r"encoder\.projection"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_training(checked({**base, **change}, TrainConfig), "")
