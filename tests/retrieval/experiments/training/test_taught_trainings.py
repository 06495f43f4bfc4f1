"""Trainings taught by several kinds of teachers at once, before it or batch by batch, from YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_training import BM25, TRAINER, short_training

from sluice.encoders import DenseEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.model_files.registry import open_encoder
from sluice.retrieval import Experiment, train
from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig, checked
from sluice.retrieval.experiments.training.checks import check_training

BOTH = {"type": "mined", "retriever": [BM25, "random"], "shares": [0.5, 0.5], "per_query": 2,
        "mode": "naive"}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path, bert: Path) -> dict[str, Any]:
    return short_training(tmp_path, bert, loss="kl_div", negatives=BOTH)


def logged(config: dict[str, Any]) -> list[dict[str, float]]:
    file = Path(config["output"]) / "training" / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line for line in lines if "loss" in line]


@pytest.mark.thorough
def test_a_list_of_teachers_scores_the_negatives_before(
    config: dict[str, Any], masked_bert: Path, pair_bert: Path
) -> None:
    config["teacher"] = ["bm25", {"type": "splade", "model": str(masked_bert)}, str(pair_bert)]
    folder = train(config)
    assert all(0 < line["teacher_entropy"] < 1 for line in logged(config))
    assert train(config) == folder  # made before


@pytest.mark.thorough
@pytest.mark.parametrize("cache", [None, 2])
def test_encoders_score_all_of_each_batch(
    config: dict[str, Any], masked_bert: Path, cache: int | None
) -> None:
    config |= {
        "loss": {"type": "kl_div", "negatives": "all", "teacher_temperature": 10.0},
        "teacher": ["bm25", {"type": "splade", "model": str(masked_bert)}],
        "gradient_cache": cache,
    }
    train(config)
    assert not list(Path(config["output"]).glob("training/teacher*"))  # nothing was scored before
    assert all(0 < line["teacher_entropy"] < 1 for line in logged(config))


@pytest.mark.thorough
def test_a_student_of_vectors_searches_its_teachers_documents(
    config: dict[str, Any], bert: Path, tmp_path: Path
) -> None:
    teacher = DenseEncoder.from_pretrained(bert, projection=24, seed=5)
    teacher.save_pretrained(tmp_path / "teacher")
    config |= {
        "encoder": {"type": "dense", "model": str(bert), "projection": 24},
        "loss": {"type": "alignment", "distance": "cosine"},
        "teacher": {"type": "dense", "model": str(tmp_path / "teacher")},
        "trainer": {**TRAINER, "max_steps": 60, "learning_rate": 1.0e-2},
    }
    student = open_encoder(train(config))
    texts = ["gold in the river", "deep water", "a stone"]
    near = (student.encode_queries(texts) * teacher.encode_queries(texts)).sum(1)
    before = DenseEncoder.from_pretrained(bert, projection=24, seed=13)
    far = (before.encode_queries(texts) * teacher.encode_queries(texts)).sum(1)
    assert (near > np.abs(far) + 0.2).all()
    assert logged(config)[-1]["loss"] < logged(config)[0]["loss"] / 3


@pytest.mark.thorough
def test_vectors_are_learnt_without_negatives(
    config: dict[str, Any], bert: Path, tmp_path: Path
) -> None:
    DenseEncoder.from_pretrained(bert, seed=5).save_pretrained(tmp_path / "teacher")
    config |= {"loss": "alignment", "teacher": str(tmp_path / "teacher")}
    del config["negatives"]
    train(config)
    (tmp_path / "pairs.csv").write_text("query,positive\ngold,gold in the river\n" * 4)
    train({**config, "examples": str(tmp_path / "pairs.csv")})


@pytest.mark.parametrize("teacher", ["bm25", [{"type": "bm25"}, "bm25"], "examples"])
def test_a_training_with_the_name_of_a_built_in_teacher_is_refused(
    config: dict[str, Any], teacher: Any
) -> None:
    name = "examples" if teacher == "examples" else "bm25"
    teacher = ["bm25", "examples"] if name == "examples" else teacher
    section = {k: v for k, v in config.items() if k not in ("dataset", "output")}
    first = {**section, "loss": "info_nce"}
    experiment = {
        **{key: config[key] for key in ("dataset", "output")},
        "retrievers": {"dense": {"encoder": {"type": "dense", "model": "second"}}},
        "train": {name: first, "second": {**section, "teacher": teacher}},
    }
    said = rf"train\.second\.teacher: {name} means .*, and train\.{name} has that name too; give"
    with pytest.raises(ConfigError, match=said):
        Experiment(checked(experiment, ExperimentConfig))
    experiment["train"] = {"first": first, "second": {**section, "teacher": teacher}}
    Experiment(checked(experiment, ExperimentConfig))


@pytest.mark.thorough
def test_soft_labels_teach_a_cross_encoder(
    config: dict[str, Any], pair_bert: Path, bert: Path
) -> None:
    config |= {
        "encoder": {"type": "cross_encoder", "model": str(pair_bert)},
        "loss": {"type": "bce", "target": "logits", "teacher_temperature": 5.0},
        "teacher": ["bm25", str(bert)],
    }
    train(config)
    assert all(np.isfinite(line["loss"]) for line in logged(config))
    plain = {**config, "loss": "bce"}
    with pytest.raises(ConfigError, match="teacher: bce learns nothing from a teacher's scores"):
        check_training(checked(plain, TrainConfig), "")


def test_graded_pairs_of_one_document_each_teach_angle(
    config: dict[str, Any], tmp_path: Path
) -> None:
    rows = [f"word{n} gold,the river {n},{n % 4 + 1}\n" for n in range(8)]
    (tmp_path / "g.csv").write_text("query,document,grade\n" + "".join(rows))
    del config["negatives"]
    config |= {"loss": "angle", "examples": {"file": str(tmp_path / "g.csv"), "format": "graded"}}
    train(config)
    assert all(line["loss"] > 0 for line in logged(config))
    (tmp_path / "g.csv").write_text("query,document,grade\nword,river,1\nother,sea,1\n")
    with pytest.raises(ConfigError, match="no row has a negative; angle learns"):
        train(config)
