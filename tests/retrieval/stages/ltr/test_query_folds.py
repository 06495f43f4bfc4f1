"""Folds of queries that share neither texts nor relevant documents."""

import numpy as np
import pytest

from sluice.encoders.foundation.errors import (
    ConfigError,
)
from sluice.retrieval.stages.ltr.reranker import query_folds


def test_folds_keep_texts_and_relevant_documents_apart() -> None:
    queries = {f"q{n}": f"text {n // 2 if n < 4 else n}" for n in range(20)}
    qrels = {f"q{n}": {f"d{n}": 1, "shared": int(n in (7, 11, 13)), f"d{n - 1}": 0}
             for n in range(20)}  # fmt: skip
    found = query_folds(queries, qrels, 5, seed=1)
    assert found.apart
    assert found.largest == 3 / 20
    assert list(found.fold) == list(queries)
    assert found.fold["q7"] == found.fold["q11"] == found.fold["q13"]
    assert found.fold["q0"] == found.fold["q1"]
    sizes = np.bincount(list(found.fold.values()))
    assert sizes.tolist() == [4] * 5
    backwards = query_folds(dict(reversed(queries.items())), qrels, 5, seed=1)
    assert backwards.fold == found.fold
    chained = query_folds(queries, {q: {"one": 1} for q in queries}, 5, seed=1)
    assert (chained.apart, chained.largest) == (False, 1.0)
    assert chained.fold["q0"] == chained.fold["q1"]
    with pytest.raises(ConfigError, match="folds: 21 of 20"):
        query_folds(queries, qrels, 21, seed=1)
