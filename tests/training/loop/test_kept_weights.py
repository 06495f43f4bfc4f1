"""What a training ends with: never less on dev than its start."""

from __future__ import annotations

import logging
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sluice.encoders.foundation.errors import ConfigError
from sluice.training import fit
from sluice.training.losses.contrastive.info_nce import InfoNCE

SETTINGS = {"per_device_train_batch_size": 4, "learning_rate": 1e-3, "max_steps": 4}


class Measured:
    """Gives values one after the other and keeps the weights that each was given for."""

    def __init__(self, tiny: ModuleType, *values: float) -> None:
        self.tiny = tiny
        self.values = values
        self.weights: list[dict[str, torch.Tensor]] = []

    def __call__(self, encoder: Any) -> dict[str, float]:
        self.weights.append(self.tiny.weights_of(encoder))
        return {"nDCG@10": self.values[len(self.weights) - 1]}


def trained(tiny: ModuleType, output: Path, measured: Any, **settings: Any) -> tuple[Any, Any]:
    encoder = settings.pop("encoder", None) or tiny.Dense()
    report = fit(
        encoder, tiny.examples(16), InfoNCE(), output=output, trainer=SETTINGS,
        evaluate=measured, evaluate_every=2, **settings,
    )  # fmt: skip
    return tiny.weights_of(encoder), report


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def test_a_start_that_training_harms_is_kept(
    tiny: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    measured = Measured(tiny, 0.5, 0.4, 0.3)
    with caplog.at_level(logging.WARNING, "sluice"):
        weights, report = trained(tiny, tmp_path, measured)
    assert "training: did not help: the dev measure is 0.5000 at the start" in caplog.text
    assert (report.best_step, report.best_value, report.share) == (0, 0.5, 0.0)
    assert same(weights, tiny.weights_of(tiny.Dense()))
    assert not same(measured.weights[0], measured.weights[-1])
    again, loaded = trained(tiny, tmp_path, pytest.fail, encoder=tiny.Dense(seed=9))
    assert (loaded.best_step, loaded.best_value) == (0, 0.5)
    assert same(again, weights)


def test_equal_on_dev_is_the_start(tiny: ModuleType, tmp_path: Path) -> None:
    _, report = trained(tiny, tmp_path, Measured(tiny, 0.5, 0.5, 0.4))
    assert report.share == 0.0


def test_weights_between_are_tried(tiny: ModuleType, tmp_path: Path) -> None:
    measured = Measured(tiny, 0.1, 0.4, 0.3, 0.45, 0.6)
    weights, report = trained(tiny, tmp_path, measured, shares=[0.75, 0.25])
    assert (report.best_step, report.best_value, report.share) == (2, 0.6, 0.75)
    start, best = measured.weights[0], measured.weights[1]
    for share, found in ((0.25, measured.weights[3]), (0.75, weights)):
        for name, value in found.items():
            expected = (1 - share) * start[name].double() + share * best[name].double()
            torch.testing.assert_close(value.double(), expected, rtol=0, atol=1e-6)
    again, loaded = trained(tiny, tmp_path, pytest.fail, shares=[0.75, 0.25])
    assert loaded.share == 0.75
    assert same(again, weights)
    later = Measured(tiny, 0.7)  # a share that was not tried is, and one left out is no candidate
    _, other = trained(tiny, tmp_path, later, shares=[0.5])
    assert (other.share, other.best_value, len(later.weights)) == (0.5, 0.7, 1)
    assert trained(tiny, tmp_path, pytest.fail)[1].share == 1.0


def test_the_best_is_kept_where_nothing_between_is_better(tiny: ModuleType, tmp_path: Path) -> None:
    measured = Measured(tiny, 0.1, 0.4, 0.3, 0.2)
    weights, report = trained(tiny, tmp_path, measured, shares=[0.5])
    assert (report.best_step, report.share) == (2, 1.0)
    assert same(weights, measured.weights[1])


def test_a_sparse_encoder_keeps_its_terms(tiny: ModuleType, tmp_path: Path) -> None:
    settings = {**tiny.JOB, "encoder": tiny.Splade()}
    settings.pop("trainer", None)
    _, report = trained(tiny, tmp_path, Measured(tiny, 0.9, 0.4, 0.3), **settings)
    assert (report.best_step, report.share) == (2, 1.0)
    assert report.history[0]["eval_nDCG@10"] == 0.9  # it is measured all the same


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evaluate": None, "evaluate_every": None}, "shares: needs a dev evaluation"),
        ({"sparsity": {"document": {"weight": 1e-3}}}, "shares: does not go with sparsity"),
        ({"shares": [1.0]}, "expected numbers between 0 and 1"),
    ],
)
def test_shares_that_cannot_be_tried(
    tiny: ModuleType, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    settings = {"evaluate": lambda _: {"nDCG@10": 0.5}, "shares": [0.5], **settings}
    with pytest.raises(ConfigError, match=message):
        fit(tiny.Dense(), tiny.examples(16), InfoNCE(), output=tmp_path, **settings)
