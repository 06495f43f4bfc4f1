"""What losses around another loss share: hooks passed on, settings checked, masks kept."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from vector_batches import INFO, Sixteen, examples, gradients, made, random_batch

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.tuning.learning import SCORED
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses import LOSSES
from sluice.training.losses.composed.matryoshka import Matryoshka
from sluice.training.losses.composed.members import Wrapping
from sluice.training.losses.own.negatives import CLP, Mixing


class Told:
    """An inner loss with every hook, which writes down what it is told."""

    forms = ("dense",)
    negatives = "own"
    same_side = False
    similarity = "auto"
    needs_teacher = True
    wants = frozenset({"answered", "texts"})
    learning_rate = 0.5

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.weight = nn.Parameter(torch.ones(1))

    def bound_to(self, similarity: str) -> "Told":
        self.heard.append(("bound_to", similarity))
        return self

    def layers(self, step: int) -> tuple[int, ...]:
        return (3, step)

    def bind(self, encoder: Any, seed: int) -> None:
        self.heard.append(("bind", seed))

    def bind_counts(self, counts: Any) -> None:
        self.heard.append(("counts", counts))

    def parameters(self) -> list[nn.Parameter]:
        return [self.weight]

    def state(self) -> dict[str, Tensor]:
        return {"step": torch.tensor(7), "weight": self.weight.detach()}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.heard.append(("restore", sorted(state)))

    def advance(self, step: int) -> None:
        self.heard.append(("advance", step))

    def notes(self) -> dict[str, float]:
        return {"told": 1.0}

    def save(self, folder: Any) -> None:
        self.heard.append(("save", str(folder)))

    def over(self, batch: VectorBatch) -> Tensor:
        return batch.scores().sum() * self.weight.sum()


@pytest.mark.parametrize("kind", [Wrapping, Matryoshka, CLP, Mixing])
def test_every_hook_reaches_the_inner_loss(kind: type[Wrapping], tmp_path: Path) -> None:
    inner = Told()
    loss: Any = kind(inner)
    assert loss.forms == ("dense",)
    assert (loss.negatives, loss.same_side, loss.similarity) == ("own", False, "auto")
    assert loss.needs_teacher
    assert loss.wants == {"answered", "texts"}
    assert loss.learning_rate == 0.5
    assert loss.layers(2) == (3, 2)
    loss = loss.bound_to("dot")
    loss.bind(Sixteen(), 4)
    loss.bind_counts({"d": 1})
    assert list(loss.parameters()) == [inner.weight]
    state = loss.state()
    loss.advance(9)
    assert loss.step == 9
    loss.restore(state)
    assert loss.step == 0
    assert loss.notes()["told"] == 1.0
    loss.save(tmp_path)
    assert inner.heard == [
        ("bound_to", "dot"), ("bind", 4), ("counts", {"d": 1}), ("advance", 9),
        ("restore", ["step", "weight"]), ("save", str(tmp_path)),
    ]  # fmt: skip


class Bare:
    """An inner loss without any hook."""

    def __call__(
        self, scores: Tensor, labels: Tensor, mask: Any = None, weights: Any = None,
        teacher: Any = None,
    ) -> Tensor:  # fmt: skip
        return scores.sum()


def test_what_the_inner_loss_lacks_the_wrapper_lacks() -> None:
    loss: Any = Wrapping(Bare())
    assert (loss.forms, loss.similarity, loss.layers) == (SCORED, "auto", None)
    assert (loss.negatives, loss.same_side, loss.needs_teacher) == ("all", False, False)
    assert loss.learning_rate is None
    loss.bind(Sixteen(), 1)
    loss.advance(1)
    loss.restore(loss.state())
    assert list(loss.parameters()) == []
    assert loss.notes() == {}
    assert loss.bound_to("cosine") is loss
    assert Matryoshka(Bare()).forms == ("dense", "tokens")


def test_the_decided_similarity_is_the_inner_losss() -> None:
    loss = made("matryoshka", loss={"type": "info_nce"})
    assert loss.similarity == "auto"
    for similarity in ("dot", "cosine"):  # again, for another encoder
        assert loss.bound_to(similarity) is loss
        assert loss.similarity == similarity
    named = made("matryoshka", loss={"type": "info_nce", "similarity": "cosine"})
    assert named.bound_to("dot").similarity == "cosine"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"type": "matryoshka", "loss": {"type": "info_nce", "temprature": 1}}, "temperature"),
        ({"type": "matryoshka", "loss": {"type": "bce"}}, "BCE trains cross_encoder"),
        ({"type": "clp", "loss": "info_nce"}, r"expected \{type: name"),
        ({"type": "matryoshka", "dims": []}, "different whole numbers"),
        ({"type": "matryoshka", "dims": [8, 8]}, "different whole numbers"),
        ({"type": "matryoshka", "dims": [8, 0]}, "different whole numbers"),
        ({"type": "matryoshka", "dims": [8], "weights": [1.0, 2.0]}, "one for each of dims"),
        ({"type": "matryoshka", "weights": [1.0]}, "one for each of dims"),
        ({"type": "matryoshka", "dims": [8], "weights": [-1.0]}, "expected 0 or more"),
        ({"type": "matryoshka_2d", "method": "v3"}, "v1"),
        ({"type": "matryoshka_2d", "method": "ese", "dims": [8]}, "are for v1"),
        ({"type": "matryoshka_2d", "layers_per_step": -1}, "layers_per_step"),
        ({"type": "matryoshka_2d", "kl_weight": -1.0}, "kl_weight"),
        ({"type": "matryoshka_2d", "kl_temperature": 0.0}, "kl_temperature"),
        ({"type": "mixing", "mixing_temperature": 0.0}, "expected above 0"),
        ({"type": "mixing", "loss": {"type": "info_nce", "same_side": True}}, "same_side"),
        ({"type": "mixing", "loss": {"type": "info_nce", "logq": True}}, "logq"),
        ({"type": "dse", "task": "neither"}, "head"),
        ({"type": "dse", "head_learning_rate": 0.0}, "expected above 0"),
    ],
)
def test_settings_that_cannot_be(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(spec, LOSSES, where="loss")


@pytest.mark.parametrize("kind", ["matryoshka", "matryoshka_2d", "mixing"])
def test_scores_from_elsewhere_have_no_vectors(kind: str) -> None:
    batch = random_batch(examples(3))
    with pytest.raises(ConfigError, match="needs the vectors of both sides"):
        made(kind).over(dataclasses.replace(batch, matrix=batch.scores()))


@pytest.mark.parametrize("kind", ["matryoshka", "matryoshka_2d", "clp", "mixing"])
@pytest.mark.parametrize("cosine", [True, False])
def test_empty_rows_and_masked_cells_count_for_nothing(kind: str, cosine: bool) -> None:
    batch = random_batch(examples(4, 2), cosine=cosine)
    mask = batch.mask.clone()
    mask[0] = False  # nothing left of the first query
    mask[:, 4] = False  # a false negative, for all
    batch = dataclasses.replace(batch, mask=mask)
    loss = made(kind, loss=INFO)
    value = loss.over(batch)
    found = gradients(value, batch.queries, batch.documents)
    assert value.isfinite()
    assert all(one.isfinite().all() for one in found)
    assert not found[0][0].any()
    assert not found[1][4].any()
    empty = dataclasses.replace(batch, mask=torch.zeros_like(mask))
    assert float(loss.over(empty).detach()) == 0.0
