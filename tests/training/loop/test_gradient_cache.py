"""Gradient caching against the gradient of the whole batch, dropout replayed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training import fit
from sluice.training.batches.vector_batch import score_matrix
from sluice.training.loop.large_batches import cached_backward
from sluice.training.losses.contrastive.pairs import BCE
from sluice.training.losses.contrastive.softmax import InfoNCE


class Network(nn.Module):
    """Mean of embeddings with dropout, in float64."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(50, 7, dtype=torch.float64)
        self.layer = nn.Linear(7, 5, dtype=torch.float64)
        self.dropout = nn.Dropout(dropout)

    def forward(self, **features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._vectors(**part) for name, part in features.items()}

    def _vectors(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask[..., None].double()
        mean = (self.words(input_ids) * mask).sum(1) / mask.sum(1)
        return self.layer(self.dropout(mean))


def texts(count: int, longest: int, seed: int) -> dict[str, Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=drawn)
    mask = (torch.arange(longest)[None] < lengths[:, None]).long()
    ids = torch.randint(1, 50, (count, longest), generator=drawn) * mask
    return {"input_ids": ids, "attention_mask": mask}


def objective(vectors: Mapping[str, Tensor]) -> Tensor:
    queries, documents = vectors["query"], vectors["document"]
    scores = score_matrix(queries, documents, cosine=True)
    labels = torch.eye(len(queries), len(documents), dtype=scores.dtype)
    penalty = documents.abs().mean(0).square().sum() + queries.abs().sum(1).mean()
    return InfoNCE(temperature=0.1, symmetric=True)(scores, labels) + 0.1 * penalty


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_equals_the_whole_batch(size: int) -> None:
    network = Network(0.0)
    features = {"query": texts(6, 5, 1), "document": texts(13, 9, 2)}
    whole = objective(network(**features))
    expected = torch.autograd.grad(whole * 0.5, list(network.parameters()))
    value = cached_backward(
        lambda part: network(**part), features, size, objective, arithmetic=nullcontext, share=0.5
    )
    assert abs(value - whole).item() < 1e-12
    for parameter, gradient in zip(network.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert (parameter.grad - gradient).abs().max() < 1e-12


def test_all_chunks_but_the_largest_are_encoded_twice() -> None:
    network, seen = Network(0.0), []

    def encode(part: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
        seen.append(sum(each["input_ids"].numel() for each in part.values()))
        return network(**part)  # type: ignore[no-any-return]

    features = {"query": texts(6, 5, 1), "document": texts(13, 9, 2)}
    cached_backward(encode, features, 4, objective, arithmetic=nullcontext)
    assert len(seen) == 2 * (2 + 4) - 1
    assert seen.count(max(seen)) == 1


def test_a_scaled_loss_scales_all_gradients() -> None:
    """As under fp16: the scaler divides every gradient by its scale afterwards."""
    network = Network(0.0)
    features = {"query": texts(6, 5, 1), "document": texts(13, 9, 2)}
    expected = torch.autograd.grad(objective(network(**features)), list(network.parameters()))
    cached_backward(
        lambda part: network(**part), features, 4, objective, arithmetic=nullcontext,
        backward=lambda value: torch.autograd.backward(value * 1024),
    )  # fmt: skip
    for parameter, gradient in zip(network.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert (parameter.grad / 1024 - gradient).abs().max() < 1e-12


def test_dropout_is_replayed() -> None:
    network = Network(0.5)
    features = {"query": texts(6, 5, 1), "document": texts(13, 9, 2)}
    torch.manual_seed(11)
    value = cached_backward(
        lambda part: network(**part), features, 4, objective, arithmetic=nullcontext
    )
    after = torch.get_rng_state()
    # By hand: the same chunks in the same order, all in one graph.
    torch.manual_seed(11)
    made = {}
    for name, part in features.items():
        lengths = part["attention_mask"].sum(1)
        order = torch.argsort(lengths, stable=True, descending=True)
        chunks = [network(**{name: {k: v[r] for k, v in part.items()}})[name] for r in
                  torch.split(order, 4)]  # fmt: skip
        made[name] = torch.cat(chunks)[torch.argsort(order)]
    whole = objective(made)
    assert torch.equal(torch.get_rng_state(), after)
    assert abs(whole - value).item() < 1e-12
    expected = torch.autograd.grad(whole, list(network.parameters()))
    for parameter, gradient in zip(network.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert (parameter.grad - gradient).abs().max() < 1e-12


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["Dense", "Splade", "Cross"])
def test_a_training_ends_at_the_same_weights(tiny: ModuleType, tmp_path: Path, kind: str) -> None:
    job: dict[str, Any] = dict(tiny.JOB)
    if kind != "Splade":
        del job["sparsity"]
    ends = []
    for cache in (None, 3):
        encoder = getattr(tiny, kind)(dropout=0.0)
        output = tmp_path / str(cache)
        loss = BCE() if kind == "Cross" else InfoNCE(similarity="dot")
        fit(encoder, tiny.examples(), loss, output=output, gradient_cache=cache, **job)
        ends.append(tiny.weights_of(encoder))
    for name, value in ends[0].items():
        assert torch.allclose(value, ends[1][name], atol=2e-6), name


def test_bf16_gradients_reach_the_weights(tiny: ModuleType, tmp_path: Path) -> None:
    """Autocast keeps the casts of the pass without a graph: the second must not use them."""
    job = {**tiny.JOB, "trainer": {**tiny.JOB["trainer"], "bf16": True, "max_steps": 3}}
    before, encoder = tiny.weights_of(tiny.Splade()), tiny.Splade()
    fit(encoder, tiny.examples(), InfoNCE(), output=tmp_path, gradient_cache=3, **job)
    after = tiny.weights_of(encoder)
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert any("layer.0.intermediate.dense.weight" in name for name in moved)


def test_bad_sizes_and_losses(tiny: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gradient_cache"):
        fit(tiny.Dense(), tiny.examples(), InfoNCE(), output=tmp_path, gradient_cache=0)

    def broken(scores: Tensor, *_: Any) -> Tensor:
        return scores.sum() * float("nan")

    with pytest.raises(DataError, match=r"step 1.*batch of q"):
        fit(tiny.Dense(), tiny.examples(), broken, output=tmp_path, gradient_cache=2)
