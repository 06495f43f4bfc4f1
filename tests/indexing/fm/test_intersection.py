from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.tokens import TokenSequences, WeightedNgrams
from sluice.indexing import FmIndex

Keys = Sequence[tuple[Sequence[int], float]]

texts = st.lists(st.lists(st.integers(0, 3), max_size=9), min_size=1, max_size=7)
weights = st.sampled_from([0.0, 0.5, 1.0, 2.0])
keys = st.lists(st.tuples(st.lists(st.integers(0, 4), min_size=1, max_size=4), weights), max_size=6)


def score(document: Sequence[int], keys: Keys, repeated: float) -> float:
    """Section 3.3 of SEAL, written down as it is said."""
    long = {tuple(ngram): 0.0 for ngram, _ in keys}
    for ngram, weight in keys:
        long[tuple(ngram)] = max(weight, long[tuple(ngram)])
    order = sorted(
        (ngram for ngram in long if long[ngram] > 0),
        key=lambda ngram: (len(ngram) < 2, -long[ngram], -len(ngram), ngram),
    )
    free, covered, total = set(range(len(document))), set[int](), 0.0
    for ngram in order:
        for start in range(len(document)):
            span = range(start, start + len(ngram))
            if tuple(document[start : start + len(ngram)]) == ngram and free.issuperset(span):
                new = len(set(ngram) - covered) / len(set(ngram))
                total += long[ngram] ** 2 * (1 - repeated + repeated * new)
                free -= set(span)
                covered |= set(ngram)
                break
    return total


def index_of(documents: Sequence[Sequence[int]], **options: float) -> FmIndex:
    index = FmIndex(**options)  # type: ignore[arg-type]
    index.add(TokenSequences.of(documents))
    return index


@settings(max_examples=60, deadline=None)
@given(st.data(), texts, st.lists(keys, min_size=1, max_size=3), st.sampled_from([0.0, 0.8, 1.0]))
def test_hits_are_those_of_scoring_every_document(
    data: st.DataObject, documents: list[list[int]], queries: list[Keys], repeated: float
) -> None:
    rows = st.sets(st.integers(0, len(documents) - 1))
    k, keep, dead = data.draw(st.tuples(st.integers(1, 9), rows, rows))
    index = index_of(documents, repeated=repeated, segment_tokens=12)
    index.delete(sorted(dead))
    hits = index.search(WeightedNgrams.of(queries), k, keep=sorted(keep))
    for line, query in enumerate(queries):
        scores = {row: np.float32(score(documents[row], query, repeated)) for row in keep - dead}
        expected = sorted((row for row in scores if scores[row] > 0), key=lambda r: (-scores[r], r))
        expected = expected[:k]
        found = hits.rows[line]
        assert found[: len(expected)].tolist() == expected
        assert (found[len(expected) :] == -1).all()
        np.testing.assert_allclose(
            hits.scores[line, : len(expected)], [scores[row] for row in expected], rtol=1e-6
        )


def test_a_frequent_ngram_has_no_vote_but_counts() -> None:
    index = index_of([[1, 2], [1, 3], [1, 4]], most_hits=2)
    query = WeightedNgrams.of([[([1], 3.0), ([4], 1.0)], [([1], 3.0)]])
    hits = index.search(query, 3)
    assert hits.rows.tolist() == [[2, -1, -1], [-1, -1, -1]]
    assert hits.scores[0, 0] == 10.0


def test_only_candidates_are_read_unless_more_are_asked_for() -> None:
    index = index_of([[1, 2, 9], [1, 2, 8], [1, 7]], candidates=1)
    # Row 2 has the most votes; read, the three tokens of row 1 would not overlap either.
    query = WeightedNgrams.of([[([1], 1.0), ([7], 2.0), ([1, 2], 1.5)]])
    assert index.search(query, 1).rows.tolist() == [[2]]
    assert index.search(query, 3).rows.tolist() == [[2, 0, 1]]


def test_an_explanation_adds_up_to_the_score() -> None:
    index = index_of([[5], [1, 2, 3, 1]])
    query = WeightedNgrams.of([[([1, 2], 2.0), ([2, 3], 1.0), ([1], 0.5), ([4], 9.0)]])
    parts = index.explain(query, 1)
    assert [(part.term, part.query_weight) for part in parts] == [((1, 2), 2.0), ((1,), 0.5)]
    assert [part.impact for part in parts] == [2.0, pytest.approx(0.5 * 0.2)]
    score = index.search(query, 1).scores[0, 0]
    assert score == pytest.approx(sum(part.contribution for part in parts))
    assert index.explain(query, 0) == []
    with pytest.raises(DataError, match="no row 2"):
        index.explain(query, 2)
