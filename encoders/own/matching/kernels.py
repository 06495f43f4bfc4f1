"""KNRM and Conv-KNRM: how many tokens, or n-grams, of the document are about so similar."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.own.matching.ranker import Head, MatchingRanker
from sluice.encoders.own.matching.sources import Pairs, Texts

EXACT = 1e-3  # the width of the kernel of exact matches
LEAST = 1e-10  # of a kernel's sum, below which its logarithm would lose the others
SCALE = 0.01  # of features, as the authors' code has it


class Kernels(nn.Module):
    """``sum_i log sum_j exp(-(c_ij - mu)^2 / (2 sigma^2))`` of cosines c, for each of K kernels.

    The first has mu 1 and sigma 0.001, which counts exact matches; the others lie evenly over -1 to
    1, as wide as they are apart: 0.9, 0.7 ... -0.9 with sigma 0.1 for K = 11. A sum below 1e-10
    counts as that. (Xiong et al., 2017, K-NRM, eq. 4 to 6.)
    """

    def __init__(self, kernels: int) -> None:
        super().__init__()
        whole_number(kernels, "kernels", 2, 101)
        step = 2 / (kernels - 1)
        self.means = [1.0, *(1 - step / 2 - step * number for number in range(kernels - 1))]
        self.widths = [EXACT, *[step / 2] * (kernels - 1)]

    def sums(self, cosines: Tensor, documents: Tensor) -> Tensor:
        """Return K ``[n, queries', kernels]`` of cosines ``[n, queries', documents']``.

        ``documents`` ``[n, documents']`` is where there are tokens.
        """
        there = documents.unsqueeze(1).to(cosines.dtype)
        made = [
            (torch.exp(-((cosines - mean) ** 2) / (2 * width**2)) * there).sum(2)
            for mean, width in zip(self.means, self.widths, strict=True)
        ]
        return torch.stack(made, dim=2)

    def forward(self, cosines: Tensor, queries: Tensor, documents: Tensor) -> Tensor:
        """Return features ``[n, kernels]``; ``queries`` is as ``documents`` of ``sums``."""
        logs = self.sums(cosines, documents).clamp(min=LEAST).log()
        return SCALE * (logs * queries.unsqueeze(2)).sum(1)


class KernelPooling(Head):
    """A linear map of the kernels' features.

    ``kernels`` (11): one for exact matches, the others evenly over the cosines from -1 to 1.

    Without the published tanh around it, which changes no order and would bound the scores that
    losses see.
    """

    def __init__(self, dim: int, *, kernels: int = 11) -> None:
        super().__init__()
        self.kernels = Kernels(kernels)
        self.outer = nn.Linear(kernels, 1)

    def forward(self, pairs: Pairs) -> Tensor:
        """Return scores ``[n]``."""
        features = self.kernels(pairs.cosines(), pairs.queries.mask, pairs.documents.mask)
        scores: Tensor = self.outer(features).squeeze(-1)
        return scores


class KNRM(MatchingRanker):
    """Counts how many document tokens are about so similar to each query token, by kernels.

    (Xiong et al., 2017, End-to-End Neural Ad-hoc Ranking with Kernel Pooling.)
    """

    kind = "knrm"
    head = KernelPooling


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
