"""Both engines of the inverted index against brute force, rows and scores, on random corpora.

``SLUICE_CORPORA=3000`` draws more corpora than the suite has time for.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numba import config
from scipy import sparse

import sluice.indexing.inverted.index
import sluice.indexing.inverted.segment_list
from sluice.indexing import InvertedIndex, open_index
from sluice.indexing.kernels import calls

ENGINES = ("auto", "blocks", "terms")


def brute(queries: Any, documents: Any, k: int, allowed: Any = None) -> tuple[Any, Any]:
    """float32 sums over ascending terms; score descending, then row ascending."""
    columns, count = sparse.csc_array(documents), documents.shape[0]
    rows = np.full((queries.shape[0], k), -1, dtype=np.int64)
    scores = np.full((queries.shape[0], k), -np.inf, dtype=np.float32)
    for place in range(queries.shape[0]):
        sums, touched = np.zeros(count, dtype=np.float32), np.zeros(count, dtype=bool)
        part = slice(queries.indptr[place], queries.indptr[place + 1])
        with np.errstate(over="ignore"):
            for term, weight in zip(queries.indices[part], queries.data[part], strict=True):
                if term < documents.shape[1]:
                    column = slice(columns.indptr[term], columns.indptr[term + 1])
                    sums[columns.indices[column]] += np.float32(weight) * columns.data[column]
                    touched[columns.indices[column]] = True
        sums = np.minimum(sums, np.finfo(np.float32).max)
        order = np.lexsort((np.arange(count), -sums))
        best = order[(touched if allowed is None else touched & allowed)[order]][:k]
        rows[place, : len(best)], scores[place, : len(best)] = best, sums[best]
    return rows, scores


def corpus(rng: np.random.Generator, count: int, terms: int, kind: str) -> Any:
    """Impacts: "whole" has many ties, "real" few, "extreme" every size a float32 has."""
    share = rng.random(terms) ** 2 * rng.choice([0.1, 0.5, 1.0])
    share[rng.integers(0, terms)] = 1.0  # one term in every document
    table = rng.random((count, terms)) < share
    if kind == "whole":
        values = rng.integers(1, 4, (count, terms)).astype(np.float32)
    elif kind == "real":
        values = np.log1p(rng.lognormal(0, 1, (count, terms))).astype(np.float32)
    else:
        values = np.exp(rng.uniform(-100, 88, (count, terms))).astype(np.float32)
    table[rng.random(count) < 0.1] = False  # empty documents
    return sparse.csr_array(np.where(table, values, 0).astype(np.float32))


@settings(derandomize=True, deadline=None, max_examples=int(os.environ.get("SLUICE_CORPORA", 120)))
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 120),
    terms=st.integers(1, 30),
    kind=st.sampled_from(["whole", "real", "extreme"]),
    fidelity=st.sampled_from(["exact", "u8"]),
    block=st.sampled_from([None, 1, 2, 8, 64, 256]),
    order=st.sampled_from(["input", "input", "cluster", "bisection"]),
    parts=st.integers(1, 4),
    k=st.integers(1, 40),
    threads=st.sampled_from([1, 2]),
)
def test_equals_brute_force(
    seed: int, count: int, terms: int, kind: str, fidelity: str, block: int | None, order: str,
    parts: int, k: int, threads: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    documents = corpus(rng, count, terms, kind)
    queries = corpus(rng, 6, int(rng.integers(1, 40)), kind)
    index = InvertedIndex(fidelity=fidelity, block_size=block, order=order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "NUMBA_NUM_THREADS", threads)
        if rng.random() < 0.5:
            patch.setattr(sluice.indexing.inverted.segment_list, "_worth_merging", lambda *_: False)
        for part in np.array_split(np.arange(count), parts):
            index.add(documents[part])
            if rng.random() < 0.7:
                index.search(queries[:1], 1)  # closes a segment
        masks: list[Any] = [None, rng.random(count) < 0.5]
        if count > 1 and rng.random() < 0.5:
            gone = rng.choice(count, size=int(rng.integers(1, count)), replace=False)
            index.delete(gone)
            masks = [np.isin(np.arange(count), gone, invert=True)]
        stored = index.documents(np.arange(count))
        if fidelity == "exact":
            assert (stored != sparse.csr_array(documents)).nnz == 0
        for mask in masks:
            rows, scores = brute(queries, stored, k, mask)
            for engine in ENGINES:
                keep = None if len(masks) == 1 else mask
                hits = index.search(queries, k, keep=keep, params={"engine": engine})
                np.testing.assert_array_equal(hits.scores, scores)
                np.testing.assert_array_equal(hits.rows, rows)
            for place in (sluice.indexing.inverted.index, calls):
                patch.setattr(place, "kernels_loaded", lambda: False)
            patch.setattr(calls, "_done_in_numpy", 0.0)
            hits = index.search(queries, k, keep=keep)
            np.testing.assert_array_equal(hits.scores, scores)
            np.testing.assert_array_equal(hits.rows, rows)
            for place in (sluice.indexing.inverted.index, calls):
                patch.setattr(place, "kernels_loaded", lambda: True)


def test_many_searches_pay_for_loading_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = corpus(np.random.default_rng(3), 40, 20, "real")
    index = InvertedIndex()
    index.add(documents)
    table = index._reader()
    for place in (sluice.indexing.inverted.index, calls):
        monkeypatch.setattr(place, "kernels_loaded", lambda: False)
    monkeypatch.setattr(calls, "_done_in_numpy", 0.0)
    monkeypatch.setattr(calls, "WITHOUT_KERNELS", 1e-5)
    index.search(documents[:1], 5)
    assert calls._done_in_numpy > 0
    assert table._tables is None
    for _ in range(50):
        index.search(documents[:1], 5)
    assert table._tables is not None, "a kernel has searched"


def topical(rng: np.random.Generator, count: int, terms: int, topics: int) -> Any:
    """Documents in topic order whose topic's terms are heavy, so that blocks differ."""
    topic = np.sort(rng.integers(0, topics, count))
    own = rng.integers(0, terms, (topics, 40))
    columns = np.concatenate(
        [
            own[topic][:, rng.integers(0, 40, 12)],
            (terms * rng.random((count, 12)) ** 3).astype(int),
        ],
        axis=1,
    )
    values = np.log1p(rng.lognormal(0, 1, columns.shape)).astype(np.float32)
    values[:, :12] += 1
    starts = np.arange(0, columns.size + 1, columns.shape[1])
    matrix = sparse.csr_array((values.ravel(), columns.ravel(), starts), shape=(count, terms))
    matrix.sum_duplicates()
    return matrix


@pytest.mark.thorough
@pytest.mark.parametrize("fidelity", ["exact", "u8"])
def test_large_corpora_where_the_planner_and_the_groups_act(fidelity: str) -> None:
    rng = np.random.default_rng(5)
    documents = topical(rng, 50_000, 3000, 200)
    queries = documents[rng.choice(50_000, 25, replace=False)]
    index = InvertedIndex(fidelity=fidelity)
    index.add(documents)
    stored = index.documents(np.arange(50_000))
    live = rng.random(50_000) < 0.4
    for k, mask in ((1, None), (10, None), (300, None), (10, live)):
        rows, scores = brute(queries, stored, k, mask)
        for engine in ENGINES:
            hits = index.search(queries, k, keep=mask, params={"engine": engine})
            np.testing.assert_array_equal(hits.scores, scores)
            np.testing.assert_array_equal(hits.rows, rows)
    plans = index.plan(queries, 10, params={"engine": "blocks"})
    assert max(plan.scored_blocks for plan in plans) < 50_000 / 16 / 4  # most blocks are left out
    assert "blocks" in {plan.engine for plan in index.plan(queries, 10)}
    assert index.plan(queries, 5000)[0].engine == "terms"


def test_more_terms_than_sixteen_bits(tmp_path: Any) -> None:
    """Terms that share the lower bits of their numbers are told apart by the upper ones."""
    rng = np.random.default_rng(2)
    columns = (rng.integers(0, 8, (400, 30)) << 16) + rng.integers(0, 5, (400, 30))
    starts, values = np.arange(0, columns.size + 1, 30), rng.random(columns.size) + 0.1
    documents = sparse.csr_array(
        (values.astype(np.float32), columns.ravel(), starts), shape=(400, 8 << 16)
    )
    documents.sum_duplicates()
    index = InvertedIndex()
    index.add(documents)
    queries = documents[:40]
    expected = brute(queries, documents, 7)
    index.save(tmp_path / "index")
    for searched in (index, open_index(tmp_path / "index")):
        for engine in ENGINES:
            hits = searched.search(queries, 7, params={"engine": engine})
            np.testing.assert_array_equal(hits.rows, expected[0])
            np.testing.assert_array_equal(hits.scores, expected[1])


def test_documents_too_long_for_blocks() -> None:
    """65,536 postings in one document do not fit a block: the index then searches by term."""
    documents = sparse.csr_array(
        (np.ones(70_003, np.float32), [*range(70_000), 1, 2, 3], [0, 70_000, 70_003]),
        shape=(2, 70_000),
    )
    index = InvertedIndex()
    index.add(documents)
    query = sparse.csr_array(documents[[1]])
    assert index.search(query, 2).rows.tolist() == [[0, 1]]
    plan = index.plan(query, 2, params={"engine": "blocks"})[0]
    assert (plan.engine, plan.reason) == ("terms", "the index has no blocks")
