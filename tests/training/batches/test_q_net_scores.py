"""Scores of q-nets in training: those of search, with gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sluice.encoders.foundation.q_net import QNetShape, q_net_scores
from sluice.training.batches.scoring import QNetScoring

SHAPES = [QNetShape(3, hidden, product) for hidden in (0, 1, 3) for product in (False, True)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scores_are_those_of_search(shape: QNetShape) -> None:
    drawn = torch.Generator().manual_seed(1)
    queries = torch.randn(4, shape.width, generator=drawn)
    documents = torch.randn(5, 3, generator=drawn)
    scores = QNetScoring(shape).scores(queries, documents)
    assert np.allclose(scores, q_net_scores(queries.numpy(), documents.numpy()), atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients(shape: QNetShape) -> None:
    drawn = torch.Generator().manual_seed(2)
    queries = torch.randn(2, shape.width, generator=drawn, dtype=torch.float64)
    documents = torch.randn(3, 3, generator=drawn, dtype=torch.float64)
    parts = (queries.requires_grad_(), documents.requires_grad_())
    assert torch.autograd.gradcheck(QNetScoring(shape).scores, parts)


def test_cosines_and_what_is_not_bounded_have_other_default_temperatures() -> None:
    assert QNetScoring(QNetShape(3, 1, product=True), unit=True).similarity == "cosine"
    assert QNetScoring(QNetShape(3, 1, product=True)).similarity == "dot"
    assert QNetScoring(QNetShape(3, 1), unit=True).similarity == "dot"
