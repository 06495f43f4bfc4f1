"""Momentum queue: what is in the queue, who moves, what is masked."""

import copy
import dataclasses
import hashlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.nn.functional import normalize
from vector_batches import agree, examples, gradients, random_batch

from sluice.encoders import DenseEncoder, SpladeEncoder, TowerEncoder
from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.batches.vector_batch import VectorBatch, matrix_targets
from sluice.training.losses import LOSSES
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.losses.own.momentum_keys import (
    KeyEncoder,
    Pairs,
    VectorQueue,
    augmented,
    codes,
    count_tokens,
    tokens_of,
)
from sluice.training.losses.own.momentum_queue import MomentumQueue
from sluice.training.protocol import Example

INFO = {"type": "info_nce", "temperature": 0.1}


def made(**options: Any) -> MomentumQueue:
    spec = {"type": "momentum_queue", "loss": INFO, **options}
    loss: MomentumQueue = build(spec, LOSSES, where="loss")
    return loss


def encoded(encoder: Any, made_from: list[Example], **changes: Any) -> VectorBatch:
    """The batch that the trainer would make of the examples with this encoder."""
    targets = matrix_targets(made_from)
    features = {
        "query": encoder.tokenize([e.query.text for e in made_from], "query"),
        "document": encoder.tokenize([d.text for e in made_from for d in e.documents], "document"),
    }
    return VectorBatch(
        encoder.embed(features["query"], "query"),
        encoder.embed(features["document"], "document"),
        labels=targets.labels,
        mask=targets.mask,
        positives=targets.positives,
        owners=torch.tensor([row for row, e in enumerate(made_from) for _ in e.documents]),
        cosine=encoder.similarity == "cosine",
        features=features,
        ids={
            "query": tuple(e.query.id for e in made_from),
            "document": tuple(d.id for e in made_from for d in e.documents),
        },
        **changes,
    )


def test_the_queue_holds_the_last_keys_in_order() -> None:
    queue = VectorQueue(6, 2, ["a", "b"], torch.device("cpu"))
    pushed = []
    for number in range(5):
        rows = torch.full((3, 2), float(number), requires_grad=True) + torch.arange(3)[:, None]
        numbers = torch.arange(3) + 10 * number
        queue.stage({"a": rows, "b": -rows}, Pairs(numbers, numbers + 100))
        before = queue["a"].clone()
        assert torch.equal(queue["a"], before)
        queue.push()
        pushed.append(rows.detach())
        expected = torch.cat(pushed)[-6:]
        assert torch.equal(queue["a"], expected)
        assert torch.equal(queue["b"], -expected)
        assert not queue["a"].requires_grad
    assert queue.pairs.queries.tolist() == [30, 31, 32, 40, 41, 42]
    assert queue.pairs.documents.tolist() == [130, 131, 132, 140, 141, 142]


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    size=st.integers(0, 7), batches=st.lists(st.integers(1, 9), max_size=6), every=st.integers(1, 3)
)
def test_any_batches_leave_the_last_pairs(size: int, batches: list[int], every: int) -> None:
    queue = VectorQueue(size, 1, ["a"], torch.device("cpu"))
    start = 0
    for number, count in enumerate(batches):
        numbers = torch.arange(start, start + count)
        queue.stage({"a": numbers[:, None].float()}, Pairs(numbers, numbers))
        start += count
        if number % every == 0:
            queue.push()
    queue.push()
    expected = list(range(start))[-size:] if size else []
    assert queue.pairs.queries.tolist() == expected
    assert queue["a"][:, 0].tolist() == expected
    assert len(queue) == min(size, start)


def test_codes_are_the_same_in_every_run() -> None:
    digest = hashlib.blake2b(b"a", digest_size=8).digest()
    found = codes(["a", "b", "a"]).tolist()
    assert found[0] == found[2] == int.from_bytes(digest, "little", signed=True)
    assert found[1] != found[0]


def test_without_queue_and_keys_it_is_in_batch_info_nce(tiny: ModuleType) -> None:
    batch = random_batch(examples(4, 1), 16)
    leaves = batch.queries, batch.documents
    loss = made(size=0, modes=[], symmetric=False)
    loss.bind(tiny.Dense(), 0)
    base = InfoNCE(temperature=0.1).over(batch)
    agree(loss.over(batch), base, *leaves)
    loss.advance(1)
    agree(loss.over(batch), base, *leaves)
    both = made(size=0, modes=[])
    both.bind(tiny.Dense(), 0)
    single = random_batch(examples(4), 16)
    agree(
        both.over(single),
        InfoNCE(temperature=0.1, symmetric=True).over(single),
        single.queries,
        single.documents,
    )


def test_keys_of_no_momentum_and_no_augmentation_are_the_batch(tiny: ModuleType) -> None:
    encoder = tiny.Dense(dropout=0.0)
    loss = made(size=0, momentum=0.0, rate=0.0, symmetric=False)
    loss.bind(encoder, 0)
    with torch.no_grad():
        for parameter in encoder.module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    loss.advance(1)
    batch = encoded(encoder, examples(5, 1))
    value = loss.over(batch)
    torch.testing.assert_close(value, InfoNCE(temperature=0.1).over(batch))
    (ours,) = gradients(value, batch.documents)
    (base,) = gradients(InfoNCE(temperature=0.1).over(batch), batch.documents)
    torch.testing.assert_close(ours, base / 2)  # keys pass no gradient on


def test_the_loss_is_the_formula(tiny: ModuleType) -> None:
    encoder = tiny.Dense(dropout=0.0)
    loss = made(size=6, momentum=0.9, modes=[0, 3], rate=0.3, intra=True)
    loss.bind(encoder, 7)
    first, second = examples(8, 1)[:4], examples(8, 1)[4:]
    old = encoded(encoder, first)
    loss.over(old)
    key = copy.deepcopy(encoder)
    for parameter, other in zip(encoder.module.parameters(), key.module.parameters(), strict=True):
        with torch.no_grad():
            parameter.mul_(1.01)
            other.mul_(0.9).add_(parameter, alpha=1 - 0.9)
    counts = sum(count_tokens(old.features[s], 64) for s in ("query", "document"))
    assert loss.key is not None
    tokens = loss.key.tokens

    def keys_of(batch: VectorBatch, by: Any, step: int, seen: Any) -> list[Tensor]:
        sides = []
        for side in ("query", "document"):
            changed = augmented(
                batch.features[side], (0, 3)[step], seen, tokens, rate=0.3, seed=7, step=step,
                side=side,  # type: ignore[arg-type]
            )  # fmt: skip
            sides.append(by.embed(changed, side).detach())
        return sides

    was = copy.deepcopy(tiny.Dense(dropout=0.0))
    before = keys_of(old, was, 0, counts)
    queued = {
        "q": old.queries.detach(), "d": old.documents.detach()[::2],
        "aq": before[0], "ad": before[1][::2],
    }  # fmt: skip
    loss.advance(1)
    batch = encoded(encoder, second)
    batch = batch.with_vectors(batch.queries.double(), batch.documents.double())
    now = counts + sum(count_tokens(batch.features[s], 64) for s in ("query", "document"))
    keys = keys_of(batch, key, 1, now)
    queries, documents = batch.queries, batch.documents
    positives = documents[::2]

    def term(asking: Tensor, targets: Tensor, queue: Tensor, stride: int) -> Tensor:
        everything = torch.cat([targets, queue[-6:]]).double()
        scores = normalize(asking, dim=1) @ normalize(everything, dim=1).T / 0.1
        rows = [torch.logsumexp(scores[i], 0) - scores[i, stride * i] for i in range(4)]
        return torch.stack(rows).mean()

    terms = [
        term(queries, documents, queued["d"], 2),
        term(positives, queries, queued["q"], 1),
        term(queries, keys[1], queued["ad"], 2),
        term(positives, keys[0], queued["aq"], 1),
        term(queries, keys[0], queued["aq"], 1),
        term(positives, keys[1][::2], queued["ad"], 1),
    ]
    agree(loss.over(batch), torch.stack(terms).mean(), queries, documents)
    assert loss.notes() == {"queue_filled": 4.0, "queue_masked": 0.0}


def test_the_value_does_not_depend_on_how_often_it_is_computed(tiny: ModuleType) -> None:
    encoder = tiny.Dense(dropout=0.0)
    loss = made(size=8)
    loss.bind(encoder, 1)
    batch = encoded(encoder, examples(3, 1))
    values = [float(loss.over(batch).detach()) for _ in range(3)]
    assert len(set(values)) == 1
    loss.advance(1)
    assert loss.queue is not None
    assert not any(loss.queue[name].requires_grad for name in ("query", "augmented_document"))
    assert float(loss.over(batch).detach()) != values[0]


def test_momentum_one_never_moves_and_zero_follows_exactly(tiny: ModuleType) -> None:
    encoder = tiny.Dense()
    start = tiny.weights_of(encoder)
    for momentum in (1.0, 0.0, 0.75):
        key = KeyEncoder(tiny.Dense(), tokens_of(encoder))
        key._trained = encoder.module
        moved = {name: value + 0.5 for name, value in start.items()}
        encoder.module.load_state_dict(moved)
        key.follow(momentum)
        for name, value in key.module.named_parameters():
            expected = momentum * start[name] + (1 - momentum) * moved[name]
            if momentum in (0.0, 1.0):
                assert torch.equal(value, start[name] if momentum else moved[name])
            torch.testing.assert_close(value.detach(), expected)
            assert not value.requires_grad


@pytest.mark.parametrize("kind", ["dense", "splade", "towers"])
def test_the_key_encoder_of_a_real_encoder(
    bert: Path, masked_bert: Path, texts: list[str], kind: str
) -> None:
    encoder: Any = (
        SpladeEncoder.from_pretrained(masked_bert)
        if kind == "splade"
        else DenseEncoder.from_pretrained(bert)
    )
    one = encoder
    if kind == "towers":
        encoder = TowerEncoder(encoder, DenseEncoder.from_pretrained(bert))
    encoder.encode_documents(texts)
    key = KeyEncoder(encoder, tokens_of(encoder))
    assert key.tokens.mask == one.tokenizer.mask_token_id
    assert not key.tokens.ordinary[one.tokenizer.all_special_ids].any()
    assert key.vocabulary == one.model.config.vocab_size
    features = encoder.tokenize(texts, "document")
    with torch.no_grad():
        same = encoder.embed(features, "document")
        torch.testing.assert_close(key.embed(features, "document"), same)
        for parameter in encoder.module.parameters():
            parameter.mul_(1.1)
        torch.testing.assert_close(key.embed(features, "document"), same)
        key.follow(0.0)
        changed = encoder.embed(features, "document")
    assert not torch.allclose(changed, same)
    torch.testing.assert_close(key.embed(features, "document"), changed)
    loss = made(size=4)
    loss.bind(encoder, 3)
    value = loss.over(encoded(encoder, examples(3, 1)))
    value.backward()
    assert value.isfinite()


def test_a_pair_pushed_earlier_is_masked_by_ids(tiny: ModuleType) -> None:
    encoder = tiny.Dense(dropout=0.0)
    made_from = examples(4, 1)
    loss = made(size=8, modes=[], symmetric=False)
    loss.bind(encoder, 1)
    first = encoded(encoder, made_from[:2])
    loss.over(first)
    loss.advance(1)
    # The first query again, and one to which the second's document is known to be relevant.
    again = encoded(encoder, [made_from[0], made_from[3]])
    ids = {**again.ids, "relevant": (frozenset(), frozenset({"d10"}))}
    again = dataclasses.replace(again, ids=ids)
    value = loss.over(again)
    assert loss.notes() == {"queue_filled": 2.0, "queue_masked": 1.0}
    documents = torch.cat([again.documents, first.documents[::2].detach()])
    scores = normalize(again.queries, dim=1) @ normalize(documents, dim=1).T / 0.1
    kept = ([0, 1, 2, 3, 5], [0, 1, 2, 3, 4])
    rows = [
        torch.logsumexp(scores[row][cells], 0) - scores[row, 2 * row]
        for row, cells in enumerate(kept)
    ]
    torch.testing.assert_close(value, torch.stack(rows).mean())
    free = made(size=8, modes=[], symmetric=False, guard=False)
    free.bind(encoder, 1)
    free.over(first)
    free.advance(1)
    assert (free.over(again) > value).item()


def test_a_resumed_training_goes_on_as_it_was(tiny: ModuleType) -> None:
    batches = [examples(12, 1)[start : start + 3] for start in (0, 3, 6, 9)]

    def step(encoder: Any, loss: MomentumQueue, number: int) -> Tensor:
        value = loss.over(encoded(encoder, batches[number]))
        parameters = list(encoder.module.parameters())
        found = torch.autograd.grad(value, parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, found, strict=True):
                if gradient is not None:
                    parameter.sub_(gradient, alpha=0.05)
        loss.advance(number + 1)
        return value.detach()

    encoder = tiny.Dense(dropout=0.0)
    loss = made(size=5, modes=[0, 1, 2, 3], momentum=0.5, rate=0.4)
    loss.bind(encoder, 2)
    for number in (0, 1):
        step(encoder, loss, number)
    state = {name: value.clone() for name, value in loss.state().items()}
    weights = tiny.weights_of(encoder)
    expected = [step(encoder, loss, number) for number in (2, 3)]

    other = tiny.Dense(dropout=0.0)
    resumed = made(size=5, modes=[0, 1, 2, 3], momentum=0.5, rate=0.4)
    resumed.bind(other, 2)
    other.module.load_state_dict(weights)
    resumed.restore(state)
    assert all(torch.equal(value, state[name]) for name, value in resumed.state().items())
    found = [step(other, resumed, number) for number in (2, 3)]
    assert [value.item() for value in found] == [value.item() for value in expected]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modes": [0, 4]}, "expected some of 0, 1, 2, 3"),
        ({"modes": [], "intra": True}, "needs modes"),
        ({"loss": {"type": "info_nce", "same_side": True}}, "same_side"),
    ],
)
def test_settings_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(**options)


def test_what_the_queue_cannot_be_put_into(tiny: ModuleType) -> None:
    with pytest.raises(ConfigError, match="no queue yet"):
        made().over(random_batch(examples(2)))
    loss = made(modes=[])
    loss.bind(tiny.Dense(), 0)
    with pytest.raises(ConfigError, match="it must be the outer loss"):
        loss.over(random_batch(examples(2), 8))
    keyed = made()
    keyed.bind(tiny.Dense(), 0)
    with pytest.raises(ConfigError, match="no features of"):
        keyed.over(random_batch(examples(2), 16))
    layered = MomentumQueue(Layered())
    with pytest.raises(ConfigError, match="needs the vectors of layers"):
        layered.bind(tiny.Dense(), 0)


class Layered:
    """An inner loss that wants layers."""

    def layers(self, step: int) -> tuple[int, ...]:
        return (2, 1)

    def over(self, batch: VectorBatch) -> Tensor:
        return batch.scores().sum()


def test_a_matryoshka_inside_sees_the_queue_too(tiny: ModuleType) -> None:
    encoder = tiny.Dense(dropout=0.0)
    inside = {"type": "matryoshka", "dims": [16, 8], "loss": INFO}
    loss = made(size=4, modes=[3], loss=inside)
    loss.bind(encoder, 0)
    batch = encoded(encoder, examples(3, 1))
    before = loss.over(batch)
    loss.advance(1)
    after = loss.over(encoded(encoder, examples(6, 1)[3:]))
    assert before.isfinite()
    assert after.isfinite()
