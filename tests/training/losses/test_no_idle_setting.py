"""No setting of a loss does nothing: it changes a value, a gradient or a hook, or is refused."""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import torch
from vector_batches import examples as few, random_batch

from sluice.encoders.foundation.build import build, resolve
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.testing.loss_batches import EXAMPLES, LossCase, leaves
from sluice.training.losses import LOSSES
from sluice.training.losses.base import HOOKS, as_loss
from sluice.training.protocol import Example, Text

# What a setting is compared with, where the loss's own defaults do not suffice.
BESIDE: dict[str, dict[str, Any]] = {
    "adore": {"ranks": "scores"},
    "matryoshka": {"dims": [16, 8]},
    "matryoshka_2d": {"dims": [16, 8, 4]},
    "mixing": {"distillation": 0.5},
    "momentum_queue": {"size": 8, "modes": [0]},
    "sum": {"losses": [{"type": "info_nce"}]},
}
# What goes with one setting, which is idle or refused without it.
WITH: dict[str, dict[str, Any]] = {
    "bce.teacher_temperature": {"target": "logits"},
    "bixse.max_grade": {"target": "labels"},
    "bixse.teacher_temperature": {"target": "logits"},
    "info_nce.learning_rate": {"learnable_temperature": True},
    "multi_similarity.epsilon": {"beta": 1.0},
    "lambda_loss.mu": {"weighting": "ndcg_loss2++"},
    "misfits.temperature": {"form": "softmax"},
    "momentum_queue.guard": {"size": 8},
    "matryoshka_2d.compression": {"method": "ese", "dims": None},
    "matryoshka_2d.compression_weight": {"method": "ese", "dims": None},
    "matryoshka_2d.method": {"dims": None},
    "matryoshka.weights": {"dims": [16, 8]},
}
# Another value, where the type does not give one.
OTHER: dict[str, list[Any]] = {
    "adore.metric_cut": [1],
    "adore.ranks": ["columns"],
    "base": [{"type": "rank_net"}],
    "bixse.bias_init": ["siglip", 0.5],
    "bixse.max_grade": [2.0],
    "compression": [4],
    "cutoff": [1],
    "dims": [[16, 4]],
    "dims_per_step": [2],
    "hidden": [8],
    "multi_similarity.epsilon": [None],
    "layers_per_step": [0],
    "loss": [{"type": "star", "temperature": 1.0}],
    "losses": [[{"type": "info_nce", "weight": 2.0}], [{"type": "star"}]],
    "matryoshka_2d.dims": [[16, 2]],
    "metric_cut": [1],
    "modes": [[3], []],
    "momentum_queue.size": [0],
    "simplex.classes": [3],
    "simplex.slots": [4, 40],
    "similarity": ["dot"],  # the encoder's own is the cosine
    "soft_top_k.k": [2, "positives"],
    "weights": [[1.0, 0.3]],
}
# Settings that must not change the value, and what shows instead that they are heard.
SAME_VALUE = {
    "info_nce.chunk": "test_chunks_hold_no_whole_matrix",
    "decoupled_softmax.chunk": "test_chunks_hold_no_whole_matrix",
}
ELSEWHERE = {
    "grl": "trains a decoder that writes: test_grl",
    "info_nce.logq": "needs the counts of a training: test_losses_contrast",
    "csr": "reads what is below the codes: test_csr",
    "identifiers": "has batches of its own: test_identifiers",
    "masked_language": "has batches of its own: test_masked_settings",
    "rankings": "has batches of its own: test_rankings",
    "spans": "has batches of its own: test_spans",
    "three_heads": "has vectors of its own: test_three_heads",
}


def settings_of(name: str) -> list[str]:
    return list(inspect.signature(resolve(LOSSES[name])).parameters)


CASES = [(name, setting) for name in LOSSES for setting in settings_of(name)]


def others(name: str, setting: str) -> Iterator[Any]:
    """Values of a setting that are not its default."""
    for key in (f"{name}.{setting}", setting):
        if key in OTHER:
            yield from OTHER[key]
            return
    made = resolve(LOSSES[name])
    default = inspect.signature(made).parameters[setting].default
    hints = made if dataclasses.is_dataclass(made) else made.__init__
    hint = typing.get_type_hints(hints)[setting]
    options = [option for part in (hint, *get_args(hint)) if get_origin(part) is typing.Literal
               for option in get_args(part)]  # fmt: skip
    if options:
        yield from (option for option in options if option != default)
    elif isinstance(default, bool):
        yield not default
    elif isinstance(default, float):
        yield default * 0.6 + 0.05
    else:
        yield 0.37  # None: what a loss chooses itself


def case_of(spec: dict[str, Any]) -> LossCase:
    def make() -> Any:
        return build(spec, LOSSES, where="loss")

    return LossCase(make, "groups" if as_loss(make()).forms == ("scores",) else "matrix")


def graded() -> Any:
    """The usual examples with two grades."""
    return [
        replace(e, labels=tuple(x * (0.5 if place else 1.0) for place, x in enumerate(e.labels)))
        for e in EXAMPLES
    ]


def seen(spec: dict[str, Any]) -> list[Any]:
    """All that shows of a loss: values, gradients, what it trains and asks for, over two steps."""
    case = case_of(spec)
    loss = case.loss()
    shown: list[Any] = []
    for name in HOOKS:
        value = getattr(loss, name)
        shown.append(None if callable(value) else value)
    for step in range(3):
        torch.manual_seed(step)
        parts = leaves()
        try:
            value = loss.over(case.batch(loss, graded(), parts, torch.tensor([1.0, 2, 0.5, 1])))
        except (ConfigError, DataError) as error:
            shown.append(str(error))
            break
        trained = list(loss.parameters())
        inputs = [*parts[:-1], *trained]
        found = torch.autograd.grad(value, inputs, allow_unused=True)
        shown += [value.item(), len(trained)]
        shown += [0.0 if one is None else one.double().abs().sum().item() for one in found]
        loss.advance(step + 1)
    return shown


def differ(one: list[Any], other: list[Any]) -> bool:
    if len(one) != len(other):
        return True
    for left, right in zip(one, other, strict=True):
        if isinstance(left, float) and isinstance(right, float):
            if not math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-12):
                return True
        elif left != right:
            return True
    return False


@pytest.fixture(scope="module")
def seen_twice() -> Callable[[dict[str, Any]], list[Any]]:
    """What shows of a loss, the same for the same settings twice; looked at once for each."""
    known: dict[str, list[Any]] = {}

    def look(spec: dict[str, Any]) -> list[Any]:
        if repr(spec) not in known:
            known[repr(spec)] = seen(spec)
            assert not differ(known[repr(spec)], seen(spec)), "the same settings twice"
        return known[repr(spec)]

    return look


@pytest.mark.parametrize(("name", "setting"), CASES, ids=lambda value: str(value))
def test_every_setting_is_heard(
    seen_twice: Callable[[dict[str, Any]], list[Any]], name: str, setting: str
) -> None:
    key = f"{name}.{setting}"
    if key in SAME_VALUE or key in ELSEWHERE or name in ELSEWHERE:
        return
    before = {"type": name, **BESIDE.get(name, {}), **WITH.get(key, {})}
    base = seen_twice(before)
    for value in others(name, setting):
        try:
            other = seen({**before, setting: value})
        except ConfigError:
            continue  # refused
        assert differ(base, other), f"{key}: {value!r} changes nothing"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"type": "info_nce", "learning_rate": 0.1}, r"info_nce.learning_rate: 0.1 does nothing"),
        (
            {"type": "bixse", "learn_scale": False, "learn_bias": False, "learning_rate": 0.1},
            r"bixse.learning_rate: 0.1 does nothing: neither scale nor bias is learnt",
        ),
        ({"type": "bce", "teacher_temperature": 2.0}, r"bce.teacher_temperature: divides a teach"),
        ({"type": "lambda_loss", "mu": 2.0}, r"lambda_loss.mu: 2.0 does nothing: it is for weight"),
        ({"type": "matryoshka_2d", "compression": 8}, "v1 has no compression; set method: ese"),
        ({"type": "matryoshka_2d", "compression_weight": 0.5}, "v1 has no compression"),
        ({"type": "matryoshka_2d", "method": "ese", "kl_weight": 0.5}, "set method: v1"),
        ({"type": "matryoshka_2d", "method": "ese", "layers_per_step": 2}, "takes every layer"),
        ({"type": "matryoshka_2d", "method": "ese", "dims": [8]}, "dims: are for v1"),
        ({"type": "momentum_queue", "modes": [], "momentum": 0.9}, "neither an augmented text nor"),
        ({"type": "momentum_queue", "modes": [], "rate": 0.9}, "neither an augmented text nor a"),
        ({"type": "momentum_queue", "modes": [], "intra": True}, "intra: needs modes"),
        ({"type": "momentum_queue", "size": 0, "guard": False}, "the queue is empty; set size"),
        ({"type": "mixing", "distillation_temperature": 0.1}, "the distillation, which weighs not"),
        ({"type": "qbd", "triplet_weight": 0, "margin": 2.0}, r"qbd.margin: 2.0 does nothing"),
        ({"type": "matryoshka", "weights": [1.0]}, "weights"),
    ],
)
def test_a_setting_beside_others_that_idle_it_is_refused(
    spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build(spec, LOSSES, where="loss")


def test_chunks_hold_no_whole_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """``chunk`` changes how much is computed at once, and nothing else."""
    from sluice.training.losses.math import chunked_softmax

    widths: list[int] = []
    plain = chunked_softmax.online_logsumexp

    def counted(blocks: Any) -> Any:
        kept = list(blocks)
        widths.extend(block.shape[1] for block in kept)
        return plain(kept)

    monkeypatch.setattr(chunked_softmax, "online_logsumexp", counted)
    for key in SAME_VALUE:
        name = key.partition(".")[0]
        values = [
            case.loss().over(
                replace(case.batch(case.loss(), EXAMPLES, leaves(), None), matrix=None)
            )
            for case in (case_of({"type": name}), case_of({"type": name, "chunk": 3}))
        ]
        assert values[0].item() == pytest.approx(values[1].item(), rel=1e-10)
        assert max(widths) == 3
        widths.clear()


MASKED = {"probability": 0.6, "whole_words": True, "keep": 0.5, "random": 0.5}


@pytest.mark.parametrize("setting", settings_of("masked_language"))
def test_masked_settings(setting: str, masked_bert: Path) -> None:
    """What is hidden, or what hides it, changes with every setting."""
    from sluice.encoders import SpladeEncoder

    encoder = SpladeEncoder.from_pretrained(masked_bert, device="cpu")
    text = "gold in the river and stones beneath deep waters " * 3
    made = [Example(Text("d", text), (Text("d", text),))]

    def hidden(**settings: Any) -> list[Any]:
        loss = build({"type": "masked_language", **settings}, LOSSES, where="loss")
        _, collator = loss.own_pass(encoder, seed=3, sparse=False)
        shown: list[Any] = []
        for epoch in range(4):
            collator.set_epoch(epoch)
            features = collator(made)["features"]["document"]
            shown += [features[name].tolist() for name in sorted(features)]
        return shown

    assert hidden() == hidden()
    assert hidden() != hidden(**{setting: MASKED[setting]})


def test_nothing_to_mix_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    for negatives, warnings in ((1, 1), (2, 0)):
        caplog.clear()
        loss = build({"type": "mixing"}, LOSSES, where="loss")
        for seed in range(20):
            batch = random_batch(few(8, negatives=negatives), seed=seed)
            loss.over(batch)
        said = [r for r in caplog.records if "so nothing is mixed; mine two" in r.getMessage()]
        assert len(said) == warnings
