"""DUET: where exact matches stand, plus what learnt representations have in common."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.own.matching.match_pyramid import pooled
from sluice.encoders.own.matching.ranker import Head, MatchingRanker
from sluice.encoders.own.matching.sources import NO_TOKEN, Pairs, Texts

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
