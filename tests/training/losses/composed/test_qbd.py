"""Query by document against its formula."""

from typing import Any

import pytest
import torch
from score_losses import gradient, same
from torch import Tensor

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses import LOSSES


def taught(spec: dict[str, Any]) -> Any:
    return build(spec, LOSSES, where="loss")


def grouped(weight: float, margin: float = 1.0, **vectors: Tensor) -> tuple[Any, VectorBatch]:
    labels = torch.tensor([[1.0, 0, 0], [0, 1, 0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    torch.manual_seed(3)
    batch = VectorBatch(
        vectors.get("queries", torch.randn(2, 4, dtype=torch.float64, requires_grad=True)),
        vectors.get("documents", torch.randn(5, 4, dtype=torch.float64, requires_grad=True)),
        labels,
        mask,
        torch.tensor([0, 1]),
        torch.tensor([0, 0, 0, 1, 1]),
        matrix=torch.randn(2, 3, dtype=torch.float64, requires_grad=True),
    )
    return taught({"type": "qbd", "triplet_weight": weight, "margin": margin}), batch


def test_qbd_formula() -> None:
    loss, batch = grouped(0.3, margin=2.0)
    assert "texts" in loss.wants
    assert loss.forms == ("scores",)
    queries, documents = batch.queries, batch.documents
    apart = [[(queries[r] - documents[n]).norm() for n in range(5)] for r in range(2)]
    triplet = (
        (torch.relu(apart[0][0] - apart[0][1] + 2) + torch.relu(apart[0][0] - apart[0][2] + 2)) / 2
        + torch.relu(apart[1][4] - apart[1][3] + 2)
    ) / 2
    softmax = taught({"type": "localized_softmax"})
    straight = softmax(batch.matrix, batch.labels, batch.mask) + 0.3 * triplet
    for one in (queries, documents, batch.matrix):
        same(loss.over(batch), straight, one)
    builtin = torch.nn.functional.triplet_margin_loss(
        queries[[0, 0]], documents[[0, 0]], documents[[1, 2]], margin=2.0, eps=0.0
    )
    first = (
        torch.relu(apart[0][0] - apart[0][1] + 2) + torch.relu(apart[0][0] - apart[0][2] + 2)
    ) / 2
    assert builtin.item() == pytest.approx(first.item(), abs=1e-10)


def test_qbd_without_triplets_is_its_base() -> None:
    loss, batch = grouped(0.0)
    assert not loss.wants
    base = taught({"type": "localized_softmax"})
    plain = base(batch.matrix, batch.labels, batch.mask)
    assert torch.equal(loss.over(batch), plain)
    assert torch.equal(gradient(loss.over(batch), batch.matrix), gradient(plain, batch.matrix))


def test_qbd_of_equal_texts_and_of_none() -> None:
    same_text = torch.ones(2, 4, dtype=torch.float64, requires_grad=True)
    loss, batch = grouped(1.0, queries=same_text, documents=same_text.detach()[[0] * 5])
    assert torch.isfinite(gradient(loss.over(batch), same_text)).all()
    loss, batch = grouped(1.0, documents=torch.zeros(0, 4).double())
    with pytest.raises(ConfigError, match="0 vectors of 5 documents"):
        loss.over(batch)


def test_qbd_takes_any_base() -> None:
    loss = taught({"type": "qbd", "base": {"type": "margin_mse"}})
    assert loss.needs_teacher
    with pytest.raises(ConfigError, match=r"base.type: unknown type 'bcee'; .*'bce'"):
        taught({"type": "qbd", "base": {"type": "bcee"}})
    with pytest.raises(ConfigError, match=r"base: info_nce does not train a cross_encoder"):
        taught({"type": "qbd", "triplet_weight": 0, "base": {"type": "info_nce", "chunk": 8}})
