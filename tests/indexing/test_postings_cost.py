"""The FLOPS statistic of SPLADE is the work an inverted index does (Formal et al., 2021)."""

import numpy as np
import pytest
import scipy.sparse as sp

from indexing import InvertedIndex


def test_counted_multiplications_equal_the_flops_statistic() -> None:
    random = np.random.default_rng(4)
    documents, queries = (
        sp.csr_array((random.random((n, 50)) * (random.random((n, 50)) < share)).astype(np.float32))
        for n, share in ((80, 0.15), (30, 0.1))
    )
    index = InvertedIndex()
    index.add(documents)
    counted = sum(
        len(index.explain(queries[[query]], row)) for query in range(30) for row in range(80)
    )
    active = [(matrix.toarray() > 0).mean(axis=0) for matrix in (queries, documents)]
    statistic = float(active[0] @ active[1])  # sum_j p_q(j) p_d(j)
    assert counted / 30 == pytest.approx(statistic * 80)


def test_predicted_flops_are_the_multiplications_a_document() -> None:
    random = np.random.default_rng(5)
    documents, queries = (
        sp.csr_array((random.random((n, 40)) * (random.random((n, 40)) < share)).astype(np.float32))
        for n, share in ((60, 0.2), (25, 0.15))
    )
    index = InvertedIndex()
    assert index.query_stats(queries).flops == 0
    index.add(documents[:20])
    index.search(queries, 1)
    index.add(documents[20:])
    stats = index.query_stats(queries)
    counted = sum(
        len(index.explain(queries[[query]], row)) for query in range(25) for row in range(60)
    )
    assert stats.multiplications == counted / 25
    assert stats.flops == pytest.approx(stats.multiplications / 60)
    assert stats.mean_terms == queries.nnz / 25
