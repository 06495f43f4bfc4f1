"""Training a pseudo-query encoder: the same loop, cache, resume and refusals."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sluice.encoders import PseudoQueryEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.training import fit
from sluice.training.batches.scoring import AttentionScoring, TokenScoring
from sluice.training.loop.parts import choose_parts
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.losses.distillation.scores import KLDiv, MarginMSE

JOB = {
    "trainer": {
        "max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 0.01, "save_steps": 2,
        "optim": "sgd", "logging_steps": 1, "use_cpu": True, "report_to": [], "warmup_steps": 0,
    }
}  # fmt: skip


def made(bert: Path, **options: Any) -> PseudoQueryEncoder:
    """One without dropout."""
    encoder = PseudoQueryEncoder.from_pretrained(
        bert, centroids=3, projection=8, device="cpu", **options
    )
    for part in encoder.module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return encoder


@pytest.fixture(scope="module")
def untrained(bert: Path) -> PseudoQueryEncoder:
    return made(bert)


def weights_of(encoder: PseudoQueryEncoder) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in encoder.module.state_dict().items()}


@pytest.mark.thorough
def test_the_cache_and_a_kill_change_nothing(bert: Path, tiny: ModuleType, tmp_path: Path) -> None:
    examples = [replace(each, scores=(4.0, 1.0)) for each in tiny.examples(8)]
    whole, cached = made(bert), made(bert)
    fit(whole, examples, MarginMSE(), output=tmp_path / "whole", **JOB)
    fit(cached, examples, MarginMSE(), output=tmp_path / "cached", gradient_cache=3, **JOB)
    start, end = weights_of(made(bert)), weights_of(whole)
    name = "projection.linear.weight"
    assert not torch.allclose(end[name], start[name], atol=1e-4)
    for name, value in weights_of(cached).items():
        assert torch.allclose(value, end[name], atol=2e-5), name
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "checkpoint-4")
    resumed = made(bert, seed=9)
    report = fit(resumed, examples, MarginMSE(), output=tmp_path / "killed", **JOB)
    assert report.resumed_step == 2
    for name, value in weights_of(resumed).items():
        assert torch.equal(value, end[name]), name


@pytest.mark.parametrize("loss", [InfoNCE(), KLDiv()], ids=lambda each: type(each).__name__)
def test_losses_of_scores_reach_both_sides(
    untrained: PseudoQueryEncoder, tiny: ModuleType, loss: Any
) -> None:
    examples = [
        replace(each, scores=(5.0 + number % 3, 1.0, 2.0))
        for number, each in enumerate(tiny.examples(4, negatives=2))
    ]
    chosen = choose_parts(untrained, loss, live=False, sparse=False, seed=1)
    assert chosen.scoring == AttentionScoring()
    inputs = chosen.collator(examples)
    outputs = chosen.module(**inputs["features"])
    assert outputs["document"].shape == (12, 3, 8)
    for side in ("query", "document"):
        outputs[side].retain_grad()
    chosen.objective(None, None)(outputs, inputs, layers=1, step=1).backward()
    for side in ("query", "document"):
        assert outputs[side].grad.abs().max() > 0


def test_other_settings_that_do_not_fit(untrained: PseudoQueryEncoder) -> None:
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
