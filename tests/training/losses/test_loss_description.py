"""How ``training.json`` names a loss: by type names, and as it did when modules stood there."""

import json
from typing import Any

import pytest
from torch import Tensor

from sluice.encoders.foundation.build import build
from sluice.training.losses import LOSSES
from sluice.training.losses.base import LossBase, as_loss, describe, renamed, type_name

ARGUMENTS: dict[str, dict[str, Any]] = {"sum": {"losses": [{"type": "info_nce"}]}}

# Written by the code of before, when a loss was named by its module.
KL_DIV = {
    "type": "training.losses.kl_div:KLDiv", "temperature": None, "teacher_temperature": 1.0,
    "direction": "forward", "rescaled": False, "similarity": "auto",
}  # fmt: skip
STAR = {
    "type": "training.losses.star:STAR", "temperature": None, "similarity": "auto",
    "negatives": "all",
}  # fmt: skip
SUM = {
    "type": "training.losses.weighted_sum:WeightedSum", "names": ["kl_div", "star"],
    "weights": [0.5, 1.0], "losses": [KL_DIV, STAR],
    "negatives": "all", "same_side": False, "similarity": "auto", "_parts": {},
}  # fmt: skip
QBD = {
    "type": "training.losses.qbd:QBD", "names": ["localized_softmax", "triplet"],
    "weights": [1.0, 0.1],
    "losses": [
        {"type": "training.losses.localized_softmax:LocalizedSoftmax"},
        {"type": "training.losses.qbd:TextTriplet", "margin": 1.0},
    ],
    "encoders": ["cross_encoder"], "negatives": "own", "same_side": False, "similarity": "auto",
    "_parts": {},
}  # fmt: skip
CLP = {
    "type": "training.losses.clp:CLP", "loss": {"type": "sum", "losses": [{"type": "star"}]},
    "penalty": 0.1,
}  # fmt: skip


def written(spec: dict[str, Any]) -> Any:
    return json.loads(json.dumps(describe(build(spec, LOSSES, where="loss"))))


@pytest.mark.parametrize(
    ("spec", "before"),
    [
        ({"type": "kl_div"}, KL_DIV),
        ({"type": "sum", "losses": [{"type": "kl_div", "weight": 0.5}, {"type": "star"}]}, SUM),
        ({"type": "qbd"}, QBD),
        ({"type": "clp", "loss": {"type": "sum", "losses": [{"type": "star"}]}}, CLP),
    ],
    ids=lambda value: value["type"],
)
def test_what_was_written_before_is_the_same_loss(spec: dict[str, Any], before: Any) -> None:
    now = written(spec)
    assert renamed(before) == now
    assert renamed(now) == now
    assert renamed({**before, "type": "sluice.training.losses.contrastive.pairs:BCE"}) != now


@pytest.mark.parametrize("name", LOSSES)
def test_no_module_is_named(name: str) -> None:
    description = written({"type": name, **ARGUMENTS.get(name, {})})
    assert description["type"] == name
    assert "sluice.training.losses" not in json.dumps(description)


class Own:
    """A user's own loss."""

    def __init__(self, heat: float) -> None:
        self.heat = heat

    def over(self, batch: Any) -> Tensor:
        return batch.scores().sum() * self.heat


class OwnTyped(LossBase):
    """A user's own loss, typed."""


def own_function(scores: Tensor, labels: Tensor, *_: Any) -> Tensor:
    return scores.sum()


def test_a_users_own_loss_is_named_as_in_yaml() -> None:
    assert describe(Own(2.0)) == describe(as_loss(Own(2.0))) == {
        "type": f"{__name__}:Own", "heat": 2.0,
    }  # fmt: skip
    assert type_name(own_function) == type_name(as_loss(own_function)) == f"{__name__}:own_function"
    assert type_name(OwnTyped()) == f"{__name__}:OwnTyped"
    assert renamed(describe(Own(2.0))) == describe(Own(2.0))
