"""Whole trainings with losses that keep a state: resumed as if undisturbed, and saved."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import save_model
from vector_batches import examples

from sluice.encoders import DenseEncoder
from sluice.encoders.dense.error_adapter import PairHead
from sluice.encoders.foundation.build import build
from sluice.encoders.model_files.layout import SIDECAR, read_object
from sluice.training import fit
from sluice.training.losses import LOSSES
from sluice.training.protocol import Example

INFO = {"type": "info_nce", "temperature": 0.1}
LOSSES_HERE = {
    "matryoshka": {"dims": [32, 8], "loss": INFO},
    "matryoshka_2d": {"dims": [32, 8], "loss": INFO},
    "espresso": {"type": "matryoshka_2d", "method": "ese", "compression": 8},
    "mixing": {"loss": INFO, "distillation": 0.5},
    "clp": {},
    "misfits": {"weight": 0.5},
    "momentum_queue": {"size": 12, "momentum": 0.9},
    "dse": {"hidden": 8, "head_learning_rate": 0.01},
    "rrra": {"top": 2, "head_learning_rate": 0.01},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("fit") / "bert", "Model", num_hidden_layers=3)


def taught(misfits: bool = False) -> list[Example]:
    """Examples with a teacher's scores, and queries that their negatives answer.

    With ``misfits`` most have queries too that their positives do not answer.
    """
    made = examples(12, 2)
    return [
        Example(
            e.query, e.documents, e.labels, scores=(2.0, -1.0, 0.1 * row),
            answered=("", f"query {(row + 1) % 12}", ""),
            negative_queries=(f"other query {row}", "wrong")[: row % 3] if misfits else (),
        )
        for row, e in enumerate(made)
    ]  # fmt: skip


def trained(model: Path, spec: dict[str, Any], output: Path) -> tuple[DenseEncoder, Any, Any]:
    encoder = DenseEncoder.from_pretrained(model)
    loss = build(spec, LOSSES, where="loss")
    report = fit(
        encoder, taught("negative_queries" in loss.wants), loss, output=output,
        trainer={
            "num_train_epochs": 2, "per_device_train_batch_size": 4, "learning_rate": 1e-3,
            "save_steps": 3, "logging_steps": 1, "save_total_limit": 5,
        },
    )  # fmt: skip
    return encoder, loss, report


@pytest.mark.thorough
@pytest.mark.parametrize("name", LOSSES_HERE)
def test_a_resumed_training_ends_like_the_undisturbed(
    model: Path, tmp_path: Path, name: str
) -> None:
    spec = {"type": name, **LOSSES_HERE[name]}
    whole, loss, report = trained(model, spec, tmp_path / "whole")
    assert report.steps == 6
    assert all(np.isfinite(line["loss"]) for line in report.history if "loss" in line)
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "checkpoint-6")
    resumed, other, again = trained(model, spec, tmp_path / "killed")
    assert again.resumed_step == 3
    for one, two in zip(whole.module.parameters(), resumed.module.parameters(), strict=True):
        assert torch.equal(one, two)
    state = other.state()
    assert all(torch.equal(value, state[key]) for key, value in loss.state().items())


@pytest.mark.thorough
def test_what_training_leaves_beside_the_model(
    model: Path, tmp_path: Path, texts: list[str]
) -> None:
    nested = {
        "type": "matryoshka", "dims": [32, 8], "loss": {"type": "clp", "loss": INFO},
    }  # fmt: skip
    encoder, loss, report = trained(model, nested, tmp_path / "prefixes")
    assert "clp_drift" in report.history[0]
    encoder.save_pretrained(tmp_path / "short")
    loss.save(tmp_path / "short")
    assert read_object(tmp_path / "short" / SIDECAR)["matryoshka_dims"] == [32, 8]
    headed = {"type": "dse", "task": "vectors", "loss": INFO, "hidden": 8}
    encoder, loss, _ = trained(model, headed, tmp_path / "head")
    start = build(headed, LOSSES, where="loss")
    start.bind(encoder, 13)
    encoder.save_pretrained(tmp_path / "pairs")
    loss.save(tmp_path / "pairs")
    head = PairHead.load(tmp_path / "pairs")
    assert not torch.equal(head.inner.weight, start.head.inner.weight)  # it was trained
    vectors = DenseEncoder.from_pretrained(tmp_path / "pairs").encode_documents(texts)
    assert head.score(vectors, vectors).shape == (len(texts),)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["matryoshka_2d", "espresso", "clp", "misfits", "momentum_queue"])
def test_a_gradient_cache_changes_nothing(tmp_path: Path, name: str) -> None:
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = save_model(tmp_path / "bert", "Model", num_hidden_layers=3, **still)
    weights = []
    for cache in (None, 3):
        encoder = DenseEncoder.from_pretrained(model)
        loss = build({"type": name, **LOSSES_HERE[name]}, LOSSES, where="loss")
        settings = {"max_steps": 2, "per_device_train_batch_size": 6, "learning_rate": 1e-3}
        fit(
            encoder, taught(name == "misfits"), loss, output=tmp_path / str(cache),
            trainer={**settings, "optim": "sgd"}, gradient_cache=cache,
        )  # fmt: skip
        weights.append([p.detach().clone() for p in encoder.module.parameters()])
    for one, two in zip(*weights, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
