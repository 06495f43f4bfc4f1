"""Sums of losses: values, hooks, and members that do not go together."""

from typing import Any

import pytest
import torch
from score_losses import drawn, same
from torch import Tensor

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.tuning.learning import SCORED
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses import LOSSES


def taught(spec: dict[str, Any]) -> Any:
    return build(spec, LOSSES, where="loss")


def test_sum_is_the_weighted_sum() -> None:
    scores, labels, mask, teacher = drawn(12)
    total = taught(
        {
            "type": "sum",
            "losses": [
                {"type": "kl_div", "weight": 0.99},
                {"type": "info_nce", "weight": 0.01, "temperature": 1.0},
                {"type": "margin_mse", "weight": 0.05, "pairs": "all"},
            ],
        }
    )
    parts = [
        taught({"type": "kl_div"})(scores, labels, mask, None, teacher),
        taught({"type": "info_nce", "temperature": 1.0})(scores, labels, mask, None, teacher),
        taught({"type": "margin_mse", "pairs": "all"})(scores, labels, mask, None, teacher),
    ]
    straight = 0.99 * parts[0] + 0.01 * parts[1] + 0.05 * parts[2]
    same(total(scores, labels, mask, None, teacher), straight, scores)
    assert total.negatives == "all"
    assert total.needs_teacher
    assert not total.same_side
    assert total.layers is None
    notes = total.notes()
    assert 0 < notes.pop("teacher_entropy") < 1
    assert notes == pytest.approx(
        {
            "loss_kl_div": parts[0].item(),
            "loss_info_nce": parts[1].item(),
            "loss_margin_mse": parts[2].item(),
        }
    )


def test_sum_decides_the_similarity_for_its_members() -> None:
    spec = {"type": "sum", "losses": [{"type": "kl_div"}, {"type": "info_nce"}]}
    total = taught(spec)
    bound = total.bound_to("cosine")
    assert bound.similarity == "cosine"
    assert [loss.similarity for loss in bound.losses] == ["cosine", "cosine"]
    assert [loss.similarity for loss in total.losses] == ["auto", "auto"]
    spec["losses"] = [{"type": "kl_div", "similarity": "dot"}, {"type": "info_nce"}]
    assert [m.similarity for m in taught(spec).bound_to("cosine").losses] == ["dot", "dot"]


class Stateful:
    """A loss with every hook."""

    wants = frozenset({"answered"})

    def __init__(self, rate: float | None = None) -> None:
        self.learning_rate = rate
        self.bias = torch.nn.Parameter(torch.zeros(1))
        self.said: list[Any] = []

    def over(self, batch: VectorBatch) -> Tensor:
        return batch.queries.sum() + self.bias.sum()

    def bind(self, encoder: Any, seed: int) -> None:
        self.said.append(seed)

    def layers(self, step: int) -> tuple[int, ...]:
        return (2, 1)

    def parameters(self) -> list[torch.nn.Parameter]:
        return [self.bias]

    def state(self) -> dict[str, Tensor]:
        return {"bias": self.bias.detach()}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.said.append(state)

    def advance(self, step: int) -> None:
        self.said.append(step)

    def notes(self) -> dict[str, float]:
        return {"bias": 0.5}

    def save(self, folder: Any) -> None:
        self.said.append(folder)


class Plain(Stateful):
    """One that asks for no layers."""

    layers = None


def test_sum_forwards_every_hook(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOSSES, "stateful", f"{__name__}:Stateful")
    monkeypatch.setattr("sluice.encoders.foundation.build.resolve", _resolved)
    losses = [{"type": "info_nce", "weight": 0.0}, {"type": "stateful", "weight": 2.0}]
    total = taught({"type": "sum", "losses": losses})
    member = total.losses[1].loss
    total.bind(None, 7)
    total.advance(3)
    total.restore({"1.bias": torch.ones(1), "0.other": torch.zeros(1)})
    total.save(tmp_path)
    assert member.said == [8, 3, {"bias": torch.ones(1)}, tmp_path]
    assert total.wants == {"answered"}
    assert total.layers(5) == (2, 1)
    assert total.parameters() == [member.bias]
    assert total.learning_rate is None
    assert list(total.state()) == ["1.bias"]
    batch = VectorBatch(
        torch.ones(2, 2), torch.ones(2, 2), torch.eye(2), torch.ones(2, 2).bool(),
        torch.arange(2), torch.arange(2),
    )  # fmt: skip
    assert total.over(batch).item() == 8.0
    assert total.notes() == {"loss_info_nce": pytest.approx(0.6931, abs=1e-3)} | {
        "loss_stateful": 4.0, "bias": 0.5,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="Stateful: needs the vectors"):
        total(torch.ones(2, 2), torch.eye(2))
    with pytest.raises(ConfigError, match="stateful and stateful_2 both ask for layers"):
        taught({"type": "sum", "losses": [{"type": "stateful"}, {"type": "stateful"}]})
    monkeypatch.setitem(LOSSES, "plain", f"{__name__}:Plain")
    rates = [{"type": "stateful", "rate": 1e-3}, {"type": "plain"}]
    with pytest.raises(ConfigError, match=r"learning_rate is 0.001 for stateful and None for"):
        _ = taught({"type": "sum", "losses": rates}).learning_rate


def _resolved(target: str) -> Any:
    import importlib

    module, _, name = target.partition(":")
    return globals()[name] if module == __name__ else getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ([], "losses: empty"),
        ([3], r"losses\[0\]: 3, expected"),
        ([{"type": "kl_divv"}], r"losses\[0\].type: unknown type 'kl_divv'.*did you mean 'kl_div'"),
        ([{"type": "kl_div", "tau": 1}], r"losses\[0\].tau: unknown key; kl_div takes"),
        ([{"type": "kl_div", "weight": "x"}], r"losses\[0\].weight: 'x', expected a number"),
        ([{"type": "kl_div", "weight": -1}], r"kl_div.weight: -1.0, expected 0 or more"),
        (
            [{"type": "info_nce"}, {"type": "rank_net"}],
            "negatives is 'all' for info_nce and 'own' for rank_net",
        ),
        (
            [{"type": "info_nce", "same_side": True}, {"type": "info_nce"}],
            "same_side is True for info_nce and False for info_nce_2",
        ),
        (
            [{"type": "info_nce", "similarity": "dot"}, {"type": "kl_div", "similarity": "cosine"}],
            "similarity is 'dot' for info_nce and 'cosine' for kl_div",
        ),
    ],
)
def test_sums_that_do_not_go_together(losses: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        taught({"type": "sum", "losses": losses})


def test_sum_for_cross_encoders_only() -> None:
    free = taught({"type": "sum", "losses": [{"type": "kl_div"}, {"type": "margin_mse"}]})
    assert free.forms == SCORED
    assert free.negatives == "own"
    total = taught({"type": "sum", "losses": [{"type": "bce"}, {"type": "info_nce"}]})
    assert total.forms == ("scores",)
    assert total.negatives == "own"
