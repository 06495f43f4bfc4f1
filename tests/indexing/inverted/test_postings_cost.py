"""The FLOPS statistic of SPLADE is the work an inverted index does (Formal et al., 2021)."""

import numpy as np
import pytest
import scipy.sparse as sp

from sluice.indexing import InvertedIndex


@pytest.mark.thorough
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
