"""Counts of an inverted index, and what each term adds to a score."""

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
