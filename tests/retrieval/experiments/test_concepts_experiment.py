"""Concept encoders from YAML: trained with sparsity, served by the inverted index, explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kinds import Models, experiment

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig, checked
from sluice.retrieval.experiments.checks import check_experiment
from sluice.retrieval.experiments.training.checks import check_training

TRAINER = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1.0e-3}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"vocabulary": "nowhere.txt"}, "encoder.vocabulary: no file 'nowhere.txt'"),
        ({"vocabulary": "TWICE"}, r"encoder.vocabulary: .*concepts.txt:2: 'gold' is in line 1 too"),
        ({"read": "words"}, "encoder.read: 'words'"),
        ({"threshold": 2}, "encoder.threshold: 2, expected a cosine"),
        ({"vocabularly": "x"}, "did you mean 'vocabulary'"),
    ],
)
def test_a_training_run_that_cannot_be_is_refused_before(
    bert: Path, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    (tmp_path / "concepts.txt").write_text("gold\ngold\n")
    if change.get("vocabulary") == "TWICE":
        change = {"vocabulary": str(tmp_path / "concepts.txt")}
    encoder = {"type": "concepts", "model": str(bert), **change}
    base = {
        "dataset": "anywhere", "output": str(tmp_path), "trainer": TRAINER, "loss": "info_nce",
        "encoder": encoder,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=says):
        check_training(checked(base, TrainConfig), "")


def test_words_and_dense_indexes_are_refused(tmp_path: Path, models: Models) -> None:
    facts = experiment("concepts", tmp_path, models)
    facts["retrievers"]["named"]["encoder"]["type"] = "splade"
    with pytest.raises(ConfigError, match=r"named\.encoder\.type: splade: .*write type: concepts"):
        check_experiment(checked(facts, ExperimentConfig))
    facts = experiment("concepts", tmp_path, models)
    facts["train"]["named"]["loss"] = "hoc"
    with pytest.raises(ConfigError, match="a concepts encoder, trained as splade, takes info_nce"):
        check_experiment(checked(facts, ExperimentConfig))
    facts = experiment("concepts", tmp_path, models)
    facts["retrievers"]["named"]["index"] = {"type": "flat"}
    with pytest.raises(ConfigError, match="holds dense vectors; a concepts encoder takes inverted"):
        check_experiment(checked(facts, ExperimentConfig))
