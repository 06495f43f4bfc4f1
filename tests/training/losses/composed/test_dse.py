"""The pair head: its loss against a formula, its folder, what training leaves."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from vector_batches import INFO, Sixteen, agree, examples, made, random_batch

from sluice.encoders import DenseEncoder
from sluice.encoders.dense.error_adapter import PairHead
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.losses.own.heads import DSE, RRRA


def taught(weights: Tensor | None = None) -> tuple[DSE, VectorBatch]:
    encoder = Sixteen()
    batch = random_batch(examples(3, 2), 16, cosine=False, options={"negatives": "own"})
    torch.manual_seed(9)
    teacher = torch.randn(3, 9, dtype=torch.float64)
    teacher[0, 1] = math.nan
    loss: DSE = made("dse", hidden=7)
    loss.bind(encoder, 3)
    assert loss.head is not None
    loss.head.double()
    return loss, dataclasses.replace(batch, teacher=teacher, weights=weights)


@pytest.mark.parametrize("weighted", [True, False])
def test_dse_is_the_formula(weighted: bool) -> None:
    weights = torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64) if weighted else None
    loss, batch = taught(weights)
    head: Any = loss.head
    errors, entropies, shares, told = [], [], [], []
    for i in range(3):
        for column in range(3 * i, 3 * i + 3):
            u, v = batch.queries[i], batch.documents[column]
            features = torch.cat([u, v, u * v, (u - v).abs()])
            hidden = torch.relu(head.inner.weight @ features + head.inner.bias)
            score = (head.outer.weight @ hidden + head.outer.bias)[0]
            label = batch.labels[i, column]
            probability = torch.sigmoid(score)
            entropies.append(-(label * probability.log() + (1 - label) * (1 - probability).log()))
            share = 1.0 if weights is None else float(weights[i])
            shares.append(share)
            if not batch.teacher[i, column].isnan():  # type: ignore[index]
                errors.append((score - batch.teacher[i, column]) ** 2)  # type: ignore[index]
                told.append(share)

    def mean(values: list[Tensor], by: list[float]) -> Tensor:
        return sum(v * w for v, w in zip(values, by, strict=True)) / sum(by)  # type: ignore[return-value]

    theirs = 0.5 * mean(errors, told) + 0.5 * mean(entropies, shares)
    agree(loss.over(batch), theirs, batch.queries, batch.documents, *head.parameters())


def test_dse_is_zero_when_the_student_is_the_teacher() -> None:
    loss, batch = taught()
    loss.coefficient = 1.0
    rows, columns = batch.mask.nonzero(as_tuple=True)
    head: Any = loss.head
    own = head(batch.queries[rows], batch.documents[columns]).detach()
    teacher = torch.full((3, 9), math.nan, dtype=torch.float64)
    teacher[rows, columns] = own
    value = loss.over(dataclasses.replace(batch, teacher=teacher))
    assert float(value.detach()) == 0.0
    nothing = loss.over(dataclasses.replace(batch, teacher=torch.full_like(teacher, math.nan)))
    assert float(nothing.detach()) == 0.0
    with pytest.raises(DataError, match="no teacher's scores"):
        loss.over(dataclasses.replace(batch, teacher=None))


def test_dse_can_leave_the_task_to_the_vectors() -> None:
    loss: DSE = made("dse", loss=INFO, task="vectors", coefficient=0.0, hidden=4)
    assert not loss.needs_teacher
    loss.bind(Sixteen(), 3)
    batch = random_batch(examples(3, 2), 16)
    assert loss.head is not None
    loss.head.double()
    agree(loss.over(batch), InfoNCE(temperature=0.1).over(batch), batch.queries, batch.documents)


def test_dse_keeps_its_head(bert: Path, texts: list[str], tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = DenseEncoder.from_pretrained(bert)
    loss: DSE = made("dse", hidden=9, head_learning_rate=1e-3)
    with pytest.raises(ConfigError, match="no head yet"):
        loss.parameters()
    loss.bind(encoder, 3)
    assert loss.forms == ("dense",)
    assert loss.needs_teacher
    assert loss.negatives == "own"
    assert loss.learning_rate == 1e-3
    assert len(list(loss.parameters())) == 4
    other: DSE = made("dse", hidden=9)
    other.bind(encoder, 4)
    other.restore(loss.state())
    assert loss.head is not None
    assert other.head is not None
    assert torch.equal(other.head.inner.weight, loss.head.inner.weight)

    encoder.save_pretrained(tmp_path / "model")
    loss.save(tmp_path / "model")
    head = PairHead.load(tmp_path / "model")
    vectors = encoder.encode_documents(texts)
    scores = head.score(vectors, vectors[::-1])
    assert scores.dtype == np.float32
    with torch.no_grad():
        straight = loss.head(torch.from_numpy(vectors), torch.from_numpy(vectors[::-1].copy()))
    np.testing.assert_allclose(scores, straight.numpy(), rtol=1e-6)
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(texts)
    np.testing.assert_allclose(theirs, vectors, atol=1e-5)
    with pytest.raises(DataError, match=r"expected \[n, 32\] of both"):
        head.score(vectors, vectors[:, :5])


def test_a_pair_head_that_is_ill(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no pair head"):
        PairHead.load(tmp_path)
    PairHead(4, 3).save(tmp_path)
    config = tmp_path / "pair_head" / "config.json"
    config.write_text(json.dumps({"dim": 5, "hidden": 3}))
    with pytest.raises(ModelError, match="does not fit"):
        PairHead.load(tmp_path)
    config.write_text(json.dumps({"dim": "5"}))
    with pytest.raises(ModelError, match="expected 1 or more"):
        PairHead.load(tmp_path)
    with pytest.raises(ConfigError, match="expected 1 or more"):
        PairHead(0)


def test_a_head_comes_with_bind_and_goes_on_where_it_was(bert: Path) -> None:
    """As of every loss with a head: refused before, its tensors named, its rate above 0."""
    encoder = DenseEncoder.from_pretrained(bert, device="cpu")
    for kind, name in ((DSE, "head"), (RRRA, "adapter")):
        loss, other = kind(head_learning_rate=0.5), kind()
        assert (loss.learning_rate, other.learning_rate) == (0.5, other.inner.learning_rate)
        assert loss.forms == ("dense",)
        with pytest.raises(ConfigError, match=rf"{loss.called}: has no {name} yet; call bind"):
            loss.parameters()
        loss.bind(encoder, seed=1)
        other.bind(encoder, seed=2)
        state = loss.state()
        own = {key.removeprefix(f"{name}.") for key in state if key.startswith(f"{name}.")}
        assert own == set(loss._head().state_dict())
        other.restore(state)
        for one, two in zip(loss.parameters(), other.parameters(), strict=True):
            assert torch.equal(one, two)
        for wrong in (0.0, -1.0):
            with pytest.raises(ConfigError, match=rf"{loss.called}.head_learning_rate: "):
                kind(head_learning_rate=wrong)
