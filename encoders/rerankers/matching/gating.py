"""How much each token of a query counts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sluice.encoders.rerankers.matching.texts import Texts


class Gate(nn.Module):
    """``softmax_i(w v_i)`` over the vectors of a text's tokens; zeros for a text without any.

    (Guo et al., 2016, DRMM, eq. 4, with the term's vector as its input, which needs no statistics
    of a corpus.)
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Linear(dim, 1, bias=False)

    def forward(self, texts: Texts) -> Tensor:
        """Return ``[n, longest]``."""
        logits = self.weight(texts.vectors).squeeze(-1)
        # Finite, as a softmax over nothing but -inf is NaN, and so would be its gradient.
        hidden = logits.masked_fill(~texts.mask, torch.finfo(logits.dtype).min)
        return torch.softmax(hidden, dim=1) * texts.mask
