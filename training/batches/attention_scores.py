"""Scores of documents of several vectors, by attention of the query (pseudo-query embeddings)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sluice.training.batches.token_scores import tokens_of
from sluice.training.protocol import Similarity


@dataclass(frozen=True, slots=True)
class AttentionScoring:
    """How queries ``[B, dim]`` and documents ``[N, k, dim]`` make scores ``[B, N]``.

    <q, sum_j a_j c_j> with a = softmax_j <q, c_j>; rows of zeros are not vectors. (Tang et al.
    2021.) A document without any scores 0.
    """

    @property
    def similarity(self) -> Similarity:
        """What losses take their default temperature by: queries have their sharpness already."""
        return "dot"

    @property
    def facts(self) -> dict[str, Any]:
        """The settings that change what is learnt."""
        return {"name": "attention"}

    def scores(self, queries: Tensor, documents: Tensor, *, unit: bool = False) -> Tensor:
        """Return ``[B, N]``. Memory: the products ``[B, N, k]`` are kept for the gradient."""
        filled = tokens_of(documents)  # [N, k]
        products = torch.einsum("bd,nkd->bnk", queries, documents)
        # where there is none, the products are zeros, and so is their mean
        attended = filled | ~filled.any(dim=1, keepdim=True)
        shares = products.masked_fill(~attended, -torch.inf).softmax(dim=2)
        return (shares * products).sum(dim=2)
