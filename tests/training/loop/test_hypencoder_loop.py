"""Training a Hypencoder: the same loop, cache, resume and refusals."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sluice.encoders import Hypencoder
from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.training import fit
from sluice.training.batches.scoring import TokenScoring
from sluice.training.loop.parts import choose_parts
from sluice.training.losses import LOSSES
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.losses.distillation.scores import MarginMSE
from sluice.training.rules import losses_for

JOB = {
    "trainer": {
        "max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 0.02, "save_steps": 2,
        "optim": "sgd", "logging_steps": 1, "use_cpu": True, "report_to": [], "warmup_steps": 0,
    }
}  # fmt: skip


def made(bert: Path, **options: Any) -> Hypencoder:
    """One without dropout."""
    encoder = Hypencoder.from_pretrained(
        bert, hidden_layers=1, projection=8, pooling="mean", device="cpu", **options
    )
    for part in encoder.module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return encoder


@pytest.fixture(scope="module")
def untrained(bert: Path) -> Hypencoder:
    return made(bert)


def weights_of(encoder: Hypencoder) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in encoder.module.state_dict().items()}


@pytest.mark.thorough
def test_the_cache_changes_nothing(bert: Path, tiny: ModuleType, tmp_path: Path) -> None:
    ends = []
    for cache in (None, 3):
        encoder = made(bert, product=True)
        output = tmp_path / str(cache)
        fit(encoder, tiny.examples(8), InfoNCE(), output=output, gradient_cache=cache, **JOB)
        ends.append(weights_of(encoder))
    start = weights_of(made(bert, product=True))
    for name in ("head.weights.1.base", "projection.linear.weight"):
        assert not torch.allclose(ends[0][name], start[name], atol=1e-4), name
    for name, value in ends[0].items():
        assert torch.allclose(value, ends[1][name], atol=2e-5), name


def test_a_resumed_training_is_the_undisturbed_one(
    bert: Path, tiny: ModuleType, tmp_path: Path
) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    examples = [replace(each, scores=(4.0, 1.0)) for each in tiny.examples(8)]
    whole = made(bert)
    fit(whole, examples, MarginMSE(), output=source, **JOB)
    shutil.copytree(source, copy)
    shutil.rmtree(copy / "checkpoint-4")
    resumed = made(bert, seed=9)
    report = fit(resumed, examples, MarginMSE(), output=copy, **JOB)
    assert report.resumed_step == 2
    for name, value in weights_of(whole).items():
        assert torch.equal(value, weights_of(resumed)[name]), name


OFFERED = [name for name in losses_for("hypencoder") if name not in ("adore", "clp", "psl")]


@pytest.mark.parametrize("name", OFFERED)
def test_losses_of_scores_have_a_gradient(
    untrained: Hypencoder, tiny: ModuleType, name: str
) -> None:
    spec: dict[str, Any] = {"type": name}
    if name == "sum":
        spec["losses"] = [{"type": "info_nce"}, {"type": "star", "weight": 0.5}]
    examples = [
        replace(each, scores=(5.0 + number % 3, 1.0, 2.0))
        for number, each in enumerate(tiny.examples(4, negatives=2))
    ]
    untrained.module.zero_grad()
    chosen = choose_parts(
        untrained, build(spec, LOSSES, where="loss"), live=False, sparse=False, seed=1
    )
    inputs = chosen.collator(examples)
    outputs = chosen.module(**inputs["features"])
    chosen.objective(None, None)(outputs, inputs, layers=1, step=1).backward()
    gradient = untrained.head.weights[0].base.grad
    assert gradient is not None
    assert gradient.abs().max() > 0


def test_other_settings_that_do_not_fit(untrained: Hypencoder) -> None:
    for name, options in (
        ("live candidates are for encoders of single", {"live": True, "sparse": False}),
        ("sparsity: is for splade", {"live": False, "sparse": True}),
    ):
        with pytest.raises(ConfigError, match=name):
            choose_parts(untrained, InfoNCE(), seed=1, **options)
    with pytest.raises(ConfigError, match="scoring: xtr: is for encoders of token vectors"):
        choose_parts(
            untrained, InfoNCE(), live=False, sparse=False, seed=1, scoring=TokenScoring("xtr")
        )
