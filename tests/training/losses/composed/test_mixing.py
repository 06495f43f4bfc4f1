"""CLP and online mixing against formulas."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize
from vector_batches import INFO, Sixteen, agree, examples, gradients, made, random_batch

from sluice.encoders.foundation.errors import DataError
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.losses.own.negatives import Mixing, mixed_negatives


def answering(weights: Tensor | None = None) -> tuple[VectorBatch, Tensor]:
    """Negatives of the first two queries answer others; a positive is listed by mistake."""
    torch.manual_seed(3)
    answered = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    columns = torch.tensor([1, 3, 4])
    batch = random_batch(examples(4, 1), answered=(columns, answered), weights=weights)
    return batch, answered


def test_clp_is_the_formula() -> None:
    batch, answered = answering()
    ours = made("clp", loss=INFO).over(batch)
    gaps = [
        1 - torch.cosine_similarity(batch.documents[column], answered[row], dim=0)
        for row, column in ((0, 1), (1, 3))
    ]
    theirs = 0.9 * InfoNCE(temperature=0.1).over(batch) + 0.1 * torch.stack(gaps).mean()
    agree(ours, theirs, batch.queries, batch.documents, answered)


def test_clp_weighs_negatives_with_their_rows() -> None:
    weights = torch.tensor([3.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    batch, answered = answering(weights)
    gaps = 1 - torch.cosine_similarity(batch.documents[[1, 3]], answered[:2], dim=1)
    ours = made("clp", loss=INFO, penalty=1.0).over(batch)
    agree(ours, 0.75 * gaps[0] + 0.25 * gaps[1], batch.documents, answered)


def test_clp_without_a_penalty_is_info_nce() -> None:
    batch, _ = answering()
    base = InfoNCE(temperature=0.02).over(batch)
    agree(made("clp", penalty=0.0).over(batch), base, batch.queries, batch.documents)
    nothing = random_batch(examples(4, 1))
    loss = made("clp")
    assert "answered" in loss.wants
    agree(
        loss.over(nothing) / 0.9,
        InfoNCE(temperature=0.02).over(nothing),
        nothing.queries,
        nothing.documents,
    )
    assert loss.notes() == {"clp_drift": 0.0, "clp_answered": 0.0}


def test_the_penalty_is_zero_at_the_query_and_points_to_it() -> None:
    batch, answered = answering()
    loss = made("clp", penalty=1.0)
    same = dataclasses.replace(
        batch, answered=(torch.tensor([1, 3]), batch.documents[[1, 3]].detach() * 2)
    )
    assert abs(float(loss.over(same).detach())) < 1e-12
    (step,) = gradients(loss.over(batch), batch.documents)
    for row, column in ((0, 1), (1, 3)):
        moved = batch.documents[column] - 0.1 * step[column]
        before = torch.cosine_similarity(batch.documents[column], answered[row], dim=0)
        assert torch.cosine_similarity(moved, answered[row], dim=0) > before
    assert not step[[0, 2, 4, 5, 6, 7]].any()


class Seen:
    """An inner loss that keeps the batch it was given."""

    def over(self, batch: VectorBatch) -> Tensor:
        self.batch = batch
        return batch.scores().sum()


@pytest.mark.parametrize("cosine", [True, False])
def test_mixing_is_the_formula(cosine: bool) -> None:
    batch = random_batch(examples(4, 3), cosine=cosine)
    loss = made("mixing", loss=INFO, mixing_temperature=0.5)
    loss.bind(Sixteen(), 5)
    ours = loss.over(batch)
    random = np.random.default_rng([5, 0])
    shares = random.beta(2.0, 2.0, size=4)
    order = random.random((4, 16))
    queries, documents = batch.queries, batch.documents
    if cosine:
        queries, documents = normalize(queries, dim=1), normalize(documents, dim=1)
    rows = []
    for i in range(4):
        own = [4 * i + 1, 4 * i + 2, 4 * i + 3]
        first, second = sorted(own, key=lambda column, i=i: -order[i, column])[:2]
        pairwise = shares[i] * documents[first] + (1 - shares[i]) * documents[second]
        alpha = torch.softmax(documents[own] @ queries[i] / 0.5, dim=0)
        listwise = (alpha[:, None] * documents[own]).sum(0)
        if cosine:
            pairwise, listwise = pairwise / pairwise.norm(), listwise / listwise.norm()
        logits = torch.stack(
            [*(documents @ queries[i]), pairwise @ queries[i], listwise @ queries[i]]
        )
        rows.append(torch.logsumexp(logits / 0.1, 0) - logits[4 * i] / 0.1)
    agree(ours, torch.stack(rows).mean(), batch.queries, batch.documents)


def test_mixing_adds_two_terms_to_every_query_and_only_grows_it() -> None:
    batch = random_batch(examples(4, 3))
    seen = Seen()
    Mixing(seen).over(batch)
    assert seen.batch.scores().shape == (4, 18)
    assert (seen.batch.mask.sum(1) - batch.mask.sum(1)).tolist() == [2, 2, 2, 2]
    assert not seen.batch.labels[:, 16:].any()
    loss = made("mixing", loss=INFO)
    for step in range(5):
        loss.advance(step)
        base = InfoNCE(temperature=0.1).over(batch)
        assert (loss.over(batch) >= base).item()


def test_queries_with_fewer_than_two_negatives_are_not_mixed() -> None:
    batch = random_batch(examples(4, 1))
    seen = Seen()
    Mixing(seen).over(batch)
    assert torch.equal(seen.batch.mask.sum(1), batch.mask.sum(1))
    agree(
        made("mixing", loss=INFO).over(batch),
        InfoNCE(temperature=0.1).over(batch),
        batch.queries,
        batch.documents,
    )
    assert all(found.isfinite().all() for found in gradients(
        made("mixing", loss=INFO).over(batch), batch.queries, batch.documents
    ))  # fmt: skip


def test_mixed_vectors_have_unit_length_and_leave_masked_documents_out() -> None:
    batch = random_batch(examples(4, 3))
    mixed = mixed_negatives(batch, temperature=0.1, random=np.random.default_rng(0))
    for vectors in (mixed.pairwise, mixed.listwise):
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones(4, dtype=torch.float64))
    mask = batch.mask.clone()
    mask[:, 1] = False
    masked = dataclasses.replace(batch, mask=mask)
    again = mixed_negatives(masked, temperature=0.1, random=np.random.default_rng(0))
    value = again.pairwise[0].sum() + again.listwise[0].sum()
    (found,) = gradients(value, batch.documents)
    assert not found[[0, 1]].any()
    assert found[2].any()


def test_two_equal_negatives_mix_to_themselves() -> None:
    batch = random_batch(examples(3, 2))
    with torch.no_grad():
        batch.documents[[2, 5, 8]] = batch.documents[[1, 4, 7]]
    mixed = mixed_negatives(batch, temperature=0.1, random=np.random.default_rng(0))
    unit = normalize(batch.documents[[1, 4, 7]], dim=1)
    torch.testing.assert_close(mixed.pairwise, unit)
    torch.testing.assert_close(mixed.listwise, unit)


def test_mixing_draws_by_seed_and_step() -> None:
    batch = random_batch(examples(4, 3))
    values = []
    for seed, step in ((1, 0), (1, 0), (1, 1), (2, 0)):
        loss = made("mixing", loss=INFO)
        loss.bind(Sixteen(), seed)
        loss.advance(step)
        values.append(float(loss.over(batch).detach()))
    assert values[0] == values[1]
    assert len(set(values)) == 3
    kept = made("mixing", loss=INFO)
    kept.bind(Sixteen(), 1)
    kept.restore(loss.state() | {"step": torch.tensor(1)})
    assert float(kept.over(batch).detach()) == values[2]


def test_contrastive_distillation_adds_the_divergence() -> None:
    batch = random_batch(examples(4, 2))
    torch.manual_seed(8)
    teacher = torch.where(
        batch.owners == torch.arange(4)[:, None], torch.randn(4, 12, dtype=torch.float64), math.nan
    )
    batch = dataclasses.replace(batch, teacher=teacher)
    loss = made("mixing", loss=INFO, distillation=0.7, distillation_temperature=0.2)
    assert loss.needs_teacher
    assert not made("mixing").needs_teacher
    rows = []
    scores = batch.scores()
    for i in range(4):
        own = slice(3 * i, 3 * i + 3)
        goal = torch.softmax(teacher[i, own] / 0.2, 0)
        rows.append((goal * (goal / torch.softmax(scores[i, own] / 0.2, 0)).log()).sum())
    theirs = made("mixing", loss=INFO).over(batch) + 0.7 * torch.stack(rows).mean()
    agree(loss.over(batch), theirs, batch.queries, batch.documents)
    with pytest.raises(DataError, match="no teacher's scores"):
        loss.over(dataclasses.replace(batch, teacher=None))


def test_focal_weights_are_the_inner_losss() -> None:
    batch = random_batch(examples(4, 3))
    plain = made("mixing", loss=INFO)
    focal = made("mixing", loss={**INFO, "focal_gamma": 0.5})
    none = made("mixing", loss={**INFO, "focal_gamma": 0.0})
    assert torch.equal(plain.over(batch), none.over(batch))
    assert (focal.over(batch) < plain.over(batch)).item()
