"""Training on examples of several sources: one source a batch, resumed, cached, refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sluice.encoders.foundation.errors import ConfigError
from sluice.training import Example, fit
from sluice.training.loop.checkpoint import examples_hash, load_examples, save_examples
from sluice.training.losses.contrastive.softmax import InfoNCE

TRAINER = {
    "max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 1e-3, "save_steps": 2,
    "logging_steps": 1, "save_total_limit": 10,
}  # fmt: skip


def examples(tiny: ModuleType) -> list[Example]:
    """Eighteen examples of one source and six of another, mixed."""
    return [
        replace(each, source="small" if place % 4 == 0 else "large")
        for place, each in enumerate(tiny.examples(24))
    ]


def trained(tiny: ModuleType, output: Path, **settings: Any) -> tuple[Any, list[set[str]]]:
    """Return the trained encoder and, for each batch, the sources of its queries."""
    encoder = tiny.Dense(dropout=0.0)
    seen: list[set[str]] = []
    some = examples(tiny)
    source_of = {each.query.text: each.source for each in some}
    tokenize = encoder.tokenize

    def watched(texts: Any, side: str) -> Any:
        if side == "query":
            seen.append({source_of[text] for text in texts})
        return tokenize(texts, side)

    encoder.tokenize = watched
    fit(encoder, some, InfoNCE(), output=output, trainer=TRAINER, **settings)
    return encoder, seen


def test_every_batch_is_of_one_source(tiny: ModuleType, tmp_path: Path) -> None:
    _, seen = trained(tiny, tmp_path, sampling_temperature=1.0)
    assert all(len(sources) == 1 for sources in seen)
    # batches of an epoch: 5 of 18 examples and 2 of 6, by size 5.25 and 1.75
    assert [next(iter(sources)) for sources in seen].count("small") in (1, 2)
    assert len(seen) >= 6


def test_a_resumed_training_equals_the_undisturbed(tiny: ModuleType, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    whole, _ = trained(tiny, tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    for step in (4, 6):
        shutil.rmtree(tmp_path / "two" / f"checkpoint-{step}")
    resumed, _ = trained(tiny, tmp_path / "two")
    for name, value in tiny.weights_of(whole).items():
        assert torch.equal(value, tiny.weights_of(resumed)[name]), name


def test_the_gradient_cache_changes_nothing(tiny: ModuleType, tmp_path: Path) -> None:
    plain, _ = trained(tiny, tmp_path / "plain")
    cached, _ = trained(tiny, tmp_path / "cached", gradient_cache=2)
    for name, value in tiny.weights_of(plain).items():
        assert torch.allclose(value, tiny.weights_of(cached)[name], atol=1e-5), name


def test_examples_are_saved_with_their_source(tiny: ModuleType, tmp_path: Path) -> None:
    some = examples(tiny)
    save_examples(tmp_path / "examples.jsonl", some)
    assert load_examples(tmp_path / "examples.jsonl") == some
    assert examples_hash(some) != examples_hash([replace(each, source="") for each in some])


@pytest.mark.parametrize(
    ("temperature", "message"),
    [
        (0.0, "sampling_temperature: 0.0, expected a number above 0"),
        (float("nan"), "sampling_temperature: nan, expected"),
        (2.0, "weighs several datasets, and the examples are of one or have weights; leave it out"),
    ],
)
def test_a_temperature_that_means_nothing(
    tiny: ModuleType, tmp_path: Path, temperature: float, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(
            tiny.Dense(), tiny.examples(), InfoNCE(), output=tmp_path,
            sampling_temperature=temperature,
        )  # fmt: skip
