"""Scores of pseudo-queries in training: those of search, with gradients."""

from __future__ import annotations

import numpy as np
import torch

from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing.own.pseudo_queries import attended
from sluice.training.batches.scoring import AttentionScoring


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    """Three queries; four documents of 3, 1, 2 and no vectors."""
    draw = torch.Generator().manual_seed(1)
    queries = torch.randn(3, 5, generator=draw, dtype=torch.float64)
    documents = torch.randn(4, 3, 5, generator=draw, dtype=torch.float64)
    documents[1, 1:] = 0
    documents[2, 1] = 0
    documents[3] = 0
    return queries, documents


def test_scores_are_those_of_search() -> None:
    queries, documents = drawn()
    scores = AttentionScoring().scores(queries, documents).numpy()
    ragged = TokenVectors.of([each[(each != 0).any(1)].numpy() for each in documents], 5)
    for line, query in zip(scores, queries.numpy().astype(np.float32), strict=True):
        np.testing.assert_allclose(line[:3], attended(query, ragged)[:3], rtol=1e-5)
        products = documents[0].numpy() @ query
        shares = np.exp(products) / np.exp(products).sum()
        np.testing.assert_allclose(line[0], shares @ products, rtol=1e-6)
    assert (scores[:, 3] == 0).all()


def test_gradients() -> None:
    queries, documents = (each.requires_grad_() for each in drawn())
    filled = (documents.detach() != 0).to(documents.dtype)
    function = AttentionScoring().scores
    assert torch.autograd.gradcheck(lambda q, d: function(q, d * filled), (queries, documents))
