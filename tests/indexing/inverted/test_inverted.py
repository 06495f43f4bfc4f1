"""InvertedIndex: exact float32 sums, tiles, growing vocabularies, threads, and its refusals."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numba import config
from scipy import sparse

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.indexing import InvertedIndex


def random_sparse(rows: int, terms: int, density: float, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    table = rng.random((rows, terms)) * (rng.random((rows, terms)) < density)
    return sparse.csr_array(table.astype(np.float32))


def brute(queries: Any, documents: Any, k: int, live: Any = None) -> tuple[Any, Any]:
    """Sequential float32 sums over ascending terms, by columns."""
    columns = sparse.csc_array(documents)
    count = documents.shape[0]
    rows = np.full((queries.shape[0], k), -1, dtype=np.int64)
    scores = np.full((queries.shape[0], k), -np.inf, dtype=np.float32)
    for place in range(queries.shape[0]):
        sums, touched = np.zeros(count, dtype=np.float32), np.zeros(count, dtype=bool)
        part = slice(queries.indptr[place], queries.indptr[place + 1])
        for term, weight in zip(queries.indices[part], queries.data[part], strict=True):
            if term < documents.shape[1]:
                column = slice(columns.indptr[term], columns.indptr[term + 1])
                sums[columns.indices[column]] += np.float32(weight) * columns.data[column]
                touched[columns.indices[column]] = True
        order = np.lexsort((np.arange(count), -sums))
        best = order[(touched if live is None else touched & live)[order]][:k]
        rows[place, : len(best)], scores[place, : len(best)] = best, sums[best]
    return rows, scores


@pytest.mark.thorough
@pytest.mark.parametrize("k", [1, 10, 1000])
@pytest.mark.parametrize("threads", [1, 3])
def test_several_tiles(k: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "NUMBA_NUM_THREADS", threads)
    documents, queries = random_sparse(150_000, 60, 0.05, 1), random_sparse(25, 60, 0.15, 2)
    documents.data = np.ceil(documents.data * 3)  # many ties
    queries.data = np.ceil(queries.data * 2)
    index = InvertedIndex()
    for start in range(0, 150_000, 40_000):
        index.add(documents[start : start + 40_000])
    live = np.random.default_rng(3).random(150_000) < 0.7
    for mask in (None, live):
        found = index.search(queries, k, keep=mask)
        rows, scores = brute(queries, documents, k, mask)
        np.testing.assert_array_equal(found.scores, scores)
        np.testing.assert_array_equal(found.rows, rows)
    single = index.search(queries[[4]], k)
    np.testing.assert_array_equal(single.rows[0], index.search(queries, k).rows[4])


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(0, 40),
    widths=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    query_width=st.integers(1, 40),
    k=st.integers(1, 50),
)
def test_growing_vocabulary(
    seed: int, rows: int, widths: list[int], query_width: int, k: int
) -> None:
    index, parts = InvertedIndex(), []
    queries = random_sparse(4, query_width, 0.5, seed)
    for number, width in enumerate(widths):
        parts.append(random_sparse(rows, width, 0.3, seed + number))
        index.add(parts[-1])
        if number % 2:
            index.search(queries, 1)  # builds in between
    tables = [np.pad(p.toarray(), ((0, 0), (0, max(widths) - p.shape[1]))) for p in parts]
    found = index.search(queries, k)
    expected_rows, scores = brute(queries, sparse.csr_array(np.concatenate(tables)), k)
    np.testing.assert_array_equal(found.rows, expected_rows)
    np.testing.assert_array_equal(found.scores, scores)
    assert index.stats().terms == (max(widths) if rows else 0)


def test_extreme_weights() -> None:
    documents = sparse.csr_array(
        np.array([[1e-38, 0, 0], [3e38, 3e38, 0], [0, 1e-30, 0], [0, 0, 1]], dtype=np.float32)
    )
    query = sparse.csr_array(np.array([[1e-30, 2, 0]], dtype=np.float32))
    index = InvertedIndex()
    index.add(documents)
    hits = index.search(query, 4)
    # An overflow stays first, as the largest float32; an underflow to zero still shares a term; no
    # shared term is no hit.
    np.testing.assert_array_equal(hits.rows, [[1, 2, 0, -1]])
    np.testing.assert_array_equal(
        hits.scores, np.array([[np.finfo(np.float32).max, 2e-30, 0, -np.inf]], dtype=np.float32)
    )


def test_overflows_are_ties() -> None:
    column = np.array([[1e38], [3e38], [3.4e38], [3e38]], dtype=np.float32)
    index = InvertedIndex()
    index.add(sparse.csr_array(column))
    hits = index.search(sparse.csr_array(np.array([[1e38]], dtype=np.float32)), 2)
    np.testing.assert_array_equal(hits.rows, [[0, 1]])
    assert np.isfinite(hits.scores).all()
    assert index.search(sparse.csr_array(column[:1]), 1, keep=[2, 3]).rows.tolist() == [[2]]


def test_canonical_form_is_made_not_expected() -> None:
    messy = sparse.csr_array(
        (np.array([1, 2, 0, 4], dtype=np.float32), [3, 1, 0, 3], [0, 4]), shape=(1, 5)
    )
    index = InvertedIndex()
    index.add(messy)  # unsorted, a term twice, an explicit zero
    assert index.stats().postings == 2
    assert messy.nnz == 4
    query = sparse.csr_array(np.ones((1, 5), dtype=np.float32))
    assert [(p.term, p.impact) for p in index.explain(query, 0)] == [(1, 2.0), (3, 5.0)]


def test_empty_queries_and_documents() -> None:
    index = InvertedIndex()
    index.add(sparse.csr_array((3, 6), dtype=np.float32))
    index.add(sparse.csr_array(np.eye(6, dtype=np.float32)))
    assert (index.search(sparse.csr_array((2, 6), dtype=np.float32), 4).rows == -1).all()
    hits = index.search(sparse.csr_array(np.eye(6, dtype=np.float32)), 2)
    np.testing.assert_array_equal(hits.rows[:, 0], np.arange(3, 9))
    assert (hits.rows[:, 1] == -1).all()


def test_explain_adds_up() -> None:
    documents, queries = random_sparse(50, 20, 0.4, 1), random_sparse(5, 25, 0.5, 2)
    index = InvertedIndex()
    index.add(documents)
    hits = index.search(queries, 5)
    for place in range(5):
        for row, score in zip(hits.rows[place], hits.scores[place], strict=True):
            total = np.float32(0)
            for part in index.explain(queries[[place]], int(row)):
                total += np.float32(part.contribution)
            assert total == score
    with pytest.raises(DataError, match="no row 50"):
        index.explain(queries[[0]], 50)
    with pytest.raises(DataError, match="5 queries, expected one row"):
        index.explain(queries, 0)


def test_stats() -> None:
    index = InvertedIndex(n_terms=9)
    assert index.stats().mean_terms == 0
    index.add(sparse.csr_array(np.array([[1, 0, 2], [0, 0, 3]], dtype=np.float32)))
    stats = index.stats()
    assert (stats.documents, stats.terms, stats.used_terms, stats.postings) == (2, 9, 2, 3)
    assert (stats.mean_terms, stats.longest) == (1.5, 2)
    assert index.size_bytes > 3 * (4 + 2 + 2)  # of each posting: impact, offset and code
    assert stats.segments == 1


def test_refusals() -> None:
    index = InvertedIndex(n_terms=4)
    good = np.eye(4, dtype=np.float32)
    index.add(sparse.csr_array(good))
    bad = good.copy()
    bad[2, 2] = -0.5
    broken = sparse.csr_array(good)
    broken.indices[1] = 9
    for vectors, message in (
        (sparse.csr_array(bad), r"row 2, term 2 has the weight -0.5"),
        (sparse.csr_array(good * np.nan), "weight nan"),
        (sparse.csr_array(good.astype(np.float64) * 1e300), "weight inf"),
        (sparse.csr_array(good.astype(bool)), "dtype bool"),
        (broken, "the CSR structure is broken"),
        (good, "dense vectors go into FlatIndex"),
        (sparse.csr_array(np.ones((1, 5), dtype=np.float32)), "5 terms, this index was made for 4"),
    ):
        with pytest.raises(DataError, match=message):
            index.add(vectors)
    assert len(index) == 4
    index.search(sparse.csr_array(np.ones((1, 5), dtype=np.float32)), 2)
    assert InvertedIndex(np.int64(5)).n_terms == 5  # type: ignore[arg-type]
    for wrong in (0, True, "5", 2.0):
        with pytest.raises(ConfigError, match=f"n_terms is {wrong!r}, expected a whole number, 1"):
            InvertedIndex(wrong)  # type: ignore[arg-type]


def test_one_compilation_serves_memory_and_maps(tmp_path: Any) -> None:
    from sluice.indexing import open_index
    from sluice.indexing.inverted.search.planner import search_segments

    documents = random_sparse(20, 10, 0.4, 1)
    documents.data.setflags(write=False)
    index = InvertedIndex()
    index.add(documents)
    index.search(documents, 2)
    index.save(tmp_path / "index")
    open_index(tmp_path / "index").search(documents, 2, keep=[1, 2])
    assert len(search_segments.signatures) <= 2  # one for each fidelity


def test_first_searches_at_once_build_once() -> None:
    documents = random_sparse(20_000, 50, 0.2, 1)
    index = InvertedIndex()
    index.add(documents)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: index.search(documents[[7]], 5), range(8)))
    assert index.stats().postings == documents.nnz
    for hits in found:
        np.testing.assert_array_equal(hits.rows, found[0].rows)
