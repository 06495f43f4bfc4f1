"""Document orders: permutations, the same each time, that make the terms of blocks fewer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing import InvertedIndex
from sluice.indexing.inverted.spooling import bisection, clustering
from sluice.indexing.inverted.spooling.document_order import ORDERS, document_order
from sluice.indexing.inverted.spooling.spool import Spool

LEARNED = ("cluster", "bisection")
WIDTH = 400
Matrix = sparse.csr_array[np.float32]


def spooled(matrix: Matrix) -> Spool:
    spool = Spool()
    spool.append(matrix)
    return spool


def matrix_of(documents: list[list[int]], width: int = WIDTH) -> Matrix:
    starts = np.cumsum([0, *(len(document) for document in documents)])
    terms = np.array([term for document in documents for term in document], dtype=np.int64)
    impacts = 1 + (terms % 7).astype(np.float32) / 7
    return sparse.csr_array((impacts, terms, starts), shape=(len(documents), width))


def topical(documents: int, seed: int = 3) -> Matrix:
    """Documents of 20 terms, most from the 20 terms of a topic, in random order."""
    random = np.random.default_rng(seed)
    topics = random.integers(0, 18, documents)
    lists = []
    for topic in topics:
        own = 40 + topic * 20 + random.choice(20, 14, replace=False)
        lists.append(sorted({*own.tolist(), *random.choice(WIDTH, 6, replace=False).tolist()}))
    return matrix_of(lists)


def block_terms(matrix: Matrix, order: NDArray[np.uint32], size: int = 16) -> int:
    """Count the distinct (block, term) pairs."""
    ordered = matrix[order.astype(np.int64)]
    blocks = np.repeat(np.arange(len(order)) // size, np.diff(ordered.indptr))
    return len(np.unique(blocks * matrix.shape[1] + ordered.indices))


@pytest.mark.parametrize("method", ORDERS)
@given(
    documents=st.lists(st.lists(st.integers(0, 29), unique=True, max_size=12), max_size=70),
    seed=st.integers(0, 3),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_is_a_permutation(method: str, documents: list[list[int]], seed: int) -> None:
    order = document_order(
        spooled(matrix_of([sorted(terms) for terms in documents], 30)), 30, method, seed=seed
    )
    assert order.dtype == np.uint32
    assert np.array_equal(np.sort(order), np.arange(len(documents)))


@pytest.mark.parametrize("method", ORDERS)
@pytest.mark.parametrize("documents", [0, 1, 2, 15, 16, 17, 33])
def test_few_documents(method: str, documents: int) -> None:
    order = document_order(spooled(topical(documents)), WIDTH, method)
    assert sorted(order.tolist()) == list(range(documents))


def test_input_is_the_order_of_adding() -> None:
    assert document_order(spooled(topical(50)), WIDTH, "input").tolist() == list(range(50))


@pytest.mark.parametrize("method", LEARNED)
def test_topics_come_together(method: str) -> None:
    matrix = topical(1500)
    order = document_order(spooled(matrix), WIDTH, method)
    shuffled = block_terms(matrix, np.arange(1500, dtype=np.uint32))
    assert block_terms(matrix, order) < 0.65 * shuffled


def test_bisection_is_the_best() -> None:
    matrix = topical(1500)
    pairs = [block_terms(matrix, document_order(spooled(matrix), WIDTH, m)) for m in ORDERS]
    assert pairs[0] > pairs[1] > pairs[2]


@pytest.mark.parametrize("method", LEARNED)
def test_large_corpora_are_divided_by_several_threads(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small limits take the paths of large corpora; threads change nothing."""
    matrix = topical(1500)
    alone = document_order(spooled(matrix), WIDTH, method)
    monkeypatch.setattr(bisection, "SUBTREE", 200)
    monkeypatch.setattr(bisection, "CHUNK", 37)
    monkeypatch.setattr(clustering, "CHUNK", 37)
    monkeypatch.setattr("numba.config.NUMBA_NUM_THREADS", 3)
    assert np.array_equal(document_order(spooled(matrix), WIDTH, method), alone)


def test_large_clusters_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = topical(1500)
    monkeypatch.setattr(clustering, "MOST_CLUSTERS", 3)
    order = document_order(spooled(matrix), WIDTH, "cluster")
    assert np.array_equal(np.sort(order), np.arange(1500))
    assert block_terms(matrix, order) < 0.8 * block_terms(matrix, np.arange(1500, dtype=np.uint32))


def test_the_seed_decides_the_clusters() -> None:
    spool = spooled(topical(1500))
    first, again, other = (document_order(spool, WIDTH, "cluster", seed=s) for s in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("method", LEARNED)
def test_empty_documents_are_last(method: str) -> None:
    documents = [[] if row % 3 == 0 else [row % 5, 10 + row % 7] for row in range(100)]
    order = document_order(spooled(matrix_of(documents)), WIDTH, method)
    assert order[-34:].tolist() == list(range(0, 100, 3))


@pytest.mark.parametrize("method", LEARNED)
def test_duplicates_come_together(method: str) -> None:
    """Topics that take turns: a regular order has halves that are alike."""
    documents = [[row % 64 * 3, row % 64 * 3 + 1, row % 64 * 3 + 2] for row in range(16 * 64)]
    matrix = matrix_of(documents)
    order = document_order(spooled(matrix), WIDTH, method)
    most = block_terms(matrix, np.arange(len(documents), dtype=np.uint32))
    assert block_terms(matrix, order) < 0.25 * most


@pytest.mark.parametrize("method", LEARNED)
def test_documents_all_the_same(method: str) -> None:
    order = document_order(spooled(matrix_of([[1, 2, 3]] * 300)), WIDTH, method)
    assert sorted(order.tolist()) == list(range(300))


@pytest.mark.parametrize("method", LEARNED)
def test_a_term_of_all_documents_decides_nothing(method: str) -> None:
    without = matrix_of([[5 + row * 7 % 20, 30 + row * 7 % 20] for row in range(300)])
    everywhere = sparse.lil_array(without)
    everywhere[:, 0] = 9.0
    common: Matrix = sparse.csr_array(everywhere, dtype=np.float32)
    orders = [document_order(spooled(matrix), WIDTH, method) for matrix in (without, common)]
    assert np.array_equal(*orders)


def test_documents_from_files_have_the_same_order() -> None:
    matrix = topical(300)
    spilled = Spool(spill=1000)
    for first in range(0, 300, 100):
        spilled.append(matrix[first : first + 100])
    for method in LEARNED:
        order = document_order(spilled, WIDTH, method)
        assert np.array_equal(order, document_order(spooled(matrix), WIDTH, method))
    for file in spilled._files or ():
        file.close()


def test_subnormal_impacts() -> None:
    matrix = topical(200)
    matrix.data[::3] = np.float32(1e-45)
    for method in LEARNED:
        order = document_order(spooled(matrix), WIDTH, method)
        assert np.array_equal(np.sort(order), np.arange(200))


def test_unknown_method() -> None:
    with pytest.raises(ConfigError, match="bisection"):
        document_order(spooled(topical(3)), WIDTH, "bisect")


@pytest.mark.parametrize("method", LEARNED)
def test_the_index_finds_the_same_rows(method: str) -> None:
    matrix, queries = topical(600), topical(20, seed=5)
    plain, ordered = InvertedIndex(), InvertedIndex(order=method)
    plain.add(matrix)
    ordered.add(matrix)
    wanted, found = plain.search(queries, 10), ordered.search(queries, 10)
    assert np.array_equal(found.rows, wanted.rows)
    assert np.array_equal(found.scores, wanted.scores)
