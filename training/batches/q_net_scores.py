"""Scores of documents by queries that are small networks (Hypencoder)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from sluice.encoders.foundation.q_net import NORM_EPSILON, QNetShape
from sluice.training.protocol import Similarity


@dataclass(frozen=True, slots=True)
class QNetScoring:
    """How flat q-nets ``[B, width]`` make scores ``[B, N]`` of documents ``[N, dim]``.

    ``encoders.foundation.q_net`` has the formula. ``unit``: documents have length 1.
    """

    shape: QNetShape
    unit: bool = False

    @property
    def similarity(self) -> Similarity:
        """The cosine where scores begin as one (``product``), else what is not bounded."""
        return "cosine" if self.unit and self.shape.product else "dot"

    @property
    def facts(self) -> dict[str, Any]:
        """The settings that change what is learnt."""
        return {"name": "q_net", **self.shape._asdict()}

    def scores(self, queries: Tensor, documents: Tensor, *, unit: bool = False) -> Tensor:
        """Return ``[B, N]``: all networks over all documents, a layer at a time.

        Memory: the states of a layer are ``[B, N, dim]``, and all are kept for the gradient.
        """
        dim, hidden, product = self.shape
        count, square, start = len(queries), dim * dim, 0
        states = documents.expand(count, *documents.shape)  # [B, N, dim]
        for number in range(hidden):
            weights = queries[:, start : start + square].view(count, dim, dim)
            bias = queries[:, start + square : start + square + dim, None].transpose(1, 2)
            values = torch.baddbmm(bias, states, weights).relu()
            values = layer_norm(values, (dim,), eps=NORM_EPSILON)
            states = values + states if number < hidden - 1 else values
            start += square + dim
        output = queries[:, start : start + dim, None]
        scores = (states @ output).squeeze(2)
        if product:
            scores = scores + queries[:, start + dim :] @ documents.T
        return scores
