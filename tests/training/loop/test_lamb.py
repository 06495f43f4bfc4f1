"""LAMB against its formula written out, and in a training."""

from __future__ import annotations

import math
import random
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sluice.encoders.foundation.errors import ConfigError
from sluice.training import fit
from sluice.training.loop.arguments import check_trainer
from sluice.training.loop.large_batches import Lamb
from sluice.training.losses.contrastive.pairs import STAR


def straight(
    weights: list[float], gradients: list[list[float]], lr: float, decay: float
) -> list[float]:
    """The weights after as many steps as there are gradients."""
    mean = [0.0] * len(weights)
    square = [0.0] * len(weights)
    for gradient in gradients:
        mean = [0.9 * m + 0.1 * g for m, g in zip(mean, gradient, strict=True)]
        square = [0.999 * v + 0.001 * g * g for v, g in zip(square, gradient, strict=True)]
        move = [
            m / (math.sqrt(v) + 1e-6) + decay * w
            for m, v, w in zip(mean, square, weights, strict=True)
        ]
        size, length = min(math.hypot(*weights), 10.0), math.hypot(*move)
        ratio = size / length if size > 0 and length > 0 else 1.0
        weights = [w - lr * ratio * r for w, r in zip(weights, move, strict=True)]
    return weights


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("start", [0.0, 0.3, 100.0], ids=["zero", "small", "beyond the bound"])
def test_the_formula(start: float, decay: float) -> None:
    drawn = random.Random(1)
    weights = [start * drawn.uniform(-1, 1) for _ in range(6)]
    gradients = [[drawn.gauss(0, 1) for _ in weights] for _ in range(5)]
    parameter = torch.nn.Parameter(torch.tensor(weights, dtype=torch.float64).reshape(2, 3))
    optimizer = Lamb([parameter], lr=0.01, weight_decay=decay)
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient, dtype=torch.float64).reshape(2, 3)
        optimizer.step()
    expected = torch.tensor(straight(weights, gradients, 0.01, decay), dtype=torch.float64)
    assert (parameter.detach().flatten() - expected).abs().max() < 1e-12


def test_a_tensor_without_gradient_or_with_none_but_zeros_stays() -> None:
    still, zero = (torch.nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2))
    zero.grad = torch.zeros(3, dtype=torch.float64)
    assert Lamb([still, zero]).step(lambda: 7) == 7
    assert still.tolist() == zero.tolist() == [1.0, 1.0, 1.0]


def test_it_goes_down_and_each_group_has_its_rate() -> None:
    one, other = (torch.nn.Parameter(torch.full((4,), 2.0)) for _ in range(2))
    optimizer = Lamb([{"params": [one], "lr": 0.0}, {"params": [other]}], lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        ((one**2).sum() + (other**2).sum()).backward()
        optimizer.step()
    assert (one == 2.0).all()
    assert other.abs().max() < 0.2


def job(**more: Any) -> dict[str, Any]:
    return {"max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 1e-2,
            "weight_decay": 0.01, "save_steps": 2, "save_total_limit": 9, **more}  # fmt: skip


def test_a_training_by_lamb_resumes_bit_for_bit(tiny: ModuleType, tmp_path: Path) -> None:
    ends = []
    for optim in ("lamb", "adamw_torch"):
        encoder = tiny.Dense()
        fit(encoder, tiny.examples(), STAR(), output=tmp_path / optim, trainer=job(optim=optim))
        ends.append(tiny.weights_of(encoder))
    assert any(not torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    shutil.rmtree(tmp_path / "lamb" / "checkpoint-6")
    shutil.rmtree(tmp_path / "lamb" / "checkpoint-4")
    again = tiny.Dense()
    report = fit(
        again, tiny.examples(), STAR(), output=tmp_path / "lamb", trainer=job(optim="lamb")
    )
    assert report.resumed_step == 2
    for name, value in tiny.weights_of(again).items():
        assert torch.equal(value, ends[0][name]), name


def test_the_keys_of_other_optimisers_are_refused() -> None:
    check_trainer({"optim": "lamb", "adam_beta1": 0.8})
    with pytest.raises(ConfigError, match=r"trainer.optim_args: lamb takes none"):
        check_trainer({"optim": "lamb", "optim_args": "clip=1"})
    with pytest.raises(ConfigError, match=r"trainer.optim: 'lam'.*did you mean 'lamb'"):
        check_trainer({"optim": "lam"})
