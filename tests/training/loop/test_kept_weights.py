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
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.protocol import DevMeasures

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


def test_nothing_is_kept_that_nobody_judged(
    tiny: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "sluice"):
        weights, report = trained(tiny, tmp_path, Measured(tiny, 0.5, 0.6, 0.9), judged=False)
    assert "no judgement says that it helped: the gain of +0.4000" in caplog.text
    assert (report.best_step, report.best_value, report.share) == (0, 0.5, 0.0)
    assert report.gain == pytest.approx(0.4)
    assert same(weights, tiny.weights_of(tiny.Dense()))


def test_unjudged_queries_choose_between_the_start_and_the_smallest_share(
    tiny: ModuleType, tmp_path: Path
) -> None:
    # the start, steps 2 and 4, then the shares .25 and .5
    measured = Measured(tiny, 0.5, 0.6, 0.9, 0.55, 0.8)
    weights, report = trained(tiny, tmp_path / "a", measured, judged=False, shares=[0.5, 0.25])
    assert (report.share, report.best_value) == (0.25, 0.55)
    start, end = measured.weights[0], measured.weights[2]
    for name, value in weights.items():
        assert torch.allclose(value, start[name] + 0.25 * (end[name] - start[name])), name
    worse = Measured(tiny, 0.5, 0.6, 0.9, 0.45, 0.8)
    _, report = trained(tiny, tmp_path / "b", worse, judged=False, shares=[0.5, 0.25])
    assert (report.share, report.best_value) == (0.0, 0.5)


@pytest.mark.parametrize("judged", [True, False])
def test_with_sparsity_only_judged_queries_choose_a_checkpoint(
    tiny: ModuleType, tmp_path: Path, judged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    measured = Measured(tiny, 0.5, 0.9, 0.7)  # the start, steps 2 and 4
    settings = {
        "sparsity": {"document": {"type": "flops", "weight": 1e-3}},
        "patience": None if judged else 1,
        "judged": judged,
    }
    weights, report = trained(tiny, tmp_path, measured, encoder=tiny.Splade(), **settings)
    kept = (2, 0.9) if judged else (4, 0.7)
    assert (report.steps, (report.best_step, report.best_value)) == (4, kept)
    assert same(weights, measured.weights[1 if judged else 2])
    assert ("evaluate.patience: nobody judged the dev queries" in caplog.text) != judged
    again, loaded = trained(tiny, tmp_path, pytest.fail, encoder=tiny.Splade(seed=9), **settings)
    assert (loaded.best_step, loaded.best_value) == kept
    assert same(again, weights)


@pytest.mark.parametrize(("last", "share"), [(0.4, 0.0), (0.8, 1.0)])
def test_without_checkpoints_the_last_weights_are_compared_with_the_start(
    tiny: ModuleType, tmp_path: Path, last: float, share: float
) -> None:
    # the start, steps 2 and 4, the end again, then the share .5
    measured = Measured(tiny, 0.5, 0.9, last, last, 0.3)
    encoder = tiny.Dense()
    report = fit(
        encoder, tiny.examples(16), InfoNCE(), output=tmp_path, evaluate=measured,
        trainer={**SETTINGS, "save_strategy": "no"}, evaluate_every=2, shares=[0.5],
    )  # fmt: skip
    assert (report.share, report.best_value) == (share, max(0.5, last))
    assert report.best_step == (4 if share else 0)
    assert same(tiny.weights_of(encoder), measured.weights[3 if share else 0])


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


class ByQuery(Measured):
    """Gives every query's values, one evaluation after the other."""

    def __init__(self, tiny: ModuleType, *values: list[float]) -> None:
        super().__init__(tiny, *(sum(each) / len(each) for each in values))
        self.by_query = values

    def __call__(self, encoder: Any) -> dict[str, float]:
        means = super().__call__(encoder)
        return DevMeasures(means, self.by_query[len(self.weights) - 1])


def test_a_gain_within_a_standard_error_is_not_kept(
    tiny: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # differences .5, -.3, .1: mean .1, standard error .4 / sqrt(3) = .2309
    values = [0.2, 0.6, 0.4], [0.7, 0.3, 0.5], [0.1, 0.1, 0.1]
    with caplog.at_level(logging.WARNING, "sluice"):
        weights, report = trained(tiny, tmp_path, ByQuery(tiny, *values))
    assert "the gain of +0.1000 ± 0.2309 on 3 dev queries is no more than chance" in caplog.text
    assert (report.best_step, report.share) == (0, 0.0)
    assert report.best_value == pytest.approx(0.4)
    assert (report.gain, report.error) == (pytest.approx(0.1), pytest.approx(0.4 / 3**0.5))
    assert same(weights, tiny.weights_of(tiny.Dense()))
    _, again = trained(tiny, tmp_path, pytest.fail)  # the values are kept beside the checkpoints
    assert (again.share, again.error) == (0.0, report.error)
    for margin, share in ((0.0, 1.0), (0.43, 1.0), (0.44, 0.0)):
        assert trained(tiny, tmp_path, pytest.fail, margin=margin)[1].share == share


def test_a_gain_of_every_query_is_kept(tiny: ModuleType, tmp_path: Path) -> None:
    values = [0.2, 0.6], [0.3, 0.7], [0.1, 0.1], [0.45, 0.7]
    _, report = trained(tiny, tmp_path, ByQuery(tiny, *values), shares=[0.5])
    assert (report.best_step, report.share) == (2, 0.5)
    assert (report.gain, report.error) == (pytest.approx(0.175), pytest.approx(0.075))


def test_one_dev_query_proves_nothing(tiny: ModuleType, tmp_path: Path) -> None:
    _, report = trained(tiny, tmp_path, ByQuery(tiny, [0.1], [0.9], [0.2]))
    assert report.share == 0.0
    assert trained(tiny, tmp_path, pytest.fail, margin=0)[1].share == 1.0


def test_a_margin_below_zero_is_refused(tiny: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"evaluate\.margin: -1, expected 0 or more"):
        trained(tiny, tmp_path, Measured(tiny, 0.1), margin=-1)
