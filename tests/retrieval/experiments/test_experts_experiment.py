"""Experts from YAML: one for each dataset, or by a gate; trained, searched with, refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Call
from kinds import Models, experiment
from small_world import write_marked

from sluice.encoders import ExpertEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import train
from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig, checked
from sluice.retrieval.experiments.checks import check_experiment
from sluice.retrieval.experiments.training.checks import check_training

TRAINER = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1.0e-3}


@pytest.mark.thorough
def test_a_saved_mixture_is_trained_on(sluice: Call, tmp_path: Path, models: Models) -> None:
    """On the same datasets it goes on; on one alone, or on others, it is refused, with the file."""
    facts = experiment("experts", tmp_path, models)
    base = {
        "datasets": facts["train"]["mixed"]["datasets"], "loss": "info_nce", "trainer": TRAINER,
        "encoder": facts["train"]["mixed"]["encoder"], "output": str(tmp_path / "first"),
    }  # fmt: skip
    model = train(base)
    again: dict[str, Any] = {
        **base,
        "output": str(tmp_path / "second"),
        "encoder": {"type": "experts"},
    }
    again["encoder"]["model"] = str(model)
    assert ExpertEncoder.from_pretrained(train(again), expert="b").dim == 32
    file = tmp_path / "third.yaml"
    for datasets, says in (
        ({"datasets": [base["datasets"][0]]}, "examples name none; train on several"),
        ({"dataset": base["datasets"][0], "datasets": None}, "examples name none; train on"),
        ({"datasets": [base["datasets"][0], str(write_marked(tmp_path / "c", "green"))]},
         "expert for each dataset, a, b, and none for 'c'"),
        ({"freeze": {"layers": 2}}, "freeze: the layers with experts are frozen"),
    ):  # fmt: skip
        changed = {**again, **datasets, "output": str(tmp_path / "third")}
        file.write_text(yaml.safe_dump({k: v for k, v in changed.items() if v is not None}))
        code, _, err = sluice("train", file)
        assert code == 2, err
        assert re.search(rf"{file.name}.*{says}", err), err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"datasets": None, "dataset": "a"}, "encoder.experts: there is an expert for each dataset,"
                                             " a, b, and datasets names none; list them under"),
        ({"encoder": {"experts": ["a", "a"]}}, "encoder.experts: 'a' is named twice"),
        ({"encoder": {"experts": ["a"]}}, "encoder.experts: .*one alone is a dense encoder"),
        ({"encoder": {"experts": 0}}, "encoder.experts is 0, expected a whole number"),
        ({"encoder": {"expert_layer": [1]}}, "did you mean 'expert_layers'"),
        ({"tuning": {"type": "iaa"}}, "tuning.type: iaa: adds parts .* take experts or bitfit"),
        ({"encoder": {"gate_learns": True}}, "encoder.gate_learns: experts names datasets"),
    ],
)  # fmt: skip
def test_a_training_run_that_cannot_be_is_refused_before(
    bert: Path, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    encoder = {"type": "experts", "model": str(bert), "experts": ["a", "b"]}
    base = {
        "datasets": ["a", "b"], "output": str(tmp_path), "trainer": TRAINER, "loss": "info_nce",
        **change, "encoder": {**encoder, **change.get("encoder", {})},
    }  # fmt: skip
    section = {key: value for key, value in base.items() if value is not None}
    with pytest.raises(ConfigError, match=says):
        check_training(checked(section, TrainConfig), "")


@pytest.mark.parametrize(
    ("retriever", "change", "says"),
    [
        ("one", {"expert": None}, r"retrievers.one.encoder.expert: missing: .* search with: a, b"),
        ("one", {"expert": "bb"}, r"expert: 'bb': mixed .* did you mean 'b'"),
        ("gated", {"expert": "a"}, r"gated.encoder.expert: 'a': gated has experts that a gate"),
    ],
)
def test_a_retriever_says_which_expert(
    tmp_path: Path, retriever: str, change: dict[str, Any], says: str, models: Models
) -> None:
    facts = experiment("experts", tmp_path, models)
    encoder = {**facts["retrievers"][retriever]["encoder"], **change}
    facts["retrievers"][retriever]["encoder"] = {k: v for k, v in encoder.items() if v is not None}
    with pytest.raises(ConfigError, match=says):
        check_experiment(checked(facts, ExperimentConfig))


def test_an_index_of_other_vectors_is_refused_before(tmp_path: Path, models: Models) -> None:
    facts = experiment("experts", tmp_path, models)
    facts["retrievers"]["one"]["index"] = {"type": "inverted"}
    with pytest.raises(ConfigError, match="holds sparse vectors; an experts encoder takes flat"):
        check_experiment(checked(facts, ExperimentConfig))
