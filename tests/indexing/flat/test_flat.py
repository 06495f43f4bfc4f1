"""FlatIndex: exact to the last bit, whatever the blocks, the batch and the size of the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import sluice.indexing.flat.search
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.indexing import FlatIndex, Hits, open_index
from sluice.indexing.storage.exact_scores import exact_scores, norms_of

METRICS = ["ip", "cosine", "l2"]


def by_hand(queries: Any, documents: Any, metric: Any, k: int) -> Hits:
    """Each query with each document on its own, by the scoring function one pair at a time."""
    hits = Hits.missing(len(queries), k)
    for place, query in enumerate(queries):
        norm = float(norms_of(query[None])[0])
        scores = np.concatenate(
            [exact_scores(query, d[None], metric, norm, norms_of(d[None])) for d in documents]
        )
        order = np.lexsort((np.arange(len(scores)), -scores))[:k]
        hits.rows[place, : len(order)], hits.scores[place, : len(order)] = order, scores[order]
    return hits


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e-12, 1e18, 3e37])
@pytest.mark.parametrize("k", [1, 7, 60, 500])
def test_duplicates_near_ties_and_extremes(
    metric: Any, scale: float, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sluice.indexing.flat.search, "DOCUMENT_BLOCK", 64)
    monkeypatch.setattr(sluice.indexing.flat.search, "SMALLEST_BLOCK", 16)
    rng = np.random.default_rng(5)
    base = rng.standard_normal((40, 33)).astype(np.float32)
    documents = base[rng.integers(0, 40, 300)]  # each vector many times over
    nudged = rng.random(300) < 0.5  # and near copies, a last bit away
    documents[nudged, 0] = np.nextafter(documents[nudged, 0], np.float32(9))
    queries = rng.standard_normal((8, 33)).astype(np.float32)
    queries[0], documents[17] = 0, 0
    documents, queries = documents * np.float32(scale), queries * np.float32(scale)
    index = FlatIndex(metric)
    for part in np.array_split(documents, 7):
        index.add(part)
    expected = by_hand(queries, documents, metric, k)
    for batch in (1, 8):
        found = [index.search(queries[i : i + batch], k) for i in range(0, 8, batch)]
        np.testing.assert_array_equal(np.concatenate([f.scores for f in found]), expected.scores)
        np.testing.assert_array_equal(np.concatenate([f.rows for f in found]), expected.rows)


def test_a_score_does_not_depend_on_its_neighbours() -> None:
    rng = np.random.default_rng(0)
    for width in (1, 3, 8, 100, 384, 1024, 9001):
        documents = rng.standard_normal((37, width)).astype(np.float32)
        query, norms = documents[5] * 0.3, norms_of(documents)
        whole = exact_scores(query, documents, "ip", 1.0, norms)
        for row in range(37):
            alone = exact_scores(query, documents[row : row + 1], "ip", 1.0, norms[row : row + 1])
            assert alone[0] == whole[row]
        np.testing.assert_allclose(
            whole, documents.astype(np.float64) @ query.astype(np.float64), rtol=1e-6, atol=1e-6
        )


def test_large_random_search_equals_a_float64_product(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    documents = rng.standard_normal((40_000, 32)).astype(np.float32)
    queries = rng.standard_normal((20, 32)).astype(np.float32)
    index = FlatIndex()
    for part in np.array_split(documents, 9):
        index.add(part)
    truth = queries.astype(np.float64) @ documents.astype(np.float64).T
    order = np.argsort(-truth, axis=1, kind="stable")[:, :100]
    np.testing.assert_array_equal(index.search(queries, 100).rows, order)
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    np.testing.assert_array_equal(opened.search(queries, 100).rows, order)
    few = rng.integers(0, 40_000, 30)
    assert np.isin(opened.search(queries, 30, keep=few).rows, [*few, -1]).all()


def test_wrong_shapes_are_refused() -> None:
    index = FlatIndex()
    index.add(np.ones((2, 4), dtype=np.float32))
    for vectors, message in (
        (np.ones(4, dtype=np.float32), r"one vector is vectors\[None, :\]"),
        (np.ones((1, 2, 4), dtype=np.float32), r"expected \[n, dim\]"),
        (np.ones((2, 5), dtype=np.float32), "5 dimensions, this index holds 4"),
        (sparse.csr_array(np.ones((2, 4))), "sparse vectors go into InvertedIndex"),
        (np.ones((2, 0), dtype=np.float32), "at least one dimension"),
        (np.full((1, 4), 1e300), "row 0, dimension 0 is inf in float32"),
    ):
        with pytest.raises(DataError, match=message):
            index.add(vectors)
        with pytest.raises(DataError, match=message):
            index.search(vectors, 3)
    with pytest.raises(ConfigError, match="did you mean 'cosine'"):
        FlatIndex("cosin")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="takes none"):
        index.search(np.ones((1, 4), dtype=np.float32), 3, params={"nprobe": 3})


def test_large_finite_values_are_no_nan() -> None:
    FlatIndex().add(np.full((3, 4), 3e38, dtype=np.float32))  # their sum overflows, they do not


@pytest.mark.parametrize("metric", METRICS)
def test_overflowing_scores_stay_finite(metric: Any) -> None:
    index = FlatIndex(metric)
    index.add(np.array([[3e38, 3e38], [-3e38, -3e38], [1, 1]], dtype=np.float32))
    hits = index.search(np.array([[3e38, 3e38]], dtype=np.float32), 4)
    assert (hits.rows[0] >= 0).tolist() == [True, True, True, False]
    assert np.isfinite(hits.scores[0, :3]).all()
    assert hits.scores[0, 3] == -np.inf


def test_many_small_additions_are_joined() -> None:
    index = FlatIndex()
    for row in range(1000):
        index.add(np.full((1, 2), row, dtype=np.float32))
    assert len(index._vectors._chunks) < 12
    np.testing.assert_array_equal(
        index.search(np.ones((1, 2), dtype=np.float32), 3).rows, [[999, 998, 997]]
    )
