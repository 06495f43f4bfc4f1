"""Mixtures: a loss, a prompt and a weight for each source, streams, and what a kill leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sluice.encoders import DenseEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.training import Example, ExampleStream, InfoNCE, fit
from sluice.training.batches.sampler import MixedSampler
from sluice.training.batches.stream import StreamSampler
from sluice.training.losses.base import LossBase
from sluice.training.losses.own.entries import Entries

TRAINER = {
    "max_steps": 9, "per_device_train_batch_size": 4, "learning_rate": 1e-3, "save_steps": 2,
    "logging_steps": 1, "save_total_limit": 10,
}  # fmt: skip


class Watched(LossBase):
    """InfoNCE that hands each batch's source, queries and value to a function."""

    def __init__(self, note: Any, inner: Any = None) -> None:
        self.note, self.inner = note, inner or InfoNCE()

    @property
    def negatives(self) -> Any:
        return self.inner.negatives

    def over(self, batch: Any) -> Any:
        value = self.inner.over(batch)
        self.note(batch.source, *batch.ids["query"], value=value.detach())
        return value


class Seen(list[Any]):
    """Notes the sources and queries of batches; ends the training at one."""

    def __init__(self, ends: int = 0) -> None:
        self._ends = ends

    def note(self, *names: str, value: Any) -> None:
        self.append(names)
        if len(self) == self._ends:
            raise KeyboardInterrupt

    @property
    def loss(self) -> Watched:
        return Watched(self.note)


def streamed(tiny: ModuleType, count: int = 30, buffer: int = 7) -> ExampleStream:
    def read() -> Iterator[Example]:
        yield from tiny.examples(count)

    return ExampleStream(read, buffer=buffer)


def weights_equal(tiny: ModuleType, one: Any, two: Any) -> bool:
    other = tiny.weights_of(two)
    return all(torch.equal(value, other[name]) for name, value in tiny.weights_of(one).items())


@pytest.mark.parametrize("mixed", [False, True])
def test_a_killed_stream_continues_with_the_next_example(
    tiny: ModuleType, tmp_path: Path, mixed: bool
) -> None:
    """Dropout and epochs included: 30 examples are 8 batches, and 9 steps begin a second epoch."""
    some: Any = streamed(tiny)
    if mixed:
        some = {"disk": some, "memory": tiny.examples(8)}
    whole, undisturbed = tiny.Dense(), Seen()
    fit(whole, some, undisturbed.loss, output=tmp_path / "one", trainer=TRAINER)
    with pytest.raises(KeyboardInterrupt):
        fit(tiny.Dense(), some, Seen(ends=8).loss, output=tmp_path / "two", trainer=TRAINER)
    resumed, rest = tiny.Dense(seed=3), Seen()
    report = fit(resumed, some, rest.loss, output=tmp_path / "two", trainer=TRAINER)
    assert report.resumed_step == 6
    assert list(rest) == undisturbed[6:]
    assert weights_equal(tiny, whole, resumed)


def test_a_stream_reads_all_and_holds_a_buffer(tiny: ModuleType, tmp_path: Path) -> None:
    seen = Seen()
    trainer = {**TRAINER, "max_steps": 8}
    fit(tiny.Dense(), streamed(tiny), seen.loss, output=tmp_path, trainer=trainer)
    asked = [query for _, *queries in seen for query in queries]
    assert sorted(asked) == sorted(example.query.id for example in tiny.examples(30))


def test_other_examples_are_another_training(tiny: ModuleType, tmp_path: Path) -> None:
    fit(tiny.Dense(), streamed(tiny), InfoNCE(), output=tmp_path, trainer=TRAINER)
    with pytest.raises(ConfigError, match="differs in examples"):
        fit(tiny.Dense(), streamed(tiny, 29), InfoNCE(), output=tmp_path, trainer=TRAINER)


def test_each_source_has_its_own_loss(tiny: ModuleType, tmp_path: Path) -> None:
    """One compares queries with all documents, the other with their own: the layouts differ."""
    parts = {"a": tiny.examples(8), "b": tiny.examples(16)[8:]}
    values: list[tuple[str, float]] = []
    losses = {
        source: Watched(
            lambda batch, *_, value, source=source: values.append((source + batch, float(value))),
            InfoNCE(negatives=negatives),
        )
        for source, negatives in (("a", "all"), ("b", "own"))
    }  # fmt: skip
    trainer = {**TRAINER, "max_steps": 4}
    report = fit(tiny.Dense(dropout=0.0), parts, losses, output=tmp_path / "one", trainer=trainer)
    assert Counter(source for source, _ in values) == {"aa": 2, "bb": 2}
    logged = [line["loss"] for line in report.history if "loss" in line]
    assert logged == pytest.approx([value for _, value in values], abs=1e-3)
    last = dict(values)
    notes = [line for line in report.history if "loss a" in line][-1]
    assert notes["loss a"] == pytest.approx(last["aa"], abs=1e-6)
    assert notes["loss b"] == pytest.approx(last["bb"], abs=1e-6)
    every = max(value for source, value in values if source == "aa")
    assert every > max(value for source, value in values if source == "bb") > 0  # 7 others, and 1


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"a": 3.0, "b": 1.0}, {"a": 9, "b": 3}),
        ({"b": 5.0}, {"a": 2, "b": 10}),
        ({"a": 1e-9, "b": 1.0}, {"a": 1, "b": 11}),  # one at least
    ],
)
def test_weights_are_shares_of_the_batches(
    tiny: ModuleType, weights: dict[str, float], expected: dict[str, int]
) -> None:
    parts: dict[str, Any] = {"a": streamed(tiny, 32), "b": streamed(tiny, 16)}
    sampler = MixedSampler(
        parts, lambda part: StreamSampler(part, 4, seed=13), seed=13, weights=weights
    )
    assert sampler.quota == expected
    assert len(list(sampler)) == len(sampler) == 12


def test_each_source_has_its_prompts(
    bert: Path, tiny: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = DenseEncoder.from_pretrained(bert, query_prompt="own: ")
    read: list[tuple[str, str]] = []
    plain = DenseEncoder.tokenize

    def noted(self: Any, texts: Any, side: Any) -> Any:
        read.extend((side, self.prompts[side] + text) for text in texts)
        return plain(self, texts, side)

    prompts = {"a": {"query": "first: ", "document": "text: "}}
    parts = {"a": tiny.examples(8)[:4], "b": tiny.examples(8)[4:]}
    before = encoder.encode_queries(["red fox"])
    monkeypatch.setattr(DenseEncoder, "tokenize", noted)
    fit(
        encoder, parts, InfoNCE(), output=tmp_path, prompts=prompts,
        trainer={**TRAINER, "max_steps": 2, "save_strategy": "no"},
    )  # fmt: skip
    monkeypatch.undo()
    expected = {("query", f"first: {e.query.text}") for e in parts["a"]}
    expected |= {("document", f"text: {d.text}") for e in parts["a"] for d in e.documents}
    expected |= {("query", f"own: {e.query.text}") for e in parts["b"]}
    expected |= {("document", d.text) for e in parts["b"] for d in e.documents}
    assert set(read) == expected
    assert encoder.prompts == {"query": "own: ", "document": ""}
    assert (encoder.encode_queries(["red fox"]) != before).any()  # its own weights were trained


def test_prompts_of_a_source_are_those_of_an_encoder(bert: Path) -> None:
    encoder = DenseEncoder.from_pretrained(bert, query_prompt="own: ")
    other = encoder.with_prompts({"query": "first: "})
    expected = DenseEncoder.from_pretrained(bert, query_prompt="first: ")
    assert (other.encode_queries(["red fox"]) == expected.encode_queries(["red fox"])).all()
    assert other.fingerprint == expected.fingerprint != encoder.fingerprint
    assert other.module is encoder.module
    unpooled = DenseEncoder.from_pretrained(bert, query_prompt="own: ")
    unpooled.pool_prompt = False
    with pytest.raises(ConfigError, match="leaves its prompt out of the pooled tokens"):
        unpooled.with_prompts({"query": "first: "})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"weights": {"c": 1.0}},
            "weights and prompts: 'c' is not a source of the examples, which are 'a', 'b'",
        ),
        ({"weights": {"a": 0.0}}, "weights: 0.0 for 'a', expected a number above 0"),
        ({"weights": {"a": float("nan")}}, "weights: nan for 'a'"),
        ({"weights": {"a": 1.0}, "sampling_temperature": 1.0}, "or have weights; leave it out"),
        ({"prompts": {"c": {}}}, "prompts: 'c' is not"),
        ({"prompts": {"a": {"queries": ""}}}, "prompts: 'a' has queries, expected query, document"),
        ({"prompts": {"a": {"query": "x"}}}, "prompts: Dense has none that a dataset could change"),
        ({"loss": {"a": InfoNCE()}}, "loss: none for 'b', which has examples"),
        ({"loss": {"a": InfoNCE(), "b": InfoNCE(logq=True)}}, "streamed"),
        ({"loss": Entries()}, "loss: entries: needs all examples in memory"),
        ({"loss": {"a": InfoNCE(), "b": InfoNCE(similarity="dot")}}, "in different ways"),
        ({"refresh": lambda step: []}, r"negatives\.refresh: needs all examples in memory"),
    ],
)
def test_what_does_not_go_together(
    tiny: ModuleType, tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    parts = {"a": streamed(tiny), "b": tiny.examples(8)}
    loss = given.pop("loss", InfoNCE()) if "loss" in given else InfoNCE()
    with pytest.raises(ConfigError, match=message):
        fit(tiny.Dense(), parts, loss, output=tmp_path, trainer=TRAINER, **given)
    assert not list(tmp_path.glob("checkpoint-*"))
