"""Losses over prefixes and layers, against formulas and sentence-transformers."""

import dataclasses
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from vector_batches import INFO, Sixteen, agree, examples, gradients, made, random_batch

from sluice.encoders import DenseEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.model_files.layout import SIDECAR, read_object
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.composed.matryoshka import Matryoshka, Matryoshka2D, compression_of
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.losses.math.reduction import width_of
from sluice.training.losses.own.negatives import CLP


def info_nce_rows(scores: Tensor, batch: VectorBatch, temperature: float) -> Tensor:
    """One positive a row: its softmax loss over the cells that count, straight."""
    rows = []
    for i in range(len(scores)):
        cells = scores[i, : batch.mask.shape[1]][batch.mask[i]]
        rows.append(
            torch.log(torch.exp(cells / temperature).sum())
            - scores[i, batch.positives[i]] / temperature
        )
    return torch.stack(rows)


@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.parametrize("same_side", [True, False])
def test_matryoshka_of_the_whole_width_is_the_loss_bit_for_bit(
    cosine: bool, same_side: bool
) -> None:
    batch = random_batch(examples(5, 2), cosine=cosine, options={"same_side": same_side})
    inner = InfoNCE(temperature=0.1, same_side=same_side)
    ours, base = Matryoshka(inner, dims=[8], weights=[1.0]).over(batch), inner.over(batch)
    assert torch.equal(ours, base)
    leaves = batch.queries, batch.documents
    for one, other in zip(gradients(ours, *leaves), gradients(base, *leaves), strict=True):
        assert torch.equal(one, other)


def test_matryoshka_is_the_sum_over_prefixes() -> None:
    batch = random_batch(examples(5, 2))
    ours = made("matryoshka", loss=INFO, dims=[8, 4, 2], weights=[1.0, 0.3, 0.2]).over(batch)
    theirs = torch.zeros((), dtype=torch.float64)
    for dim, weight in ((8, 1.0), (4, 0.3), (2, 0.2)):
        queries, documents = batch.queries[:, :dim], batch.documents[:, :dim]
        scores = normalize(queries, dim=1) @ normalize(documents, dim=1).T
        theirs = theirs + weight * info_nce_rows(scores, batch, 0.1).mean()
    agree(ours, theirs, batch.queries, batch.documents)


def test_matryoshka_is_sentence_transformers() -> None:
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")

    class Given(nn.Module):
        """Stands for a model whose embeddings are the features."""

        def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"sentence_embedding": features["x"]}

        def get_embedding_dimension(self) -> int:
            return 8

    torch.manual_seed(1)
    queries = torch.randn(6, 8, dtype=torch.float64, requires_grad=True)
    documents = torch.randn(6, 8, dtype=torch.float64, requires_grad=True)
    model = Given()
    inner = losses.MultipleNegativesRankingLoss(model, scale=10.0)
    theirs = losses.MatryoshkaLoss(model, inner, [8, 4, 2], [1.0, 0.5, 0.25])(
        [{"x": queries}, {"x": documents}], None
    )
    batch = dataclasses.replace(random_batch(examples(6)), queries=queries, documents=documents)
    ours = made("matryoshka", loss=INFO, dims=[8, 4, 2], weights=[1.0, 0.5, 0.25]).over(batch)
    agree(ours, theirs, queries, documents, within=1e-9)


def test_matryoshka_dims() -> None:
    batch = random_batch(examples(4), dim=100)
    default = made("matryoshka", loss=INFO).over(batch)
    named = made("matryoshka", loss=INFO, dims=[100, 50]).over(batch)
    assert torch.equal(default, named)
    loss = Matryoshka(dims=[32])
    with pytest.raises(ConfigError, match=r"dims: 32, but the encoder's vectors have 16"):
        loss.bind(Sixteen(), 0)
    with pytest.raises(ConfigError, match=r"dims: 128, but the encoder's vectors have 100"):
        Matryoshka(dims=[128]).over(batch)


def test_the_width_of_an_encoder_that_does_not_say_it(tiny: ModuleType) -> None:
    encoder = tiny.Dense()
    state = torch.get_rng_state()
    assert width_of(encoder) == 16
    assert torch.equal(torch.get_rng_state(), state)


def test_matryoshka_slices_what_negatives_answer() -> None:
    columns = torch.tensor([1, 3])
    answered = torch.randn(2, 8, dtype=torch.float64, requires_grad=True)
    batch = random_batch(examples(2, 1), answered=(columns, answered))
    ours = Matryoshka(CLP(INFO, penalty=1.0), dims=[4]).over(batch)
    theirs = (
        1 - torch.cosine_similarity(batch.documents[columns, :4], answered[:, :4], dim=1)
    ).mean()
    agree(ours, theirs, batch.documents, answered)


@pytest.mark.parametrize("kind", ["matryoshka", "matryoshka_2d"])
def test_the_trained_model_says_its_dims(bert: Path, tmp_path: Path, kind: str) -> None:
    encoder = DenseEncoder.from_pretrained(bert)
    loss = made(kind, dims=[32, 16, 8])
    loss.bind(encoder, 3)
    encoder.save_pretrained(tmp_path / "model")
    loss.save(tmp_path / "model")
    assert read_object(tmp_path / "model" / SIDECAR)["matryoshka_dims"] == [32, 16, 8]
    assert DenseEncoder.from_pretrained(tmp_path / "model", dim=8).dim == 8


def layered(depth: int = 4, dim: int = 8, **changes: Any) -> tuple[VectorBatch, list[Tensor]]:
    """A batch with vectors of all layers, the last first, and these as leaves."""
    batch = random_batch(examples(4, 1), dim, **changes)
    stacks = [(batch.queries, batch.documents)]
    for _ in range(depth - 1):
        stacks.append(
            tuple(  # type: ignore[arg-type]
                torch.randn_like(side).requires_grad_() for side in stacks[0]
            )
        )
    leaves = [side for stack in stacks for side in stack]
    return dataclasses.replace(batch, layers=tuple(stacks)), leaves


def some_layers(batch: VectorBatch, numbers: tuple[int, ...], depth: int = 4) -> VectorBatch:
    return dataclasses.replace(
        batch, layers=tuple(batch.layers[depth - number] for number in numbers)
    )


def bound_2d(depth: int = 4, **options: Any) -> Matryoshka2D:
    loss: Matryoshka2D = made("matryoshka_2d", loss=INFO, **options)
    loss.depth, loss.width, loss.seed = depth, 8, 11
    return loss


def straight_2d(batch: VectorBatch, dims: list[int], heat: float = 0.3) -> Tensor:
    inner = InfoNCE(temperature=0.1)

    def term(stack: tuple[Tensor, Tensor]) -> Tensor:
        values = []
        for dim in dims:
            queries, documents = (normalize(side[:, :dim], dim=1) for side in stack)
            values.append(inner(queries @ documents.T, batch.labels, batch.mask))
        return torch.stack(values).sum()

    def texts(stack: tuple[Tensor, Tensor]) -> Tensor:
        return normalize(torch.cat(stack), dim=1) if batch.cosine else torch.cat(stack)

    goal = torch.softmax(texts(batch.layers[0]) / heat, dim=1).detach()
    value = term(batch.layers[0])
    earlier = batch.layers[1:]
    for stack in earlier:
        found = torch.softmax(texts(stack) / heat, dim=1)
        pull = (goal * (goal / found).log()).sum(1).mean() * heat
        value = value + (term(stack) + pull) / len(earlier)
    return value


def test_a_step_of_2d_is_the_formula() -> None:
    batch, leaves = layered()
    loss = bound_2d(dims=[4, 2])
    for step in range(6):
        loss.advance(step)
        numbers = loss.layers(step)
        width, short = loss.prefixes(8, step)
        assert numbers[0] == 4
        assert numbers[1] in (1, 2, 3)
        assert (width, short) in ((8, 4), (8, 2))
        given = some_layers(batch, numbers)
        agree(loss.over(given), straight_2d(given, [width, short]), *leaves)
    assert len({loss.layers(step) for step in range(20)}) == 3
    assert len({loss.prefixes(8, step) for step in range(20)}) == 2


def test_2d_with_the_last_layer_alone_is_matryoshka() -> None:
    batch = random_batch(examples(4, 2))
    loss = bound_2d(dims=[8, 4, 2], layers_per_step=0, dims_per_step=None)
    assert loss.layers(0) == ()
    agree(
        loss.over(batch),
        made("matryoshka", loss=INFO, dims=[8, 4, 2]).over(batch),
        batch.queries,
        batch.documents,
    )
    plain = bound_2d(dims=[8], layers_per_step=0)
    assert torch.equal(plain.over(batch), InfoNCE(temperature=0.1).over(batch))


def test_a_sampled_layer_is_an_unbiased_estimate_of_all() -> None:
    batch, leaves = layered()
    every = bound_2d(dims=[8], layers_per_step=None)
    assert every.layers(5) == (4, 3, 2, 1)
    total = every.over(batch)
    one = bound_2d(dims=[8])
    draws = []
    for wanted in (1, 2, 3):
        step = next(s for s in range(100) if one.layers(s) == (4, wanted))
        one.advance(step)
        draws.append(one.over(some_layers(batch, (4, wanted))))
    agree(torch.stack(draws).mean(), total, *leaves)
    counts = [sum(one.layers(step)[1] == layer for step in range(900)) for layer in (1, 2, 3)]
    assert min(counts) > 250


def test_the_teacher_layer_learns_nothing_from_the_pull() -> None:
    batch, leaves = layered(depth=2)
    loss = bound_2d(depth=2, dims=[8], last_weight=0.0, prior_weight=0.0)
    found = gradients(loss.over(batch), *leaves)
    assert not found[0].any()
    assert not found[1].any()
    assert found[2].any()


def test_2d_is_sentence_transformers(bert: Path) -> None:
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    from sentence_transformers import SentenceTransformer

    encoder = DenseEncoder.from_pretrained(bert)
    encoder.save_pretrained(folder := bert.parent / "for_2d")
    theirs_model = SentenceTransformer(str(folder), device="cpu").eval()
    queries, documents = ["gold river", "deep water", "sparse"], ["gold", "water", "a sparse term"]
    # Its layers are drawn from the embeddings' output too: all of both, and the difference known.
    inner = losses.MultipleNegativesRankingLoss(theirs_model, scale=10.0)
    tokens = [theirs_model.tokenize(side) for side in (queries, documents)]
    only = losses.AdaptiveLayerLoss(theirs_model, inner, n_layers_per_step=-1)
    zero = losses.AdaptiveLayerLoss(
        theirs_model, inner, n_layers_per_step=-1, prior_layers_weight=0.0
    )
    both = [float(loss([dict(t) for t in tokens], None).detach()) for loss in (only, zero)]

    features = [encoder.tokenize(side, "query") for side in (queries, documents)]
    with torch.no_grad():
        states = [encoder.model(**f, output_hidden_states=True).hidden_states for f in features]
        stacks = [
            tuple(
                normalize(encoder._pooled(states[side][layer], f["attention_mask"], "query"), dim=1)
                for side, f in enumerate(features)
            )
            for layer in (2, 1, 0)
        ]
    batch = dataclasses.replace(
        random_batch(examples(3)),
        queries=stacks[0][0], documents=stacks[0][1], layers=tuple(stacks), cosine=True,
    )  # fmt: skip
    values = []
    for prior in (1.0, 0.0):
        loss = made("matryoshka_2d", loss=INFO, dims=[32], layers_per_step=None, prior_weight=prior)
        loss.kl_weight = 2.0  # theirs adds the layers' divergences, ours averages them
        values.append(float(loss.over(batch)))
    np.testing.assert_allclose(values, both, rtol=1e-5)


def test_espresso_is_the_formula() -> None:
    batch, leaves = layered()
    loss = bound_2d(method="ese", compression=3)
    assert loss.layers(4) == (4, 3, 2, 1)

    def straight(stack: tuple[Tensor, Tensor]) -> Tensor:
        value = torch.zeros((), dtype=torch.float64)
        for dim in (8, 3):
            queries, documents = (normalize(side[:, :dim], dim=1) for side in stack)
            scores = queries @ documents.T
            value = value + InfoNCE(temperature=0.1)(scores, batch.labels, batch.mask)
        texts = normalize(torch.cat(stack), dim=1)
        relations = torch.softmax(texts.T @ texts / 8**0.5, dim=1).detach().numpy()
        left, values, _ = np.linalg.svd(relations)
        for column in range(3):
            if left[np.abs(left[:, column]).argmax(), column] < 0:
                left[:, column] *= -1
        target = texts.detach() @ torch.from_numpy(left[:, :3] * values[:3])
        goal, found = torch.softmax(target, 1), torch.softmax(texts[:, :3], 1)
        divergence = (goal * (goal / found).log()).sum(1).mean()
        return value + divergence + ((texts[:, :3] - target) ** 2).mean()

    expected = straight(batch.layers[0])
    for number, stack in zip((3, 2, 1), batch.layers[1:], strict=True):
        expected = expected + straight(stack) / (1 + math.log(1 + number)) / 3
    agree(loss.over(batch), expected, *leaves)


def test_the_compression_keeps_what_a_low_rank_matrix_is() -> None:
    torch.manual_seed(2)
    texts = torch.randn(20, 6, dtype=torch.float64)
    whole = compression_of(texts, 6)
    relations = torch.softmax(texts.T @ texts / 6**0.5, dim=1)
    torch.testing.assert_close(whole @ whole.T, relations @ relations.T)
    torch.testing.assert_close(compression_of(texts, 2), whole[:, :2])


def test_2d_needs_the_layers_it_asked_for(bert: Path) -> None:
    loss = bound_2d(dims=[8])
    with pytest.raises(ConfigError, match="0 layers in the batch, expected 2"):
        loss.over(random_batch(examples(3)))
    with pytest.raises(ConfigError, match="does not provide; train a dense encoder"):
        made("matryoshka_2d").bind(Sixteen(), 1)
    encoder = DenseEncoder.from_pretrained(bert)
    loss = made("matryoshka_2d")
    loss.bind(encoder, 1)
    assert loss.layers(0) == (2, 1)
