"""Every hook of ``LossBase``: passed on by losses made of losses, and free to be left out."""

import inspect
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.tuning.learning import SCORED
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses import LOSSES
from sluice.training.losses.base import HOOKS, Adapted, LossBase, Want, as_loss
from sluice.training.losses.composed.members import Composed, Wrapping
from sluice.training.losses.composed.sum_of_losses import WeightedSum
from sluice.training.losses.own.negatives import CLP, Mixing

OWN = ("over",)  # what every loss has of its own, and passes on in its own way
# A value of each property that is not its default. (`texts_alone` is refused inside another.)
VALUES: dict[str, Any] = {
    "forms": ("dense",),
    "negatives": "inbatch_pos",
    "same_side": True,
    "logq": True,
    "similarity": "dot",
    "needs_teacher": True,
    "wants": frozenset(get_args(Want)) - {"texts_alone"},
    "layers": lambda step: (3, step),
    "ranks": "columns",
    "noted": "loss_mine",
    "learning_rate": 0.5,
}
# What each method is told and gives back.
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], Any]] = {
    "bound_to": (("cosine",), {}, None),
    "own_pass": (("encoder",), {"seed": 3, "sparse": True}, ("module", "collator")),
    "batch": (({}, {}), {}, "batch"),
    "bind": (("encoder", 3), {}, None),
    "bind_examples": (([],), {}, None),
    "bind_counts": (({"d": 1},), {}, None),
    "bind_teacher": ((lambda: None,), {}, None),
    "parameters": ((), {}, [nn.Parameter(torch.ones(1))]),
    "advance": ((4,), {}, None),
    "state": ((), {}, {"weight": torch.ones(1)}),
    "restore": (({"inner.weight": 1, "0.weight": 1, "step": 4},), {}, None),
    "notes": ((), {}, {"mine": 1.0}),
    "save": ((Path("folder"),), {}, None),
}


class Recorder:
    """A user's own loss, no LossBase, with every hook; it writes down what it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        for name, value in VALUES.items():
            setattr(self, name, value)

    def over(self, batch: VectorBatch) -> Tensor:
        return batch.scores().sum()


def _recorded(name: str) -> Any:
    def hook(self: Recorder, *_: Any, **__: Any) -> Any:
        self.heard.append(name)
        return self if name == "bound_to" else CALLS[name][2]

    return hook


for called in CALLS:
    setattr(Recorder, called, _recorded(called))


class SumOf(WeightedSum):
    """A sum of losses that are made already."""

    def __init__(self, *losses: Any) -> None:
        self._take((f"loss{number}", 1.0, loss) for number, loss in enumerate(losses))


def test_the_table_has_every_hook() -> None:
    properties = {name for name in HOOKS if isinstance(vars(LossBase)[name], property)}
    assert set(VALUES) == properties
    assert set(CALLS) == set(HOOKS) - properties - set(OWN)


@pytest.mark.parametrize("kind", [Composed, Wrapping, WeightedSum])
def test_losses_made_of_losses_have_a_rule_for_every_hook(kind: type[Composed]) -> None:
    inherited = [name for name in HOOKS if getattr(kind, name) is vars(LossBase)[name]]
    allowed = {*OWN, "bound_to"} if kind is Composed else set(OWN) if kind is Wrapping else set()
    assert set(inherited) <= allowed


@pytest.mark.parametrize("make", [as_loss, Wrapping, SumOf], ids=["adapted", "wrapper", "sum"])
@pytest.mark.parametrize("name", VALUES)
def test_a_property_is_passed_on(make: Any, name: str) -> None:
    assert getattr(make(Recorder()), name) == VALUES[name]
    assert getattr(LossBase(), name) != VALUES[name]


@pytest.mark.parametrize("make", [as_loss, Wrapping, SumOf], ids=["adapted", "wrapper", "sum"])
@pytest.mark.parametrize("name", CALLS)
def test_a_method_is_passed_on(make: Any, name: str) -> None:
    told, options, answer = CALLS[name]
    inner = Recorder()
    loss = make(inner)
    inner.heard.clear()
    given = getattr(loss, name)(*told, **options)
    assert name in inner.heard
    if name == "state":
        assert [key.split(".")[-1] for key in given if key != "step"] == ["weight"]
    elif answer is not None:
        assert given == answer
    assert (
        list(inspect.signature(getattr(LossBase, name)).parameters)[1:]
        == list(inspect.signature(getattr(Composed, name)).parameters)[1:]
    )


def test_texts_alone_is_passed_on_and_refused_inside_another() -> None:
    inner = Recorder()
    made = [Wrapping(inner), SumOf(inner), as_loss(inner)]
    assert not any("texts_alone" in loss.wants for loss in made)
    inner.wants = {"texts_alone"}  # type: ignore[attr-defined]
    assert all("texts_alone" in loss.wants for loss in made)
    for make in (Wrapping, SumOf):
        with pytest.raises(ConfigError, match="learns from texts alone and cannot be combined"):
            make(inner)


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "sum", "losses": [{"type": "masked_language"}]},
        {"type": "sum", "losses": [{"type": "info_nce"}, {"type": "masked_language"}]},
        {"type": "clp", "loss": {"type": "masked_language"}},
        {"type": "mixing", "loss": {"type": "sum", "losses": [{"type": "masked_language"}]}},
    ],
)
def test_masked_language_is_a_training_of_its_own(spec: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="masked_language learns from texts alone"):
        build(spec, LOSSES, where="loss")


def test_a_retrieved_list_is_asked_for_through_others() -> None:
    inside = {"type": "sum", "losses": [{"type": "adore"}]}
    assert build(inside, LOSSES, where="loss").ranks == "columns"
    assert build({"type": "clp", "loss": inside}, LOSSES, where="loss").ranks == "columns"
    freed = {"type": "sum", "losses": [{"type": "adore", "ranks": "scores"}, {"type": "kl_div"}]}
    assert build(freed, LOSSES, where="loss").ranks == "scores"


def test_options_of_columns_are_seen_through_others() -> None:
    with pytest.raises(ConfigError, match=r"mixing.loss.logq: true"):
        Mixing({"type": "clp", "loss": {"type": "info_nce", "logq": True}})


def test_only_one_member_may_have_a_pass_of_its_own() -> None:
    one, other = Recorder(), Recorder()
    other.layers = None
    total = SumOf(one, other)
    with pytest.raises(ConfigError, match="loss0 and loss1 both have a pass of their own"):
        total.own_pass("encoder", seed=1, sparse=False)


def test_a_sum_of_different_names_is_the_ranking() -> None:
    total = WeightedSum([{"type": "info_nce"}, {"type": "star"}])
    assert total.noted == "loss_ranking"


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_is_typed(name: str) -> None:
    module, _, kind = LOSSES[name].partition(":")
    made = getattr(__import__(module, fromlist=[kind]), kind)
    assert issubclass(made, LossBase)
    assert "bound_to" not in vars(made) or issubclass(made, Composed)


def plain(
    scores: Tensor, labels: Tensor, mask: Any = None, weights: Any = None, teacher: Any = None
) -> Tensor:
    return scores.sum()


class OfVectors:
    """A user's own loss that needs vectors, and hooks that are None."""

    layers = None
    own_pass = None
    batch = None

    def over(self, batch: VectorBatch) -> Tensor:
        return batch.queries.sum()


def test_a_users_own_loss_has_defaults_for_what_it_lacks() -> None:
    batch = VectorBatch(
        torch.ones(2, 3), torch.ones(2, 3), torch.eye(2), torch.ones(2, 2).bool(),
        torch.arange(2), torch.arange(2),
    )  # fmt: skip
    for loss, value in ((as_loss(plain), 12.0), (as_loss(OfVectors()), 6.0)):
        assert loss.over(batch).item() == value
        assert (loss.forms, loss.negatives, loss.similarity) == (SCORED, "all", "auto")
        assert (
            loss.layers is loss.own_pass(None, seed=1, sparse=False) is loss.batch({}, {}) is None
        )
        assert (list(loss.parameters()), loss.state(), loss.notes()) == ([], {}, {})
        assert loss.bound_to("cosine") is loss
        assert as_loss(loss) is loss
    assert as_loss(plain)(torch.ones(2, 2), torch.eye(2)).item() == 4.0
    with pytest.raises(ConfigError, match="OfVectors: needs the vectors of the batch"):
        as_loss(OfVectors())(torch.ones(2, 2), torch.eye(2))
    with pytest.raises(ConfigError, match="CLP: needs the vectors of the batch"):
        CLP()(torch.ones(2, 2), torch.eye(2))
    with pytest.raises(ConfigError, match=r"loss: 3, expected a function of \(scores"):
        as_loss(3)


def test_a_users_own_loss_decides_its_similarity_itself() -> None:
    class Deciding(OfVectors):
        similarity = "auto"

        def bound_to(self, similarity: str) -> "Deciding":
            made = Deciding()
            made.similarity = similarity
            return made

    bound = as_loss(Deciding()).bound_to("dot")
    assert isinstance(bound, Adapted)
    assert bound.similarity == "dot"


def test_a_users_own_subclass_has_only_what_it_needs() -> None:
    class Mine(LossBase):
        negatives = "own"

        def layers(self, step: int) -> tuple[int, ...]:
            return (2, 1)

        def over(self, batch: VectorBatch) -> Tensor:
            return batch.scores().sum()

    loss = as_loss(Mine())
    assert loss.negatives == Wrapping(loss).negatives == "own"
    assert Wrapping(loss).layers(1) == (2, 1)  # type: ignore[misc]


def test_a_loss_that_names_types_of_encoders_is_told_to_say_forms() -> None:
    class Old(LossBase):
        encoders = ("dense",)

    with pytest.raises(ConfigError, match="says encoders, which nothing reads; say forms"):
        as_loss(Old())
    for flag in ("wants_answered", "texts"):
        old = type("OldFlag", (LossBase,), {flag: True})()
        with pytest.raises(ConfigError, match=f"says {flag}, which nothing reads; say wants"):
            as_loss(old)
