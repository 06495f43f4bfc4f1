"""Concept encoders from YAML: trained with sparsity, served by the inverted index, explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Call
from small_world import SUBJECTS, write_beir

from sluice.encoders import ConceptEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import load_pipeline
from sluice.retrieval.config.sections import ExperimentConfig, TrainConfig, checked
from sluice.retrieval.experiments.checks import check_experiment
from sluice.retrieval.experiments.training.checks import check_training

TRAINER = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1.0e-3}


def settings(folder: Path, bert: Path) -> dict[str, Any]:
    names = folder / "concepts.txt"
    names.write_text("".join(f"{name}\n" for name in SUBJECTS))
    return {
        "dataset": str(write_beir(folder / "data")), "output": str(folder / "out"),
        "train": {
            "named": {
                "encoder": {
                    "type": "concepts", "model": str(bert), "vocabulary": str(names),
                    "threshold": 0.8,
                },
                "loss": {"type": "info_nce", "temperature": 1.0}, "head_learning_rate": 0.01,
                "sparsity": {"document": {"type": "flops", "weight": 0.01}}, "trainer": TRAINER,
            },
        },
        "retrievers": {
            "bm25": {"encoder": {"type": "bm25"}},
            "named": {
                "encoder": {"type": "concepts", "model": "named"},
                "index": {"type": "inverted", "fidelity": "u8"},
            },
        },
        "pipelines": {"named": "named", "both": "bm25 | named"},
        "evaluate": {"measures": ["nDCG@10"], "latency_queries": 0},
    }  # fmt: skip


def test_a_journey(sluice: Call, tmp_path: Path, bert: Path) -> None:
    facts = settings(tmp_path, bert)
    file, output = tmp_path / "x.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    code, said, err = sluice("config", "check", file)
    assert code == 0, err
    assert "index named" in said
    code, _, err = sluice("run", file)
    assert code == 0, err
    systems = json.loads((output / "results.json").read_text())["systems"]
    assert {each["name"] for each in systems} == {"named", "both"}
    model = output / "models" / "named"
    assert ConceptEncoder.from_pretrained(model).names == SUBJECTS
    card = (model / "README.md").read_text()
    assert "from sluice.encoders import ConceptEncoder\n" in card
    assert "sentence_transformers" not in card
    [hit] = load_pipeline(output, "named").search("gold river", 1)
    code, shown, err = sluice("explain", output / "retrievers" / "named", "gold river", hit.doc_id)
    assert code == 0, err
    assert any(name in shown for name in SUBJECTS)
    code, _, err = sluice("verify", output)
    assert (code, err) == (0, "")
    before = (model / "manifest.json").stat().st_mtime_ns
    Path(facts["train"]["named"]["encoder"]["vocabulary"]).write_text("gold\nriver\nwells\n")
    assert sluice("run", file)[0] == 0  # another list, another model
    assert (model / "manifest.json").stat().st_mtime_ns != before
    assert ConceptEncoder.from_pretrained(model).names == ("gold", "river", "wells")


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


def test_words_and_dense_indexes_are_refused(bert: Path, tmp_path: Path) -> None:
    facts = settings(tmp_path, bert)
    facts["retrievers"]["named"]["encoder"]["type"] = "splade"
    with pytest.raises(ConfigError, match=r"named\.encoder\.type: splade: .*write type: concepts"):
        check_experiment(checked(facts, ExperimentConfig))
    facts = settings(tmp_path, bert)
    facts["train"]["named"]["loss"] = "hoc"
    with pytest.raises(ConfigError, match="a concepts encoder, trained as splade, takes info_nce"):
        check_experiment(checked(facts, ExperimentConfig))
    facts = settings(tmp_path, bert)
    facts["retrievers"]["named"]["index"] = {"type": "flat"}
    with pytest.raises(ConfigError, match="holds dense vectors; a concepts encoder takes inverted"):
        check_experiment(checked(facts, ExperimentConfig))
