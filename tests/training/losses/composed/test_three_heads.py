"""Three heads trained together: the paper's formula in numpy, its gradient, whole trainings."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import save_model
from torch import Tensor
from vector_batches import examples, made

from sluice.encoders import DenseEncoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.encoders.own.three_heads.encoder import HeadEncoder
from sluice.encoders.own.three_heads.packing import HeadVectors, pack, unpack
from sluice.training import fit
from sluice.training.batches.vector_batch import VectorBatch, matrix_targets
from sluice.training.losses.own.three_heads import HEADS, ThreeHeads

HIDDEN, DIM = 11, 4
MADE = examples(3, negatives=2)


def drawn(count: int, length: int, seed: int) -> HeadVectors:
    """Vectors as an encoder makes them: repeated terms, tokens without weight, no first token."""
    rng = torch.Generator().manual_seed(seed)
    dense = torch.nn.functional.normalize(torch.randn(count, HIDDEN, generator=rng).double())
    terms = torch.randint(5, 12, (count, length), generator=rng)
    weights = torch.relu(torch.randn(count, length, generator=rng).double())
    tokens = torch.randn(count, length, DIM, generator=rng).double()
    tokens = torch.nn.functional.normalize(tokens, dim=2)
    tokens[:, 0] = 0
    tokens[0, -1] = 0  # a shorter text
    weights[0, -1] = 0
    return HeadVectors(dense, terms, weights, tokens)


def batch_of(sides: list[HeadVectors]) -> VectorBatch:
    targets = matrix_targets(MADE)
    owners = torch.tensor([row for row, e in enumerate(MADE) for _ in e.documents])
    return VectorBatch(
        *map(pack, sides),
        labels=targets.labels, mask=targets.mask, positives=targets.positives, owners=owners,
        weights=torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64),
    )  # fmt: skip


class Trunk:
    state_width = HIDDEN


class Bound:
    kind, trunk = "three_heads", Trunk()


def loss_of(**settings: Any) -> ThreeHeads:
    loss: ThreeHeads = made("three_heads", **settings)
    loss.bind(Bound(), 1)
    return loss


def plain_scores(queries: HeadVectors, documents: HeadVectors) -> dict[str, Any]:
    """Each head's scores by the paper's words, one pair at a time."""
    asked, answers = (
        [[part[row].detach().numpy() for part in side] for row in range(len(side.dense))]
        for side in (queries, documents)
    )
    scores = {head: np.zeros((len(asked), len(answers))) for head in HEADS}
    for i, (q_dense, q_terms, q_weights, q_tokens) in enumerate(asked):
        for j, (d_dense, d_terms, d_weights, d_tokens) in enumerate(answers):
            scores["dense"][i, j] = q_dense @ d_dense
            for term in set(q_terms) & set(d_terms):
                weight = q_weights[q_terms == term].max() * d_weights[d_terms == term].max()
                scores["sparse"][i, j] += weight
            real = [token for token in q_tokens if token.any()]
            best = [max(token @ other for other in d_tokens if other.any()) for token in real]
            scores["tokens"][i, j] = sum(best) / len(real)
    return scores


def softmax(row: Any) -> Any:
    powers = np.exp(row - row.max())
    return powers / powers.sum()


def expected(batch: VectorBatch, scores: dict[str, Any], heat: float, distil: bool) -> float:
    labels, mask = batch.labels.numpy(), batch.mask.numpy()
    share = batch.weights.numpy() / batch.weights.sum().item()
    mixed = scores["dense"] + 0.3 * scores["sparse"] + scores["tokens"]

    def nce(table: Any) -> float:
        rows = []
        for line, own, counted in zip(table, labels, mask, strict=True):
            shares = np.zeros(len(line))
            shares[counted] = softmax(line[counted] / heat)
            rows.append(-np.log(shares[own > 0][0]))
        return float(share @ rows)

    def taught(table: Any) -> float:
        rows = []
        for line, mix, counted in zip(table, mixed, mask, strict=True):
            student = np.log(softmax(line[counted] / heat))
            rows.append(-softmax(mix[counted] / heat) @ student)
        return float(share @ rows)

    parts = {head: nce(scores[head]) for head in HEADS}
    own = (parts["dense"] + 0.1 * parts["sparse"] + parts["tokens"] + nce(mixed)) / 4
    if not distil:
        return own
    lessons = {head: taught(scores[head]) for head in HEADS}
    learnt = (lessons["dense"] + 0.1 * lessons["sparse"] + lessons["tokens"]) / 3
    return (own + learnt) / 2


def test_packed_vectors_come_back_and_longer_texts_change_nothing() -> None:
    vectors = drawn(3, 6, 1)
    packed = pack(vectors)
    assert packed.shape == (3, 2 + 6, DIM + 2)
    wider = torch.nn.functional.pad(packed, (0, 0, 0, 3))
    for found in (unpack(packed, HIDDEN), unpack(wider, HIDDEN)):
        assert torch.equal(found.dense, vectors.dense)
        for one, other in zip(found[1:], vectors[1:], strict=True):
            assert torch.equal(one[:, :6].to(other.dtype), other)
            assert not one[:, 6:].any()


@pytest.mark.parametrize("distil", [True, False])
def test_the_value_is_the_papers_formula(distil: bool) -> None:
    sides = [drawn(3, 5, 1), drawn(9, 7, 2)]
    scores = plain_scores(*sides)
    for heat in (0.5, 0.02):
        settings = {"temperature": heat} if distil else {}
        loss = loss_of(loss={"type": "info_nce", "temperature": heat}, distil=distil, **settings)
        batch = batch_of(sides)
        value = expected(batch, scores, heat, distil)
        assert loss.over(batch).item() == pytest.approx(value, rel=1e-9)
        assert set(loss.notes()) >= {f"loss_{part}" for part in (*HEADS, "mixture")}


def test_the_gradient_is_that_of_finite_differences() -> None:
    sides = [drawn(3, 5, 3), drawn(9, 6, 4)]
    loss = loss_of(loss={"type": "info_nce", "temperature": 0.5}, temperature=0.7)
    # What teaches is held constant: its gradient is left out of the differences too.
    frozen = torch.stack(
        [{"dense": 1.0, "sparse": 0.3, "tokens": 1.0}[head] * torch.from_numpy(table)
         for head, table in plain_scores(*sides).items()]
    ).sum(0)  # fmt: skip
    taught = loss._distilled
    loss._distilled = lambda matrix, mixed: taught(matrix, frozen)  # type: ignore[method-assign]

    def value(*parts: Tensor) -> Tensor:
        moved = [
            HeadVectors(parts[3 * n], side.terms, parts[3 * n + 1], parts[3 * n + 2])
            for n, side in enumerate(sides)
        ]
        return loss.over(batch_of(moved))

    leaves = [part.clone().requires_grad_() for side in sides for part in (side[0], *side[2:])]
    gradients = torch.autograd.grad(value(*leaves), leaves)
    rng = torch.Generator().manual_seed(9)
    for place, (leaf, gradient) in enumerate(zip(leaves, gradients, strict=True)):
        # Zeros stay zeros: they are no tokens, and no terms.
        move = torch.randn(leaf.shape, generator=rng, dtype=torch.float64) * (leaf != 0)
        ends = []
        for step in (1e-6, -1e-6):
            moved = [part + step * move if at == place else part for at, part in enumerate(leaves)]
            ends.append(value(*moved).item())
        slope = (ends[0] - ends[1]) / 2e-6
        assert (gradient * move).sum().item() == pytest.approx(slope, rel=1e-5, abs=1e-8)
        assert gradient.any()


@pytest.mark.parametrize(
    "other",
    [
        {"mixture": {"sparse": 2.0}}, {"weights": {"tokens": 0.0}}, {"distil": False},
        {"temperature": 0.3}, {"loss": {"type": "info_nce", "temperature": 0.9}},
        {"loss": {"type": "rank_net"}},
    ],
)  # fmt: skip
def test_every_setting_is_heard(other: dict[str, Any]) -> None:
    batch = batch_of([drawn(3, 5, 5), drawn(9, 6, 6)])
    assert abs(loss_of().over(batch) - loss_of(**other).over(batch)) > 1e-6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mixture": {"tokn": 1}}, "unknown head 'tokn'.*did you mean 'tokens'"),
        ({"weights": {"dense": -1}}, r"weights\.dense: -1, expected 0 or more"),
        ({"mixture": dict.fromkeys(HEADS, 0)}, "mixture: 0 for every head"),
        ({"temperature": 0.1, "distil": False}, "set distil: true"),
        ({"loss": {"type": "info_nce", "same_side": True}}, "same_side: true, expected false"),
        ({"loss": {"type": "info_nce", "chunk": 8}}, "expected a loss of scores"),
        ({"loss": {"type": "clp"}}, "expected a loss of scores"),
        ({"loss": {"type": "psl"}}, "cosine: scores are each head's own"),
        ({"loss": {"type": "info_nce", "similarity": "dot"}}, "leave it out"),
        ({"loss": {"type": "matryoshka"}}, "matryoshka needs one head's vectors"),
        (
            {"loss": {"type": "sum", "losses": [{"type": "bixse"}, {"type": "matryoshka"}]}},
            "matryoshka needs one head's vectors",
        ),
    ],
)
def test_what_means_nothing_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made("three_heads", **settings)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return save_model(tmp_path_factory.mktemp("heads") / "bert", "Model", **still)


def trained(model: Path, output: Path, **settings: Any) -> tuple[HeadEncoder, Any]:
    encoder = HeadEncoder.from_pretrained(model, head="tokens", dim=8, document_length=12)
    report = fit(
        encoder, examples(8, negatives=1), made("three_heads", temperature=0.1), output=output,
        trainer={"max_steps": 5, "per_device_train_batch_size": 8, "learning_rate": 2e-2,
                 "logging_steps": 1, "save_strategy": "no", "optim": "sgd"},
        head_learning_rate=5e-2, **settings,
    )  # fmt: skip
    return encoder, report


@pytest.mark.thorough
def test_five_steps_teach_all_heads_also_by_a_gradient_cache(
    model: Path, tmp_path: Path, tiny: ModuleType
) -> None:
    start = HeadEncoder.from_pretrained(model, head="tokens", dim=8, document_length=12)
    before = tiny.weights_of(start)
    del start
    encoder, report = trained(model, tmp_path / "plain")
    losses = [line["loss"] for line in report.history if "loss" in line]
    assert losses[-1] < losses[0] - 0.005, losses
    assert {"loss_dense", "loss_sparse", "loss_tokens", "loss_mixture", "loss_distilled"} <= set(
        report.history[0]
    )
    after = tiny.weights_of(encoder)
    for part in ("model.embeddings", "sparse.weight", "tokens.weight", "tokens.bias"):
        changed = [name for name in before if name.startswith(part)]
        assert any(not torch.equal(before[name], after[name]) for name in changed), part
    cached, _ = trained(model, tmp_path / "cached", gradient_cache=3)
    for name, weight in tiny.weights_of(cached).items():
        torch.testing.assert_close(weight, after[name], rtol=1e-4, atol=1e-6)
    # Saved, it is opened as any of its heads.
    encoder.save_pretrained(tmp_path / "saved")
    texts = ["query 1", "document 2 0"]
    for head in HEADS:
        again = HeadEncoder.from_pretrained(tmp_path / "saved", head=head)
        own = HeadEncoder.__subclasses__()
        view = next(kind for kind in own if kind.head == head)(encoder.trunk)
        one, other = (each.encode_documents(texts) for each in (again, view))
        arrays = [
            each.values if isinstance(each, TokenVectors) else each
            if head == "dense" else each.toarray() for each in (one, other)
        ]  # fmt: skip
        np.testing.assert_allclose(*arrays, atol=1e-6)


def test_heads_that_are_there_are_not_drawn_and_other_losses_refused(
    model: Path, tmp_path: Path
) -> None:
    encoder = HeadEncoder.from_pretrained(model, head="dense", dim=8)
    encoder.save_pretrained(tmp_path / "saved")
    with pytest.raises(ConfigError, match=r"dim: 8: draws new heads, and .* has its own"):
        HeadEncoder.from_pretrained(tmp_path / "saved", head="dense", dim=8)
    settings: dict[str, Any] = {"output": tmp_path / "out", "trainer": {"max_steps": 1}}
    with pytest.raises(ConfigError, match="a three_heads encoder takes three_heads"):
        fit(encoder, MADE, made("info_nce"), **settings)
    with pytest.raises(ConfigError, match="three_heads trains three_heads; a dense encoder"):
        fit(DenseEncoder.from_pretrained(model), MADE, made("three_heads"), **settings)
