"""Experts from YAML: one for each dataset, or by a gate; trained, searched with, refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import Call
from small_world import write_marked

from sluice.encoders import DenseEncoder, ExpertEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import load_pipeline, train
from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig, checked
from sluice.retrieval.experiments.checks import check_experiment
from sluice.retrieval.experiments.training.checks import check_training

TRAINER = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1.0e-3}
MINED = {
    "type": "mined", "retriever": ["bm25", "self"], "per_query": 2, "mode": "naive", "refresh": 1,
}  # fmt: skip


def settings(folder: Path, bert: Path) -> dict[str, Any]:
    sets = [str(write_marked(folder / name, word)) for name, word in (("a", "red"), ("b", "blue"))]
    return {
        "dataset": sets[0], "output": str(folder / "out"),
        "train": {
            "mixed": {
                "datasets": sets,
                "encoder": {"type": "experts", "model": str(bert), "experts": ["a", "b"]},
                "loss": "info_nce", "negatives": MINED, "trainer": TRAINER,
                "evaluate": {"every": 2, "margin": 0.0},
            },
            "gated": {
                "encoder": {
                    "type": "experts", "model": str(bert), "experts": 2, "expert_layers": [2],
                },
                "tuning": {"type": "experts"}, "loss": "info_nce", "trainer": TRAINER,
            },
        },
        "retrievers": {
            "bm25": {"encoder": {"type": "bm25"}},
            "one": {"encoder": {"type": "experts", "model": "mixed", "expert": "a"}},
            "mean": {
                "encoder": {"type": "experts", "model": "mixed", "expert": "mean"},
                "encoding": {"cache": str(folder / "cache")},
            },
            "gated": {"encoder": {"type": "experts", "model": "gated"}},
        },
        "pipelines": {"one": "one", "gated": "gated", "all": "bm25 | one | mean"},
        "evaluate": {"measures": ["nDCG@10"], "baseline": "one", "latency_queries": 0},
    }  # fmt: skip


def test_a_journey(sluice: Call, tmp_path: Path, bert: Path) -> None:
    file, output = tmp_path / "x.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(settings(tmp_path, bert), sort_keys=False), encoding="utf-8")
    code, said, err = sluice("config", "check", file)
    assert code == 0, err
    assert "train mixed" in said
    code, _, err = sluice("run", file)
    assert code == 0, err
    systems = json.loads((output / "results.json").read_text())["systems"]
    assert {each["name"] for each in systems} == {"one", "gated", "all"}
    one, other = (
        ExpertEncoder.from_pretrained(output / "models" / "mixed", expert=name) for name in "ab"
    )
    first, second = (encoder.encode_queries(["gold", "the river"]) for encoder in (one, other))
    assert float(np.abs(first - second).max()) > 1e-4
    assert one.model.embeddings.word_embeddings.weight.equal(
        other.model.embeddings.word_embeddings.weight
    )
    card = (output / "models" / "mixed" / "README.md").read_text()
    assert "ExpertEncoder.from_pretrained(\"FOLDER\", expert='a')" in card
    assert "sentence_transformers" not in card
    gated = ExpertEncoder.from_pretrained(output / "models" / "gated")
    assert isinstance(gated, ExpertEncoder)
    plain = DenseEncoder.from_pretrained(bert)  # all but the experts stayed
    for name, parameter in gated.model.named_parameters():
        if name not in gated.expert_parameters():
            assert parameter.equal(plain.model.get_parameter(name))
    assert len(load_pipeline(output, "all").search("gold river", 5)) == 5
    code, _, err = sluice("verify", output)
    assert code == 0, err


@pytest.mark.thorough
def test_a_saved_mixture_is_trained_on(sluice: Call, tmp_path: Path, bert: Path) -> None:
    """On the same datasets it goes on; on one alone, or on others, it is refused, with the file."""
    facts = settings(tmp_path, bert)
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
        ({"datasets": ["a"]}, "and datasets names a; list them"),
        ({"datasets": ["a", "c"]}, "encoder.experts: 'b' is not a dataset of this training: a, c"),
        ({"datasets": ["a", "b", "c"]}, "encoder.experts: none for 'c', which is under datasets"),
        ({"encoder": {"experts": ["a", "a"]}}, "encoder.experts: 'a' is named twice"),
        ({"encoder": {"experts": ["a"]}}, "encoder.experts: .*one alone is a dense encoder"),
        ({"encoder": {"experts": 0}}, "encoder.experts is 0, expected a whole number"),
        ({"encoder": {"experts": None, "expert": "a"}}, "encoder.expert: names the one to search"),
        ({"encoder": {"expert_layer": [1]}}, "did you mean 'expert_layers'"),
        ({"sparsity": {"query": {"type": "l1", "weight": 1.0}}}, "sparsity: is for splade"),
        ({"head_learning_rate": 0.1}, "a dense encoder has no head"),
        ({"tuning": {"type": "iaa"}}, "tuning.type: iaa adds parts .* takes experts, bitfit"),
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
        ("gated", {"expert": "a"}, r"gated.encoder.expert: 'a'; gated has experts that a gate"),
    ],
)
def test_a_retriever_says_which_expert(
    bert: Path, tmp_path: Path, retriever: str, change: dict[str, Any], says: str
) -> None:
    facts = settings(tmp_path, bert)
    encoder = {**facts["retrievers"][retriever]["encoder"], **change}
    facts["retrievers"][retriever]["encoder"] = {k: v for k, v in encoder.items() if v is not None}
    with pytest.raises(ConfigError, match=says):
        check_experiment(checked(facts, ExperimentConfig))


def test_an_index_of_other_vectors_is_refused_before(bert: Path, tmp_path: Path) -> None:
    facts = settings(tmp_path, bert)
    facts["retrievers"]["one"]["index"] = {"type": "inverted"}
    with pytest.raises(ConfigError, match="holds sparse vectors; an experts encoder takes flat"):
        check_experiment(checked(facts, ExperimentConfig))
