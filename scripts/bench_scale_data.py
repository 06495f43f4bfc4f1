"""Collections of any size for ``bench_scale.py``, drawn chunk by chunk and never kept whole.

A chunk is a function of the seed and its number, so the first million of ten is the collection of
one million but for its topics, of which there are more in more documents.

*Passages* have the lengths of MS MARCO's, 56 terms on average. A term comes from the common words
(a Zipf-Mandelbrot law over a million words, the most frequent one in an eighth of the passages) or
from the passage's topic; topics come in no order. Queries ask for two terms of a topic and up to
three common ones. *Expanded* passages have the shape of SPLADE's vectors (``bench_sparse_data``),
in the order of their topics. *Vectors* are noisy copies of 20,000 centres, and these of 400.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from bench_scale_kernels import (
    COMMON_SHIFT,
    TOPIC_WORDS,
    count_tokens,
    draw_tokens,
    topic_word,
    word_at,
)
from bench_sparse_data import VOCABULARY, _easy, _Topics, _topics
from bench_sparse_kernels import draw_documents
from scipy import sparse

CHUNK = 50_000  # documents drawn at a time
WORDS = 1_000_000
DOCUMENTS_OF_A_TOPIC = 100
MEAN_LENGTH, SPREAD = 56.0, 0.4
K1, B = 0.9, 0.4
QUERIES = 500
SEED = 23
GROUPS, CENTRES, NOISE = 400, 20_000, 0.9
MOST_TOPICS = 3_000_000  # documents whose number of SPLADE-like topics more have too

Vectors = sparse.csr_array[Any]


class Passages:
    """Passages as texts or as BM25's vectors, with queries."""

    def __init__(self, documents: int) -> None:
        self.documents = documents
        self.topics = max(documents // DOCUMENTS_OF_A_TOPIC, 10)

    def tokens(self, number: int) -> tuple[Any, Any]:
        """Return the lengths of a chunk's documents, and the ranks of their words."""
        count = min(CHUNK, self.documents - number * CHUNK)
        rng = np.random.default_rng([SEED, number])
        middle = np.log(MEAN_LENGTH) - SPREAD**2 / 2
        lengths = np.clip(rng.lognormal(middle, SPREAD, count), 5, 250).astype(np.int64)
        tokens = np.empty(lengths.sum(), np.int32)
        draw_tokens(SEED * 100_003 + number, lengths, self.topics, WORDS, tokens)
        return lengths, tokens

    def chunks(self) -> Iterator[Vectors]:
        """Yield BM25's vectors; a column is a word's rank."""
        for number in range(-(-self.documents // CHUNK)):
            lengths, tokens = self.tokens(number)
            starts, terms, counts = count_tokens(lengths, tokens)
            damping = K1 * (1 - B + B * lengths / MEAN_LENGTH)
            weights = counts / (counts + np.repeat(damping, np.diff(starts)))
            matrix = sparse.csr_array(
                (weights.astype(np.float32), terms, starts), shape=(len(lengths), WORDS)
            )
            matrix.has_canonical_format = True
            yield matrix

    def texts(self) -> Iterator[str]:
        """Yield the documents' texts."""
        words = np.array([word(rank) for rank in range(WORDS)], dtype=object)
        for number in range(-(-self.documents // CHUNK)):
            lengths, tokens = self.tokens(number)
            for first in range(0, len(lengths), 1000):
                ends = np.concatenate([[0], np.cumsum(lengths[first : first + 1000])])
                before = int(lengths[:first].sum())
                some = words[tokens[before : before + ends[-1]]].tolist()
                for a, b in pairwise(ends.tolist()):
                    yield " ".join(some[a:b])

    def asked(self) -> list[list[int]]:
        """Return the queries as ranks of words."""
        rng = np.random.default_rng([SEED, 1_000_003])
        queries = []
        for _ in range(QUERIES):
            topic = int(rng.integers(self.topics))
            places = (TOPIC_WORDS * rng.random(2) ** 2.0).astype(int)
            query = [topic_word(topic, int(place), WORDS) for place in places]
            common = rng.integers(0, 4)
            query += [word_at(COMMON_SHIFT, float(rng.random()), WORDS) for _ in range(common)]
            queries.append(query)
        return queries

    def text_queries(self) -> list[str]:
        """Return the queries as texts."""
        return [" ".join(map(word, ranks)) for ranks in self.asked()]

    def queries(self, frequencies: Any) -> Vectors:
        """Return the queries' vectors: idf by the documents of each term in the index."""
        rows = [dict.fromkeys(sorted(set(ranks))) for ranks in self.asked()]
        terms = np.array([rank for row in rows for rank in row], np.int32)
        counted = np.zeros(WORDS, np.int64)
        counted[: len(frequencies)] = frequencies
        df = counted[terms].astype(np.float64)
        idf = np.log1p((self.documents - df + 0.5) / (df + 0.5)).astype(np.float32)
        starts = np.cumsum([0, *map(len, rows)])
        return sparse.csr_array((idf, terms, starts), shape=(len(rows), WORDS))


def word(rank: int) -> str:
    """Return a word of syllables that no stemmer shortens."""
    letters = ""
    while True:
        rank, syllable = divmod(rank, 100)
        letters = "bdfghjklmnprstvwzcxq"[syllable // 5] + "aeiou"[syllable % 5] + letters
        if not rank:
            return letters + "k"


class Expanded:
    """SPLADE-like vectors of 119 terms on average, in the order of their topics."""

    def __init__(self, documents: int) -> None:
        self.documents = documents
        self._rng = np.random.default_rng([SEED, 2_000_003])
        self._topics: _Topics = _topics(min(documents, MOST_TOPICS), self._rng)

    def chunks(self) -> Iterator[Vectors]:
        """Yield the documents' vectors."""
        topics, count = self._topics, -(-self.documents // CHUNK)
        for number in range(count):
            size = min(CHUNK, self.documents - number * CHUNK)
            rng = np.random.default_rng([SEED, 3, number])
            kinds = len(topics.terms)
            last = max(kinds * (number + 1) // count, kinds * number // count + 1)
            home = np.sort(rng.integers(kinds * number // count, last, size))
            lengths = np.clip(rng.lognormal(np.log(112), 0.35, size), 20, 400).astype(np.int64)
            starts, terms, weights = draw_documents(
                lengths, home, *topics[1:], SEED * 100_019 + number
            )
            matrix = sparse.csr_array((weights, terms, starts), shape=(size, VOCABULARY))
            matrix.has_canonical_format = True
            yield matrix

    def queries(self, frequencies: Any) -> Vectors:
        """Return the queries' vectors."""
        return _easy(self._topics, np.random.default_rng([SEED, 4]))


class Points:
    """Dense vectors of length 1 around centres, and queries like them."""

    def __init__(self, documents: int, width: int = 384) -> None:
        self.documents, self.width = documents, width
        rng = np.random.default_rng([SEED, 5])
        groups = _unit(rng.standard_normal((GROUPS, width), np.float32))
        noise = _unit(rng.standard_normal((CENTRES, width), np.float32))
        self._centres = _unit(groups[rng.integers(0, GROUPS, CENTRES)] + np.float32(NOISE) * noise)

    def _drawn(self, rng: np.random.Generator, count: int) -> Any:
        noise = _unit(rng.standard_normal((count, self.width), np.float32))
        return _unit(self._centres[rng.integers(0, CENTRES, count)] + np.float32(NOISE) * noise)

    def chunks(self) -> Iterator[Any]:
        """Yield the vectors."""
        for number in range(-(-self.documents // CHUNK)):
            rng = np.random.default_rng([SEED, 6, number])
            yield self._drawn(rng, min(CHUNK, self.documents - number * CHUNK))

    def queries(self) -> Any:
        """Return the queries."""
        return self._drawn(np.random.default_rng([SEED, 7]), QUERIES)


def _unit(rows: Any) -> Any:
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows
