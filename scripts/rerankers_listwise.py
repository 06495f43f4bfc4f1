"""A similarity head whose candidates see each other, for ``scripts/rerankers.py``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from sluice.encoders.rerankers.similarity_head import SimilarityHead

WIDTH, HEADS = 64, 4


class ListwiseHead(SimilarityHead):
    """The similarity head's score, plus what attention over a query's candidates makes of them.

    A candidate is the product of the mean states of both texts, of unit length, and its score; the
    order of the candidates does not matter. Pairs come ``size`` candidates a query. What is added
    is 0 at the start.
    """

    def __init__(self, start: SimilarityHead, size: int) -> None:
        super().__init__(start.inner.in_features)
        self.load_state_dict(start.state_dict())
        self.size = size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(13)
            self.narrow = nn.Linear(start.inner.in_features + 1, WIDTH)
            self.before = nn.LayerNorm(WIDTH)
            self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
            self.wide = nn.Linear(WIDTH, WIDTH)
            self.added = nn.Linear(WIDTH, 1)
        nn.init.zeros_(self.added.weight)
        nn.init.zeros_(self.added.bias)

    def forward(
        self, states: Tensor, queries: Tensor, documents: Tensor, ids: Tensor | None = None
    ) -> Tensor:
        """Return scores float32 ``[n]``, n a multiple of ``size``."""
        scores = super().forward(states, queries, documents, ids)
        with torch.autocast(states.device.type, enabled=False):
            means = [_mean(states.float(), side) for side in (queries, documents)]
            product = normalize(means[0] * means[1], dim=-1)
            inputs = torch.cat([product * product.shape[1] ** 0.5, scores[:, None] / 10], dim=1)
            each = self.narrow(inputs).view(-1, self.size, WIDTH)
            normal = self.before(each)
            seen = each + self.attention(normal, normal, normal, need_weights=False)[0]
            added: Tensor = self.added(torch.tanh(self.wide(seen))).reshape(-1)
        return scores + added


def _mean(states: Tensor, side: Tensor) -> Tensor:
    return (states * side.unsqueeze(-1)).sum(1) / side.sum(1, keepdim=True).clamp(min=1)
