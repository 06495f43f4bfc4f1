"""Relevance models against straight-line dictionaries; counts got back from BM25's impacts."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import sparse

from sluice.encoders.lexical.variants import Variant, impacts, relative_counts
from sluice.retrieval.stages.feedback.relevance_model import (
    heaviest,
    interpolated,
    relevance_model,
    shares,
)

COUNTS = sparse.csr_array(np.random.default_rng(5).integers(0, 5, size=(8, 12)))


def best(weights: dict[int, float], count: int) -> dict[int, float]:
    ordered = sorted(weights, key=lambda term: (-weights[term], term))[:count]
    return {term: weights[term] for term in ordered if weights[term] > 0}


def row(matrix: sparse.csr_array, line: int) -> dict[int, float]:
    start, stop = matrix.indptr[line], matrix.indptr[line + 1]
    columns, values = matrix.indices[start:stop], matrix.data[start:stop]
    return dict(zip(columns.tolist(), values.tolist(), strict=True))


@pytest.mark.parametrize("variant", ["lucene", "plus", "l"])
@pytest.mark.parametrize("k1", [0.01, 0.9, 5.0])
@pytest.mark.parametrize("b", [0.0, 0.4, 1.0])
def test_shares_of_relative_counts_are_shares_of_counts(
    k1: float, b: float, variant: Variant
) -> None:
    lengths: np.ndarray = np.asarray(COUNTS.sum(axis=1))
    norms = 1 - b + b * lengths / lengths.mean()
    each = np.repeat(norms, np.diff(COUNTS.indptr))
    data = impacts(variant, COUNTS.data.astype(np.float64), each, k1).astype(np.float32)
    counted = sparse.csr_array(
        (relative_counts(variant, data.astype(np.float64), k1), COUNTS.indices, COUNTS.indptr),
        shape=COUNTS.shape,
    )
    floor = {"lucene": 0.0, "plus": 1.0, "l": 0.5}[variant]
    least = k1 * norms.min()
    rounding = 1e-7 * (1 + floor) * (1 + floor + (COUNTS.max() + floor * norms.max()) / least)
    expected = shares(COUNTS)
    np.testing.assert_allclose(shares(counted).data, expected.data, rtol=6 * rounding)
    for line in range(COUNTS.shape[0]):  # equal counts stay equal: ties stay ties
        found, counts = row(counted, line), row(COUNTS, line)
        assert all((found[s] == found[t]) == (counts[s] == counts[t]) for s in found for t in found)


@pytest.mark.parametrize("variant", ["lucene", "plus", "l"])
def test_impacts_of_k1_0_count_alike(variant: Variant) -> None:
    alike = impacts(variant, np.array([1.0, 2, 3, 9]), np.ones(4), 0.0).astype(np.float32)
    counts = relative_counts(variant, alike.astype(np.float64), 0.0)
    assert counts[0] > 0
    assert (counts == counts[0]).all()


def test_heaviest_and_its_ties() -> None:
    matrix = sparse.csr_array(np.array([[1.0, 2, 2, 2, 0], [0, 0, 0, 0, 0], [0, 0, 3, 0, 0]]))
    assert heaviest(matrix, 2).toarray().tolist() == [[0, 2, 2, 0, 0], [0] * 5, [0, 0, 3, 0, 0]]
    rare = np.array([0.0, 1, 2, 3, 4])
    assert heaviest(matrix, 2, rare).toarray()[0].tolist() == [0, 0, 2, 2, 0]
    assert np.array_equal(heaviest(matrix, 99).toarray(), matrix.toarray())
    explicit = sparse.csr_array((np.zeros(2), np.array([0, 1]), np.array([0, 2])), shape=(1, 3))
    assert heaviest(explicit, 5).nnz == 0


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(st.floats(0, 3), min_size=8, max_size=8), min_size=1, max_size=3),
    st.integers(1, 14),
    st.floats(0, 1),
)
def test_rm3_is_the_straight_line_one(
    weights: list[list[float]], terms: int, original: float
) -> None:
    by_query = sparse.csr_array(np.array(weights))
    model = relevance_model(COUNTS, by_query, terms)
    rng = np.random.default_rng(1)
    queries = sparse.csr_array(rng.integers(0, 3, size=(len(weights), 12)).astype(np.float32))
    lengths = np.asarray(queries.sum(axis=1), np.float64)
    scale = rng.random(12) + 0.1
    mixed = interpolated(queries, model, original, lengths, scale)
    for line, each in enumerate(weights):
        summed: dict[int, float] = defaultdict(float)
        for document, weight in enumerate(each):
            kept = best(row(COUNTS, document), terms)
            for term, count in kept.items():
                summed[term] += weight * count / sum(kept.values())
        kept = best(summed, terms)
        expected = {term: value / sum(kept.values()) for term, value in kept.items()}
        if len(set(kept.values())) == len(summed):  # sums of another order may untie a tie
            assert row(model, line) == pytest.approx(expected, rel=1e-10)
        assert model.sum(axis=1)[line] == pytest.approx(1.0 if expected else 0.0)
        share = original if row(model, line) else 1.0
        whole: dict[int, float] = defaultdict(float)
        for term, value in row(queries, line).items():
            whole[term] += share * value
        for term, value in row(model, line).items():
            whole[term] += (1 - share) * lengths[line] * value * scale[term]
        given_terms = {term: value for term, value in whole.items() if value}
        assert row(mixed, line) == pytest.approx(given_terms, rel=1e-10)


def test_a_query_without_a_model_stays() -> None:
    queries = sparse.csr_array(np.array([[0.1, 0.3, 0], [0, 0, 0]], np.float32))
    nothing = relevance_model(sparse.csr_array((1, 3)), sparse.csr_array((2, 1)), 5)
    mixed = interpolated(queries, nothing, 0.5, np.ones(2), None).astype(np.float32)
    assert np.array_equal(mixed.toarray(), queries.toarray())
