"""Queries that BM25 weighs as documents: posts, or the reasoning of an agent."""

from __future__ import annotations


class LongQuery(str):
    """A query that BM25 reads as a document: its terms count by k1 and b as those of documents do.

    Any other encoder reads the text. The weight of a term in the query is then

        idf * tf / (tf + k1 * (1 - b + b * length / avgdl)) * idf

    with tf and length of the query and avgdl of the documents: a repeated term saturates, and idf
    counts on both sides (query-side BM25; Ge et al., 2025, Lighting the Way for BRIGHT, arXiv
    2509.02558; Anserini's QuerySideBm25QueryGenerator).
    """

    __slots__ = ()
