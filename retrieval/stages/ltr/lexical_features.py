"""Lexical and positional features of (query, candidate), for a batch of queries together.

With tf the count of a term in a field, qtf in the query, dl the field's length, N the documents
that have the field, df of them with the term, cf the term's count in the collection's field and C
the number of terms there:

- ``bm25``: Lucene's, k1 0.9 and b 0.4, as ``sluice.encoders.lexical.bm25`` has it;
- ``likelihood``: of the query under the document, smoothed by Dirichlet's prior mu = 2000, without
  what is the same for every document: sum of qtf ln(1 + tf C / (mu cf)), plus |q| ln(mu / (mu +
  dl)) (Zhai and Lafferty, 2004);
- ``inl2``: divergence from randomness: tfn / (tfn + 1) log2((N + 1) / (df + 0.5)) with tfn = tf
  log2(1 + avgdl / dl) (Amati and van Rijsbergen, 2002);
- ``cosine``: of the tf-idf vectors (1 + ln tf) ln(1 + N / df);
- ``matched``, ``coverage``: distinct query terms in the field, and their share of the query's;
- ``length``: ln(1 + dl).

Of the whole document: idf of the matched terms (sum, min, max, mean, and the sum's share of the
query's), ``tf_sum`` of their counts, ``first_match`` (terms before the first match; the length
without one) and ``nearest_pair`` (distance of two different query terms; the length without two).
In the title and in the whole: ``bigrams`` (places where two neighbours of the query are neighbours
in the same order), ``bigram_share`` (of the query's neighbours, those that are found),
``longest_run`` of the query's terms in a row, and ``phrase``: the run is the whole query. A title's
last term and a body's first do not count as neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import IndexFormatError
from sluice.retrieval.stages.ltr.collection_terms import (
    FIELDS,
    CollectionTerms,
    Floats,
    Integers,
    tf_idf,
)

K1, B, MU = 0.9, 0.4, 2000.0
BY_FIELD = ("bm25", "likelihood", "inl2", "cosine", "matched", "coverage", "length")
OF_IDF = ("idf_sum", "idf_min", "idf_max", "idf_mean", "idf_share", "tf_sum")
OF_PLACES = ("bigrams", "bigram_share", "longest_run", "phrase")
OF_QUERY = ("length", "idf_sum", "idf_max")
LEXICAL = (
    *(f"{field}.{name}" for field in FIELDS for name in BY_FIELD),
    *(f"all.{name}" for name in OF_IDF),
    *(f"{field}.{name}" for field in ("title", "all") for name in OF_PLACES),
    "all.first_match",
    "all.nearest_pair",
    *(f"query.{name}" for name in OF_QUERY),
)
TERMS_AT_ONCE = 1 << 21  # terms of candidates looked at together


def lexical_features(
    terms: CollectionTerms, queries: Sequence[str], rows: Sequence[Integers]
) -> NDArray[np.float32]:
    """Return ``[candidates, features]``, the candidates of the first query first.

    ``rows`` are those of each query's candidates, -1 for a document the store does not hold: its
    features are an empty document's. Costs about 20 ns for each term of each candidate.
    """
    from sluice.encoders.lexical.analyzer import analyzer

    chosen = analyzer(terms.language)
    matrices = [np.empty((0, len(LEXICAL)), np.float32)]
    texts_terms = [chosen(text) for text in queries]
    sizes = [int(terms.lengths[each, 2].sum()) for each in rows]
    first = total = 0
    for place, size in enumerate([*sizes, TERMS_AT_ONCE]):
        if (total and total + size > TERMS_AT_ONCE) or place == len(sizes):
            if place > first:
                batch = _Batch(terms, texts_terms[first:place], rows[first:place])
                matrices.append(batch.features())
            first, total = place, 0
        total += size
    return np.concatenate(matrices)


class _Asked(NamedTuple):
    """The distinct terms of some queries by place, and where in its query each stands."""

    columns: Integers  # [queries, terms], the last column where there is none (or no such term)
    counts: Floats  # [queries, terms] qtf, 0 for terms that the collection lacks
    lengths: Integers  # [queries] terms, repeated ones too
    distinct: Integers  # [queries]
    places: Integers  # positions in the query, those of a term together
    starts: Integers  # [queries, terms] where a term's begin in ``places``
    times: Integers  # [queries, terms] how many those are


class _Batch:
    def __init__(
        self, terms: CollectionTerms, query_terms: Sequence[Sequence[str]], rows: Sequence[Integers]
    ) -> None:
        self.terms = terms
        self.query_terms = _asked(terms.vocabulary, query_terms)
        self.rows = np.concatenate(rows)
        self.query = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
        self.lengths = terms.lengths[self.rows]  # [candidates, fields]
        self._match()

    def _match(self) -> None:
        """Find every term of a candidate that its query has: pair, term of the query, place."""
        query_terms, width = self.query_terms, self.query_terms.columns.shape[1]
        known, codes = np.unique(query_terms.columns, return_inverse=True)
        code_of = np.zeros(len(self.terms.vocabulary) + 1, np.int32)  # 0: no query's term
        code_of[known] = np.arange(1, len(known) + 1)
        code_of[-1] = 0
        slots = np.full((len(query_terms.columns), len(known) + 1), -1, np.int32)
        query, slot = np.nonzero(query_terms.counts)
        slots[query, codes.reshape(query_terms.columns.shape)[query, slot] + 1] = slot

        sizes = self.lengths[:, 2]
        ends = np.cumsum(sizes)
        shift = self.terms.bounds[self.rows, 0] - (ends - sizes)
        at = np.arange(ends[-1] if len(ends) else 0) + np.repeat(shift, sizes)
        candidates = self.terms.terms[at]
        if candidates.min(initial=0) < 0 or candidates.max(initial=-1) >= len(code_of):
            raise IndexFormatError("the collection's terms are damaged; train the ranker again")
        codes_found = code_of[candidates]
        hit = np.flatnonzero(codes_found)
        pair = np.searchsorted(ends, hit, side="right")
        term = slots[self.query[pair], codes_found[hit]]
        own = term >= 0
        self.pair, self.term = pair[own], term[own].astype(np.int64)
        self.place = hit[own] - (ends - sizes)[self.pair]
        self.in_title = self.place < self.lengths[self.pair, 0]
        shape = (len(self.rows), width)
        keys = self.pair * width + self.term
        cells = shape[0] * width
        title = np.bincount(keys[self.in_title], minlength=cells).reshape(shape)
        body = np.bincount(keys[~self.in_title], minlength=cells).reshape(shape)
        self.tf = (title, body, title + body)

    def features(self) -> NDArray[np.float32]:
        columns = [part for field in range(len(FIELDS)) for part in self._of_field(field)]
        columns += self._of_idf()
        columns += self._of_places()
        return np.stack(columns, axis=1).astype(np.float32)

    def _of_field(self, field: int) -> list[Floats]:
        terms, query_terms, query = self.terms, self.query_terms, self.query
        tf = self.tf[field].astype(np.float64)
        matched = tf > 0
        length = self.lengths[:, field].astype(np.float64)
        documents, average = terms.holders[field], terms.averages[field]
        frequency = terms.frequencies[field][query_terms.columns].astype(np.float64)
        qtf = query_terms.counts[query]

        idf = _idf(frequency, documents)
        damping = K1 * (1 - B + B * length / average)
        bm25 = (qtf * idf[query] * tf / (tf + damping[:, None])).sum(1)

        share = terms.occurrences[field][query_terms.columns] / max(terms.totals[field], 1.0)
        seen = np.where(share > 0, share, 1.0)[query]
        likelihood = (qtf * np.log1p(tf / (MU * seen))).sum(1)
        likelihood += query_terms.counts.sum(1)[query] * np.log(MU / (MU + length))

        normal = tf * np.log2(1 + average / np.maximum(length, 1.0))[:, None]
        rare = np.log2((documents + 1) / (frequency + 0.5))[query]
        inl2 = (qtf * normal / (normal + 1) * rare).sum(1)

        weights = tf_idf(query_terms.counts, frequency, documents)
        product = (weights[query] * tf_idf(tf, frequency[query], documents)).sum(1)
        norm = np.sqrt((weights**2).sum(1))[query] * terms.norms[self.rows, field]
        cosine = np.divide(product, norm, out=np.zeros_like(product), where=norm > 0)

        count = matched.sum(1).astype(np.float64)
        coverage = count / np.maximum(query_terms.distinct, 1)[query]
        return [bm25, likelihood, inl2, cosine, count, coverage, np.log1p(length)]

    def _of_idf(self) -> list[Floats]:
        frequency = self.terms.frequencies[2][self.query_terms.columns].astype(np.float64)
        of_query = _idf(frequency, self.terms.holders[2]) * (self.query_terms.counts > 0)
        matched = self.tf[2] > 0
        idf = of_query[self.query]
        total = (idf * matched).sum(1)
        count = matched.sum(1)
        least = np.where(matched, idf, np.inf).min(1, initial=np.inf)
        idf_sum = of_query.sum(1)[self.query]
        self._query_idf = idf_sum, of_query.max(1, initial=0.0)[self.query]
        return [
            total,
            np.where(count > 0, least, 0.0),
            (idf * matched).max(1, initial=0.0),
            total / np.maximum(count, 1),
            np.divide(total, idf_sum, out=np.zeros_like(total), where=idf_sum > 0),
            self.tf[2].sum(1).astype(np.float64),
        ]

    def _of_places(self) -> list[Floats]:
        """Return what depends on where the matches stand, and then the query's own features."""
        count = len(self.rows)
        length = self.lengths[:, 2].astype(np.float64)
        first, nearest = length.copy(), length.copy()
        begins = np.flatnonzero(np.diff(self.pair, prepend=-1))
        first[self.pair[begins]] = self.place[begins]
        apart = np.flatnonzero((np.diff(self.pair) == 0) & (np.diff(self.term) != 0))
        np.minimum.at(nearest, self.pair[apart], np.diff(self.place)[apart])

        terms = self.query_terms.lengths[self.query]
        runs = _Runs(self)
        columns: list[Floats] = []
        for taking in (runs.in_title, np.ones(len(runs.pair), bool)):
            bigrams, distinct, longest = runs.counted(taking, count)
            share = distinct / np.maximum(terms - 1, 1)
            columns += [bigrams, share, longest, ((longest == terms) & (terms > 0)).astype(float)]
        idf_sum, most = self._query_idf
        return [*columns, first, nearest, terms.astype(np.float64), idf_sum, most]


class _Runs:
    """Matches in the order of their query: on a diagonal (place in document less in query) a step.

    A run of the query's terms, one after the other, is a run of consecutive places on a diagonal.
    """

    def __init__(self, batch: _Batch) -> None:
        query_terms, query = batch.query_terms, batch.query[batch.pair]
        times = query_terms.times[query, batch.term]
        one = np.repeat(np.arange(len(times)), times)
        within = np.arange(len(one)) - np.repeat(np.cumsum(times) - times, times)
        self.at = query_terms.places[query_terms.starts[query, batch.term][one] + within]
        pair, in_title = batch.pair[one], batch.in_title[one]
        place = batch.place[one] + ~in_title  # a gap between title and body
        diagonal = place - self.at
        low = int(diagonal.min(initial=0))
        span = int(diagonal.max(initial=0)) - low + 1
        order = np.argsort(pair * span + (diagonal - low), kind="stable")  # places ascend already
        self.pair, self.in_title, self.at = pair[order], in_title[order], self.at[order]
        key, place = (pair * span + diagonal - low)[order], place[order]
        # Whether a match continues at the place of the one before it.
        self.linked = np.zeros(len(key), bool)
        self.linked[1:] = (key[1:] == key[:-1]) & (place[1:] == place[:-1] + 1)

    def counted(self, taking: NDArray[np.bool_], count: int) -> tuple[Floats, Floats, Floats]:
        """Return pairs' bigrams, distinct ones, and longest runs, of the matches in ``taking``."""
        links = self.linked & taking
        bigrams = np.bincount(self.pair[links], minlength=count).astype(np.float64)
        width = int(self.at.max(initial=0)) + 1
        keys = np.unique(self.pair[links] * width + self.at[links])
        distinct = np.bincount(keys // width, minlength=count).astype(np.float64)
        number = np.cumsum(~self.linked) - 1
        starts = np.flatnonzero(~self.linked)
        sizes = np.bincount(number, minlength=len(starts)) * taking[starts]
        longest = np.zeros(count)
        np.maximum.at(longest, self.pair[starts], sizes)
        return bigrams, distinct, longest


def _idf(frequency: Floats, documents: float) -> Floats:
    """Return ``ln(1 + (N - df + 0.5) / (df + 0.5))``, 0 for a term that no document has."""
    idf = np.log1p((documents - frequency + 0.5) / (frequency + 0.5))
    return np.where(frequency > 0, idf, 0.0)


def _asked(vocabulary: dict[str, int], queries: Sequence[Sequence[str]]) -> _Asked:
    distinct = [list(dict.fromkeys(query)) for query in queries]
    width = max([1, *map(len, distinct)])
    shape = (len(queries), width)
    columns = np.full(shape, len(vocabulary), np.int64)
    counts, starts, times = np.zeros(shape), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    places: list[int] = []
    for number, (query, own) in enumerate(zip(queries, distinct, strict=True)):
        stands: dict[str, list[int]] = {term: [] for term in own}
        for place, term in enumerate(query):
            stands[term].append(place)
        for slot, (term, at) in enumerate(stands.items()):
            starts[number, slot], times[number, slot] = len(places), len(at)
            places += at
            if (column := vocabulary.get(term)) is not None:
                columns[number, slot], counts[number, slot] = column, len(at)
    lengths: Any = np.array([len(query) for query in queries], np.int64)
    sizes = np.array([len(own) for own in distinct], np.int64)
    return _Asked(columns, counts, lengths, sizes, np.array(places, np.int64), starts, times)
