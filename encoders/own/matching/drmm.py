"""DRMM: a histogram of each query token's similarities, judged by a small network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.own.matching.ranker import Head, MatchingRanker
from sluice.encoders.own.matching.sources import Gate, Pairs

EXACT = 0.999  # a cosine from here on is an exact match


class Histograms(Head):
    """``sum_i g_i tanh(W2 tanh(W1 log(1 + h_i) + b1) + b2)``: eq. 1 to 4, with LogCount histograms.

    h_i counts the cosines of query token i, g is the ``Gate``. A cosine between the centres of two
    bins counts in both by its distance, so that rounding never moves a count from one to the next.

    ``bins`` (30): the last is for exact matches, the others lie evenly over -1 to 1.
    ``hidden`` (5): the units between a histogram and its score.
    """

    differentiable = False

    def __init__(self, dim: int, *, bins: int = 30, hidden: int = 5) -> None:
        super().__init__()
        whole_number(bins, "bins", 3, 1001)
        whole_number(hidden, "hidden", 1, 1024)
        self.bins = bins
        self.network = nn.Sequential(
            nn.Linear(bins, hidden), nn.Tanh(), nn.Linear(hidden, 1), nn.Tanh()
        )
        self.gate = Gate(dim)

    def counts(self, pairs: Pairs) -> Tensor:
        """Return h ``[n, queries', bins]``."""
        cosines = pairs.cosines().detach().clamp(-1.0, 1.0)
        exact = cosines >= EXACT
        place = (cosines + 1) / 2 * (self.bins - 2)  # of the centres, from 0 on
        below = place.floor().clamp(max=self.bins - 3)
        share = place - below
        below = below.long()
        counts = cosines.new_zeros((*cosines.shape[:2], self.bins))
        there = pairs.mask
        for bin_of, weight in (
            (below, (1 - share) * ~exact),
            (below + 1, share * ~exact),
            (torch.full_like(below, self.bins - 1), exact),
        ):
            counts.scatter_add_(2, bin_of, (weight * there).to(counts.dtype))
        return counts

    def forward(self, pairs: Pairs) -> Tensor:
        """Return scores ``[n]``."""
        judged = self.network(torch.log1p(self.counts(pairs))).squeeze(-1)
        scores: Tensor = (judged * self.gate(pairs.queries)).sum(1)
        return scores


class DRMM(MatchingRanker):
    """Judges a histogram of each query token's similarities, and weighs the tokens.

    (Guo et al., 2016, A Deep Relevance Matching Model for Ad-hoc Retrieval.)
    """

    kind = "drmm"
    head = Histograms
