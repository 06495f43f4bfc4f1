"""Every loss of the table keeps the rules that ``sluice.retrieval.testing`` ships."""

import inspect
from typing import Any

import pytest

from sluice.encoders.foundation.build import build
from sluice.retrieval.testing import check_loss
from sluice.retrieval.testing.loss_batches import takes_scores
from sluice.training.losses import LOSSES
from sluice.training.losses.base import LossBase

# What a loss needs to be made, or to have no order of its own among the columns.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "adore": {"ranks": "scores"},
    "matryoshka": {"dims": [16, 8]},
    "matryoshka_2d": {"dims": [16, 8]},
    "momentum_queue": {"modes": [], "size": 8},
    "soft_top_k": {"k": 1},
    "sum": {"losses": [{"type": "info_nce"}, {"type": "star", "weight": 0.5}]},
}
SKIP: dict[str, tuple[str, ...]] = {
    # It aligns every text, judged or not.
    "alignment": ("mask", "row_alone"),
    # They look at every text, judged or not.
    "hoc": ("mask", "row_alone"),
    "simplex": ("mask", "row_alone"),
    # It aligns the layers of every text, judged or not, with a target that has no gradient.
    "matryoshka_2d": ("gradient", "mask", "row_alone"),
    "mixing": ("order",),  # it mixes by a draw for each place
    "mnr_plus": ("row_alone",),  # a query is compared with every positive, and with the others
    "momentum_queue": ("row_alone",),  # a query is held against the others too
}


# `grl` binds the decoder that it trains, and there is none in a batch of vectors: test_grl.
@pytest.mark.parametrize("name", [name for name in LOSSES if name != "grl"])
def test_losses_of_the_table(name: str) -> None:
    spec = {"type": name, **ARGUMENTS.get(name, {})}
    check_loss(lambda: build(spec, LOSSES, where="loss"), skip=SKIP.get(name, ()))


@pytest.mark.parametrize("name", LOSSES)
def test_losses_say_what_they_are(name: str) -> None:
    loss = build({"type": name, **ARGUMENTS.get(name, {})}, LOSSES, where="loss")
    assert isinstance(loss, LossBase)
    assert inspect.getdoc(type(loss))
    assert takes_scores(loss) or type(loss).over is not LossBase.over
