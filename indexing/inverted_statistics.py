"""What is counted of an inverted index: documents, terms, and the work that queries ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Contribution(NamedTuple):
    """What one term adds to a score: ``contribution`` is ``query_weight`` times ``impact``."""

    term: int
    query_weight: float
    impact: float
    contribution: float


@dataclass(frozen=True, slots=True)
class InvertedStatistics:
    """Counts of an inverted index, deleted documents included until ``compact``."""

    documents: int
    terms: int  # width of the vocabulary
    used_terms: int  # terms that some document carries
    postings: int
    mean_terms: float  # per document: the L0 of documents
    longest: int  # postings of the most frequent term
    segments: int


@dataclass(frozen=True, slots=True)
class QueryStatistics:
    """What queries ask of an index; ``flops`` predicts ``multiplications / documents``.

    FLOPS is the sum over the terms of the share of queries times the share of documents that carry
    it (Paria et al., 2020; Formal et al., 2021): the mean number of shared terms.
    """

    mean_terms: float  # per query: the L0 of queries
    flops: float
    multiplications: float  # per query, of the exhaustive engine
