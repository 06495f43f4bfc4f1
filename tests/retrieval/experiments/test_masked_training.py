"""Middle training from YAML: texts alone, then retrieval training from its model."""

import json
from pathlib import Path
from typing import Any

import pytest
import small_world
import tiny_models

from sluice.encoders import SpladeEncoder
from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.datasets.dataset import load_dataset
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.training_data.files.corpus_examples import TextExamples

TRAINER = {
    "max_steps": 4, "per_device_train_batch_size": 8, "logging_steps": 2, "learning_rate": 1e-3,
}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_world.write_beir(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save_model(tmp_path_factory.mktemp("model"), "ForMaskedLM")


def settings(world: Path, model: Path, output: Path) -> dict[str, Any]:
    return {
        "dataset": str(world),
        "output": str(output),
        "train": {
            "middle": {
                "encoder": {"type": "splade", "model": str(model), "device": "cpu"},
                "loss": {"type": "masked_language"},
                "sparsity": {"target_doc_terms": 30},
                "evaluate": {"measures": ["nDCG@10"], "every": 2},
                "trainer": TRAINER,
            },
            "splade": {
                "encoder": {"type": "splade", "model": "middle", "device": "cpu"},
                "loss": {"type": "info_nce"},
                "trainer": {**TRAINER, "max_steps": 2},
            },
        },
        "retrievers": {
            "splade": {"encoder": {"type": "splade", "model": "splade", "device": "cpu"}}
        },
    }


@pytest.mark.thorough
def test_middle_training_feeds_the_next(world: Path, model: Path, tmp_path: Path) -> None:
    config = settings(world, model, tmp_path / "run")
    assert Experiment(checked(config, ExperimentConfig)).retriever("splade") is not None
    file = next((tmp_path / "run").rglob("middle/**/metrics.jsonl"))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    logged = [line for line in lines if "loss_masked_language" in line]
    assert [line["step"] for line in logged] == [2, 4]
    for name in ("active_terms_document", "sparsity_weight_document", "index_mb_per_million"):
        assert logged[0][name] is not None
    assert any("eval_nDCG@10" in line for line in lines)
    trained = next((tmp_path / "run").rglob("middle/**/model.safetensors")).parent
    assert SpladeEncoder.from_pretrained(trained, device="cpu").dim == len(tiny_models.vocabulary())


def test_texts_of_a_corpus(world: Path, tmp_path: Path) -> None:
    dataset = load_dataset(world, "train")
    made = TextExamples().examples(dataset, 0)
    assert [e.documents[0].id for e in made] == [d.id for d in dataset.corpus]
    assert made[1].documents[0].text == next(
        d.full_text for d in dataset.corpus if d.id == made[1].query.id
    )
    assert len(TextExamples(documents=3).examples(dataset, 0)) == 3
    empty = small_world.write_beir(tmp_path / "empty")
    lines = [json.loads(x) for x in (empty / "corpus.jsonl").read_text().splitlines()]
    blank = [json.dumps({**line, "title": "", "text": " "}) for line in lines]
    (empty / "corpus.jsonl").write_text("\n".join(blank) + "\n")
    with pytest.raises(DataError, match="no document of the corpus has a text"):
        TextExamples().examples(load_dataset(empty, "train"), 0)


def test_corpus_needs_no_training_queries(world: Path, model: Path, tmp_path: Path) -> None:
    bare = small_world.write_beir(tmp_path / "bare")
    for split in ("train", "dev"):
        (bare / "qrels" / f"{split}.tsv").unlink()
    config = settings(bare, model, tmp_path / "run")
    middle = config["train"]["middle"]
    del middle["evaluate"]
    middle["trainer"] = {**TRAINER, "max_steps": 1}
    config["retrievers"]["splade"]["encoder"]["model"] = "middle"
    del config["train"]["splade"]
    assert Experiment(checked(config, ExperimentConfig)).retriever("splade") is not None
