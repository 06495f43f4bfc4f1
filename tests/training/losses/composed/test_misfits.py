"""Queries as negatives against straight formulas, and what has none of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from vector_batches import INFO, agree, examples, gradients, made, random_batch

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training import fit
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.loop.checkpoint import load_examples, save_examples
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.losses.own.negatives import Misfits

ROWS = [0, 0, 2, 3, 3, 3]  # of each misfit; query 1 has none


def misfitting(cosine: bool = True, **changes: Any) -> tuple[VectorBatch, Tensor]:
    """Four queries with two positives and a negative each, and six misfits."""
    torch.manual_seed(7)
    misfits = torch.randn(len(ROWS), 8, dtype=torch.float64, requires_grad=True)
    queries = torch.tensor(ROWS), misfits
    made_of = examples(4, 1, 2)
    return random_batch(made_of, cosine=cosine, negative_queries=queries, **changes), misfits


def unit(vector: Tensor, cosine: bool) -> Tensor:
    return vector / vector.square().sum().sqrt() if cosine else vector


def straight(batch: VectorBatch, misfits: Tensor, form: str, temperature: float) -> list[Tensor]:
    """The loss of each query with misfits, a loop over its documents and those."""
    values = []
    for row in sorted(set(ROWS)):
        query = unit(batch.queries[row], batch.cosine)
        own = [unit(misfits[n], batch.cosine) for n, of in enumerate(ROWS) if of == row]
        terms = []
        for column in (3 * row, 3 * row + 1):  # its two positives
            document = unit(batch.documents[column], batch.cosine)
            if form == "triplet":
                near = (document - query).square().sum().sqrt()
                for misfit in own:
                    far = (document - misfit).square().sum().sqrt()
                    terms.append(torch.clamp(near - far + 1.0, min=0.0))
            else:
                right = torch.exp(document @ query / temperature)
                wrong = sum(torch.exp(document @ misfit / temperature) for misfit in own)
                terms.append(-torch.log(right / (right + wrong)))
        values.append(torch.stack(terms).mean())
    return values


@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.parametrize("form", ["triplet", "softmax"])
def test_it_is_the_formula(form: str, cosine: bool) -> None:
    temperature = 0.4 if form == "softmax" else 0.1
    settings = {"temperature": temperature} if form == "softmax" else {}
    batch, misfits = misfitting(cosine)
    loss = made("misfits", loss=INFO, form=form, weight=0.3, **settings)
    plain = InfoNCE(temperature=0.1).over(batch)
    terms = straight(batch, misfits, form, temperature)
    theirs = plain + 0.3 * sum(terms) / 3
    agree(loss.over(batch), theirs, batch.queries, batch.documents, misfits)
    assert 0 <= loss.notes()["misfits_told"] <= 1
    weights = torch.tensor([3.0, 7.0, 1.0, 0.0], dtype=torch.float64)
    batch, misfits = misfitting(cosine, weights=weights)
    terms = straight(batch, misfits, form, temperature)
    theirs = InfoNCE(temperature=0.1).over(batch) + 0.3 * (3 * terms[0] + terms[1]) / 4
    agree(loss.over(batch), theirs, batch.queries, batch.documents, misfits)


def test_with_one_misfit_each_it_is_the_triplet_loss_of_torch() -> None:
    misfits = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
    batch = random_batch(examples(4), cosine=False, negative_queries=(torch.arange(4), misfits))
    theirs = torch.nn.TripletMarginLoss(margin=0.7, eps=0.0)
    ours = made("misfits", loss=INFO, weight=1.0, margin=0.7).over(batch)
    plain = InfoNCE(temperature=0.1).over(batch)
    both = plain + theirs(batch.documents, batch.queries, misfits)
    agree(ours, both, batch.queries, batch.documents, misfits, within=1e-9)
    # one misfit, softmax: the logistic loss of the difference
    gap = (batch.documents * (misfits - batch.queries)).sum(1)
    ours = made("misfits", loss=INFO, form="softmax", weight=1.0, temperature=1.0).over(batch)
    logistic = plain + torch.log1p(torch.exp(gap)).mean()
    agree(ours, logistic, batch.queries, batch.documents, misfits)


def test_far_apart_vectors_have_a_finite_loss() -> None:
    batch, _ = misfitting(cosine=False)
    far = replace(batch, negative_queries=(torch.tensor([0]), batch.documents[:1] * 1e3))
    value = made("misfits", form="softmax", temperature=0.01).over(far)
    assert math.isfinite(value.item())
    assert all(torch.isfinite(each).all() for each in gradients(value, batch.documents))
    same = replace(batch, negative_queries=(torch.tensor([0]), batch.documents[:1].detach()))
    value = made("misfits").over(same)  # a distance of 0
    assert all(torch.isfinite(each).all() for each in gradients(value, batch.documents))


def test_without_misfits_it_is_the_loss_inside() -> None:
    loss = made("misfits", weight=3.0)
    none = torch.zeros(0, dtype=torch.long), torch.zeros(0, 8, dtype=torch.float64)
    for queries in (None, none):
        batch = random_batch(examples(4, 1), negative_queries=queries)
        agree(loss.over(batch), InfoNCE(temperature=0.1).over(batch), batch.queries)
    assert loss.notes() == {}
    assert "negative_queries" in loss.wants


def test_a_step_moves_the_document_from_its_misfit_to_its_query() -> None:
    batch, misfits = misfitting()
    loss = made("misfits", weight=1.0)
    plain = InfoNCE(temperature=0.1).over(batch)
    (step,) = gradients(loss.over(batch) - plain, batch.documents)
    moved = torch.nn.functional.normalize(batch.documents - 0.05 * step, dim=1)
    before = torch.nn.functional.normalize(batch.documents, dim=1)
    own, wrong = batch.queries[2], misfits[2]
    gaps = [
        torch.cosine_similarity(d[6], own, dim=0) - torch.cosine_similarity(d[6], wrong, dim=0)
        for d in (before, moved)
    ]
    assert gaps[1] > gaps[0]
    assert step[[2, 3, 4, 5, 8, 11]].abs().max() < 1e-15  # negatives, a query without misfits
    assert step[[0, 1, 6, 7, 9, 10]].abs().max() > 1e-3


def test_inside_and_around_others() -> None:
    """Prefixes are compared with prefixes of the misfits; a sum asks for them too."""
    batch, misfits = misfitting()
    whole = made("matryoshka", dims=[8, 4], loss={"type": "misfits", "loss": INFO}).over(batch)
    short = batch.with_vectors(
        batch.queries[:, :4], batch.documents[:, :4],
        negative_queries=(torch.tensor(ROWS), misfits[:, :4]),
    )  # fmt: skip
    parts = [made("misfits", loss=INFO).over(each) for each in (batch, short)]
    agree(whole, parts[0] + parts[1], batch.documents, misfits)
    total = made("sum", losses=[{"type": "star"}, {"type": "misfits"}])
    assert "negative_queries" in total.wants
    assert not made("sum", losses=[{"type": "star"}]).wants


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"form": "pairs"}, "form: 'pairs'; expected one of 'triplet', 'softmax'"),
        ({"temperature": 0.5}, "misfits.temperature: 0.5 does nothing: it is of form: softmax"),
        ({"form": "softmax", "margin": 0.5}, "margin: 0.5 does nothing: it is of form: triplet"),
        ({"loss": {"type": "localized_softmax"}}, "trains cross_encoder; misfits is for dense"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        made("misfits", **settings)


def test_a_form_is_checked_in_python_too() -> None:
    with pytest.raises(ConfigError, match=r"form: 'pairs'; expected one of triplet, softmax"):
        Misfits(form="pairs")  # type: ignore[arg-type]


def test_negative_queries_and_losses_belong_together(tiny: ModuleType, tmp_path: Path) -> None:
    plain = tiny.examples(8)
    with_some = [replace(plain[0], negative_queries=("what is topic3",)), *plain[1:]]
    once = {"max_steps": 1, "per_device_train_batch_size": 4}

    def train(of: Any, kind: str, encoder: Any = None) -> Any:
        trained = tiny.Dense() if encoder is None else encoder
        return fit(trained, of, made(kind), output=tmp_path / kind, trainer=once)

    with pytest.raises(ConfigError, match=r"info_nce reads no negative_queries, which 1 of 8"):
        train(with_some, "info_nce")
    with pytest.raises(DataError, match="none of 8 training examples has any; give rows negative"):
        train(plain, "misfits")
    with pytest.raises(ConfigError, match="loss: misfits trains dense, splade; a Cross encoder"):
        train(with_some, "misfits", tiny.Cross())
    assert train(with_some, "misfits").steps == 1


def test_examples_keep_their_negative_queries(tmp_path: Path) -> None:
    first, second, third = examples(3, 1)
    some = [
        replace(first, negative_queries=("a", "b")), replace(second, source="s"),
        replace(third, source="s", negative_queries=("c",)), examples(1)[0],
    ]  # fmt: skip
    save_examples(tmp_path / "e.jsonl", some)
    assert load_examples(tmp_path / "e.jsonl") == some
