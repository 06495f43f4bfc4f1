"""Readers of the matrix of a pair's similarities: KNRM, MatchPyramid, PACRR, DRMM, Duet."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.own.matching.ranker import Head, MatchingRanker
from sluice.encoders.own.matching.sources import NO_TOKEN, Gate, Pairs, Texts

EXACT_WIDTH = 1e-3  # the width of the kernel of exact matches
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
        self.widths = [EXACT_WIDTH, *[step / 2] * (kernels - 1)]

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


def pooled(values: Tensor, lengths: Tensor, parts: int, axis: int) -> Tensor:
    """Return the largest values of ``parts`` equal parts of each row's own length along an axis.

    ``values`` ``[n, ...]``, ``lengths`` ``[n]``. Part p of a length L is from floor(p L / parts) to
    ceil((p + 1) L / parts), so that none is empty where L is not 0; zeros where it is. (Pang et
    al., 2016, dynamic pooling.)
    """
    shape = [1] * values.dim()
    shape[0], shape[axis] = len(values), values.shape[axis]
    places = torch.arange(values.shape[axis], device=values.device)
    lowest = torch.finfo(values.dtype).min
    made = []
    for part in range(parts):
        starts = (part * lengths).div(parts, rounding_mode="floor")
        ends = ((part + 1) * lengths + parts - 1).div(parts, rounding_mode="floor")
        inside = (places >= starts.unsqueeze(1)) & (places < ends.unsqueeze(1))
        largest = values.masked_fill(~inside.view(shape), lowest).amax(axis)
        empty = (lengths == 0).view([-1] + [1] * (largest.dim() - 1))
        made.append(largest.masked_fill(empty, 0.0))
    return torch.stack(made, dim=axis)


class Image(Head):
    """A 3 x 3 convolution of the matrix of cosines, dynamic max pooling, and a hidden layer.

    ``filters`` (8): of the convolution, which has a ReLU.
    ``rows`` (3): what pooling leaves of the query's places.
    ``columns`` (10): what pooling leaves of the document's places.
    ``hidden`` (32): the units between these and the score.
    """

    def __init__(
        self, dim: int, *, filters: int = 8, rows: int = 3, columns: int = 10, hidden: int = 32
    ) -> None:
        super().__init__()
        for name, value in (("filters", filters), ("rows", rows), ("columns", columns)):
            whole_number(value, name, 1, 256)
        whole_number(hidden, "hidden", 1, 1024)
        self.grid = rows, columns
        self.convolution = nn.Conv2d(1, filters, 3, padding=1)
        self.network = nn.Sequential(
            nn.Linear(filters * rows * columns, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, pairs: Pairs) -> Tensor:
        """Return scores ``[n]``."""
        image = torch.relu(self.convolution(pairs.cosines().unsqueeze(1)))
        image = pooled(image, pairs.queries.lengths, self.grid[0], 2)
        image = pooled(image, pairs.documents.lengths, self.grid[1], 3)
        scores: Tensor = self.network(image.flatten(1)).squeeze(-1)
        return scores


class MatchPyramid(MatchingRanker):
    """Reads the matrix of a pair's similarities as an image, by a convolution.

    (Pang et al., 2016, Text Matching as Image Recognition.)
    """

    kind = "match_pyramid"
    head = Image


WINDOWS = 8  # parts of a document that are represented


class LocalAndDistributed(Head):
    """The sum of a local and a distributed model.

    Local: a matrix of which tokens of the query equal which of the document, a map of its rows to
    as many numbers as there are filters, and two layers over all rows.

    Distributed: convolutions of three tokens of both texts, the largest values of the query and of
    8 equal parts of the document, a layer for each, their products, and two layers over these.

    ``filters`` (64): of the convolutions, and the units of all layers.
    ``query_terms`` (16): the first tokens of a query, which alone the local model sees.
    ``document_terms`` (128): the first tokens of a document, which alone the local model sees.
    """

    def __init__(
        self, dim: int, *, filters: int = 64, query_terms: int = 16, document_terms: int = 128
    ) -> None:
        super().__init__()
        whole_number(filters, "filters", 1, 1024)
        whole_number(query_terms, "query_terms", 1, 512)
        whole_number(document_terms, "document_terms", 1, 8192)
        self.window = query_terms, document_terms
        self.rows = nn.Linear(document_terms, filters)
        self.local = _two_layers(query_terms * filters, filters)
        self.convolutions = nn.ModuleList(nn.Conv1d(dim, filters, 3, padding=1) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(filters, filters) for _ in range(2))
        self.distributed = _two_layers(WINDOWS * filters, filters)

    def matches(self, pairs: Pairs) -> Tensor:
        """Return which tokens are equal, ``[n, query_terms, document_terms]`` of 0 and 1."""
        queries, documents = (
            functional.pad(ids, (0, size - ids.shape[1]), value=NO_TOKEN)  # cuts where it is longer
            for ids, size in zip((pairs.queries.ids, pairs.documents.ids), self.window, strict=True)
        )
        equal = (queries.unsqueeze(2) == documents.unsqueeze(1)) & (queries >= 0).unsqueeze(2)
        return equal.to(pairs.queries.vectors.dtype)

    def represented(self, texts: Texts, side: int, parts: int) -> Tensor:
        """Return ``[n, parts, filters]`` of the queries (side 0) or documents (1)."""
        values = torch.tanh(self.convolutions[side](texts.vectors.transpose(1, 2)))
        largest = pooled(values, texts.lengths, parts, 2).transpose(1, 2)
        made: Tensor = torch.tanh(self.layers[side](largest))
        return made

    def forward(self, pairs: Pairs) -> Tensor:
        """Return scores ``[n]``."""
        local = self.local(torch.tanh(self.rows(self.matches(pairs))).flatten(1))
        query = self.represented(pairs.queries, 0, 1)
        documents = self.represented(pairs.documents, 1, WINDOWS)
        distributed = self.distributed((query * documents).flatten(1))
        scores: Tensor = (local + distributed).squeeze(-1)
        return scores


def _two_layers(inputs: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 1))


class Duet(MatchingRanker):
    """Adds what exact matches say, by their places, to what learnt representations say.

    (Mitra et al., 2017, Learning to Match Using Local and Distributed Representations of Text.)
    """

    kind = "duet"
    head = LocalAndDistributed
