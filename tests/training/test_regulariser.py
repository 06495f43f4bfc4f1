"""FLOPS, L1 and the ramp against hand values."""

import pytest
import torch

from encoders.errors import ConfigError
from training.regulariser import Regulariser, Sparsity, active_terms, flops, l1, ramp


def test_hand_values() -> None:
    x = torch.tensor([1.0, 2.0, 0.0])
    assert flops(x.expand(4, 3)).item() == pytest.approx(5.0)  # equal rows: the squared norm
    assert flops(torch.eye(4)).item() == pytest.approx(1 / 4)  # one-hot rows: 1 / B
    assert flops(torch.tensor([[1.0, 0.0]] * 4)).item() == pytest.approx(1.0)
    assert l1(torch.eye(4)).item() == l1(torch.tensor([[1.0, 0.0]] * 4)).item() == 1.0
    assert flops(torch.tensor([[1.0, 3.0], [2.0, 0.0]])).item() == pytest.approx(1.5**2 + 1.5**2)
    assert active_terms(torch.tensor([[1.0, 3.0], [2.0, 0.0]])).item() == 1.5


def test_ramp() -> None:
    assert [ramp(t, 10) for t in (0, 5, 10, 20)] == [0.0, 0.25, 1.0, 1.0]
    assert ramp(0, 0) == 1.0


def test_strength_counts_steps_of_a_share_or_steps() -> None:
    share = Regulariser(Sparsity.from_config({"ramp": 0.5}))
    share.begin(20)
    steps = Regulariser(Sparsity.from_config({"ramp": 10}))
    steps.begin(20)
    for _ in range(5):
        share.advance()
        steps.advance()
    assert share.strength == steps.strength == 0.25
    again = Regulariser(share.sparsity)
    again.restore(share.state())
    assert again.strength == 0.25


def test_penalty_of_both_sides() -> None:
    config = {"query": {"type": "l1", "weight": 2.0}, "document": {"type": "flops", "weight": 3.0}}
    regulariser = Regulariser(Sparsity.from_config({**config, "ramp": 0}))
    values = regulariser(torch.eye(2), torch.eye(4))
    assert {side: value.item() for side, value in values.items()} == {
        "query": 2.0,
        "document": 0.75,
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"querry": {}}, "did you mean 'query'"),
        ({"query": {"type": "flop", "weight": 1.0}}, "did you mean 'flops'"),
        ({"query": {"type": "flops"}}, "sparsity.query"),
        ({"document": {"type": "flops", "weight": "1e-4"}}, "sparsity.document.weight"),
        ({"ramp": -1}, "sparsity.ramp"),
        ({"ramp": 2.5}, "sparsity.ramp"),
    ],
)
def test_bad_settings(config: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sparsity.from_config(config)
