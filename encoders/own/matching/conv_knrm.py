"""Conv-KNRM: KNRM between the n-grams of both texts, of every two lengths."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.own.matching.knrm import Kernels
from sluice.encoders.own.matching.ranker import Head, MatchingRanker
from sluice.encoders.own.matching.sources import Pairs, Texts


class NGramKernels(Head):
    """Kernels between the n-grams of both texts, of every two lengths, then a linear map.

    The n-gram at place i is ``relu(W [v_i, ..., v_{i + n - 1}] + b)``, with zeros beyond the end,
    so that a text has as many of each length as it has tokens. (eq. 1 to 7; without the tanh around
    the map, as in KNRM here.)

    ``kernels`` (11): one for exact matches, the others evenly over the cosines from -1 to 1.
    ``ngrams`` (3): the tokens of the longest n-gram.
    ``filters`` (128): the numbers of an n-gram's vector.
    """

    def __init__(self, dim: int, *, kernels: int = 11, ngrams: int = 3, filters: int = 128) -> None:
        super().__init__()
        whole_number(ngrams, "ngrams", 1, 5)
        whole_number(filters, "filters", 1, 1024)
        self.kernels = Kernels(kernels)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(dim, filters, length) for length in range(1, ngrams + 1)
        )
        self.outer = nn.Linear(ngrams**2 * kernels, 1)

    def grams(self, texts: Texts) -> list[Tensor]:
        """Return unit vectors ``[n, longest, filters]`` of the n-grams of each length."""
        vectors, made = texts.vectors.transpose(1, 2), []
        for size, convolution in enumerate(self.convolutions):
            grams = torch.relu(convolution(functional.pad(vectors, (0, size)))).transpose(1, 2)
            made.append(functional.normalize(grams, dim=-1) * texts.mask.unsqueeze(2))
        return made

    def forward(self, pairs: Pairs) -> Tensor:
        """Return scores ``[n]``."""
        queries, documents = self.grams(pairs.queries), self.grams(pairs.documents)
        masks = pairs.queries.mask, pairs.documents.mask
        features = [
            self.kernels(one @ other.transpose(1, 2), *masks)
            for one, other in product(queries, documents)
        ]
        scores: Tensor = self.outer(torch.cat(features, dim=1)).squeeze(-1)
        return scores


class ConvKNRM(MatchingRanker):
    """KNRM between the n-grams of query and document, of every two lengths.

    (Dai et al., 2018, Convolutional Neural Networks for Soft-Matching N-Grams in Ad-hoc Search.)
    """

    kind = "conv_knrm"
    head = NGramKernels
