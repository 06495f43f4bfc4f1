"""What is asked of every index has an answer, of the base where a kind has none of its own."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing import FlatIndex, InvertedIndex


def test_a_dense_index_explains_nothing() -> None:
    index = FlatIndex()
    assert (index.explains, index.width) == (False, None)
    index.add(np.eye(3, dtype=np.float32))
    assert index.width == 3
    assert list(index.plan(np.eye(3, dtype=np.float32), 1)) == []
    with pytest.raises(ConfigError, match="FlatIndex: cannot explain a score"):
        index.explain(np.eye(3, dtype=np.float32)[:1], 0)


def test_a_sparse_index_does() -> None:
    index = InvertedIndex()
    vectors = sp.csr_array(np.eye(3, dtype=np.float32))
    index.add(vectors)
    assert (index.explains, index.width) == (True, 3)
    assert [part.term for part in index.explain(vectors[[1]], 1)] == [1]
