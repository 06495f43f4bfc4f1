"""PACRR: the best matches of each query token, alone and as n-grams, read in the query's order."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.own.matching.ranker import Head, MatchingRanker
from sluice.encoders.own.matching.sources import Gate, Pairs


class BestMatches(Head):
    """The largest signals of each query token and n-gram length, read by an LSTM.

    Signals of length 1 are cosines, of length n the largest of several n x n convolutions with a
    ReLU, which begin at the token. Beside a token's signals stands its ``Gate``, in the place of
    the published softmax of IDF, which would need a corpus. The LSTM's last state makes the score.

    ``ngrams`` (3): the tokens of the longest n-gram.
    ``filters`` (32): the convolutions of each length above 1.
    ``top`` (2): the signals of a query token and length that are read.
    ``hidden`` (8): the units of the LSTM.
    """

    def __init__(
        self, dim: int, *, ngrams: int = 3, filters: int = 32, top: int = 2, hidden: int = 8
    ) -> None:
        super().__init__()
        whole_number(ngrams, "ngrams", 1, 5)
        whole_number(filters, "filters", 1, 1024)
        whole_number(top, "top", 1, 64)
        whole_number(hidden, "hidden", 1, 1024)
        self.top = top
        self.convolutions = nn.ModuleList(
            nn.Conv2d(1, filters, size) for size in range(2, ngrams + 1)
        )
        self.gate = Gate(dim)
        self.reader = nn.LSTM(ngrams * top + 1, hidden, batch_first=True)
        self.outer = nn.Linear(hidden, 1)

    def signals(self, pairs: Pairs) -> Tensor:
        """Return ``[n, queries', ngrams * top]``; zeros where a document has too few tokens."""
        cosines = pairs.cosines()
        image, made = cosines.unsqueeze(1), [cosines]
        for size, convolution in enumerate(self.convolutions, start=1):
            around = functional.pad(image, (0, size, 0, size))
            made.append(torch.relu(convolution(around)).amax(1))
        lowest = torch.finfo(cosines.dtype).min
        documents = pairs.documents.mask.unsqueeze(1)
        count = min(self.top, cosines.shape[2])
        best = []
        for each in made:
            largest = each.masked_fill(~documents, lowest).topk(count, dim=2).values
            largest = largest.masked_fill(largest == lowest, 0.0)
            best.append(functional.pad(largest, (0, self.top - count)))
        return torch.cat(best, dim=2) * pairs.queries.mask.unsqueeze(2)

    def forward(self, pairs: Pairs) -> Tensor:
        """Return scores ``[n]``."""
        queries = pairs.queries
        rows = torch.cat([self.signals(pairs), self.gate(queries).unsqueeze(2)], dim=2)
        states = self.reader(rows)[0]  # [n, queries', hidden]
        last = (queries.lengths - 1).clamp(min=0)
        state = states[torch.arange(len(states), device=states.device), last]
        scores: Tensor = self.outer(state * (queries.lengths > 0).unsqueeze(1)).squeeze(-1)
        return scores


class PACRR(MatchingRanker):
    """Reads the best matches of each query token, alone and as n-grams, in the query's order.

    (Hui et al., 2017, PACRR: A Position-Aware Neural IR Model for Relevance Matching.)
    """

    kind = "pacrr"
    head = BestMatches
