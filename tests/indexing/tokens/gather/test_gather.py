"""Gathered hits: exact scores, exact hits where everything is gathered, and any change between."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing import open_index
from sluice.indexing.tokens import TokenIndex
from sluice.indexing.tokens.gather import state as gathering
from sluice.indexing.tokens.gather.centroid_gather import CentroidGather, CentroidLists
from sluice.indexing.tokens.gather.centroids import Centroids
from tests.support.token_clusters import DIM, clustered, max_sim

QUICK = settings(derandomize=True, deadline=None, max_examples=25)
ALL = {"candidates": 10_000, "probes": 10_000}


def same(found: object, expected: object) -> None:
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.scores, expected.scores)


def filled(documents: TokenVectors, **given: object) -> TokenIndex:
    index = TokenIndex("float32", mode="gather", **given)
    index.add(documents)
    return index


@pytest.fixture(scope="module")
def documents() -> TokenVectors:
    return clustered(np.random.default_rng(1), 800)


@pytest.fixture(scope="module")
def queries() -> TokenVectors:
    return clustered(np.random.default_rng(2), 40, most=6)


def test_scores_are_max_sim(documents: TokenVectors, queries: TokenVectors) -> None:
    hits = filled(documents, candidates=50).search(queries, 10)
    for line, (rows, scores) in enumerate(zip(*hits, strict=True)):
        query = queries.text(line)
        assert (rows >= 0).all() == (len(query) > 0)
        for row, score in zip(rows, scores, strict=True):
            if row >= 0:
                assert score == pytest.approx(max_sim(query, documents.text(row)), abs=1e-6)


def test_all_probes_and_all_candidates_are_exact(
    documents: TokenVectors, queries: TokenVectors
) -> None:
    exact = TokenIndex("float32")
    exact.add(documents)
    index = filled(documents)
    expected = exact.search(queries, 20)
    same(index.search(queries, 20, params=ALL), expected)
    same(index.search(queries, 20, params={"mode": "exact"}), expected)
    # 799 of the documents, so that they come through the lists.
    most = len(documents) - 1
    same(index.search(queries, 20, params={"candidates": most, "probes": 10_000}), expected)


def test_more_candidates_find_more(documents: TokenVectors, queries: TokenVectors) -> None:
    index = filled(documents)
    exact = index.search(queries, 10, params={"mode": "exact"})
    real = queries.lengths > 0
    shares = []
    for candidates in (10, 40, 160):
        found = index.search(queries, 10, params={"candidates": candidates, "probes": 8})
        shares.append((found.scores >= exact.scores[:, -1:])[real].mean())
    assert 0.3 < shares[0] < shares[1] <= shares[2]
    assert shares[2] > 0.97


def test_fewer_hits_than_k_in_the_lists_search_everything() -> None:
    # One probe of one token reaches the two documents around it; the third is far away.
    rng = np.random.default_rng(3)
    near = np.eye(DIM, dtype=np.float32)[:1]
    far = np.eye(DIM, dtype=np.float32)[1:2]
    crowd = [far + 0.01 * rng.standard_normal((1, DIM)).astype(np.float32) for _ in range(30)]
    documents = TokenVectors.of([near, near, *crowd], DIM)
    index = filled(documents, candidates=5)
    hits = index.search(TokenVectors.of([near], DIM), 5, params={"probes": 1})
    assert (hits.rows >= 0).all()
    same(hits, index.search(TokenVectors.of([near], DIM), 5, params={"mode": "exact"}))
    both = TokenVectors.of([far, np.zeros((0, DIM), np.float32), near], DIM)
    together = index.search(both, 5, params={"probes": 1})
    np.testing.assert_array_equal(together.rows[2], hits.rows[0])
    np.testing.assert_array_equal(together.rows[1], np.full(5, -1))
    assert (together.scores[0] > 0.9).all()


def test_a_filter_of_few_documents_is_exact(documents: TokenVectors, queries: TokenVectors) -> None:
    index = filled(documents, candidates=30)
    keep = np.arange(0, 800, 32)
    found = index.search(queries, 10, keep=keep)
    same(found, index.search(queries, 10, keep=keep, params={"mode": "exact"}))


def test_a_filter_of_many_documents_is_kept(documents: TokenVectors, queries: TokenVectors) -> None:
    index = filled(documents, candidates=30)
    keep = np.arange(1, 800, 2)
    found = index.search(queries, 10, keep=keep).rows
    assert (found[found >= 0] % 2 == 1).all()
    assert (found[queries.lengths > 0] >= 0).all()


@QUICK
@given(seed=st.integers(0, 2**32), count=st.integers(0, 60), k=st.integers(1, 70))
def test_any_changes_equal_a_rebuild(seed: int, count: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    asked = clustered(rng, 4, most=5)
    # The last has no tokens: all but one are then all that can be hits, and come from the lists.
    empty = TokenVectors.of([np.zeros((0, DIM), np.float32)], DIM)
    documents = TokenVectors.joined([clustered(rng, 20 + count), empty], DIM)
    index = TokenIndex("float32", mode="gather", candidates=3)
    index.train(documents)
    edges = np.sort(rng.integers(0, len(documents) + 1, 3))
    for part in np.split(np.arange(len(documents)), edges):
        index.add(documents.rows(part))
    dying = np.flatnonzero(rng.random(len(documents) - 1) < rng.random())
    index.delete(dying)
    exact = TokenIndex("float32")
    exact.add(documents)
    exact.delete(dying)
    wide = {"candidates": max(1, len(index) - 1), "probes": 10_000}
    same(index.search(asked, k, params=wide), exact.search(asked, k))
    np.testing.assert_array_equal(index.compact(), exact.compact())
    same(index.search(asked, k, params=wide), exact.search(asked, k))
    index.add(documents)
    exact.add(documents)
    wide = {**wide, "candidates": max(1, len(index) - 1)}
    same(index.search(asked, k, params=wide), exact.search(asked, k))
    found = index.search(asked, k, params={"probes": 2})
    same(found, index.search(asked, k, params={"probes": 2}))  # sums were cleared


def test_adding_in_parts_gives_the_same_lists(
    documents: TokenVectors, queries: TokenVectors
) -> None:
    whole, parts = (TokenIndex("int8", mode="gather", candidates=20) for _ in range(2))
    for index in (whole, parts):
        index.train(documents)
    whole.add(documents)
    for start in range(0, 800, 90):
        parts.add(documents.rows(slice(start, start + 90)))
    same(parts.search(queries, 10), whole.search(queries, 10))


def test_the_seed_decides(documents: TokenVectors, queries: TokenVectors) -> None:
    first, again, other = (filled(documents, candidates=12, seed=seed) for seed in (1, 1, 2))
    narrow = {"probes": 2}
    hits = first.search(queries, 10, params=narrow)
    same(again.search(queries, 10, params=narrow), hits)
    assert (other.search(queries, 10, params=narrow).rows != hits.rows).any()


def test_opened_searches_alike(
    documents: TokenVectors, queries: TokenVectors, tmp_path: Path
) -> None:
    index = filled(documents, candidates=25, probes=4)
    index.delete([3, 700])
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    assert (opened.mode, opened.searches, opened.settings) == ("gather", "gather", index.settings)
    assert opened.recall_note == index.recall_note
    assert opened.size_bytes == index.size_bytes
    same(opened.search(queries, 10), index.search(queries, 10))
    for changed in (index, opened):
        changed.add(documents.rows(slice(0, 50)))
        changed.delete([20])
    same(opened.search(queries, 10), index.search(queries, 10))


def test_documents_without_tokens_come_first() -> None:
    index = TokenIndex("float32", mode="gather", candidates=2)
    index.add(TokenVectors.of([np.zeros((0, DIM), np.float32)] * 3, DIM))
    documents = clustered(np.random.default_rng(4), 60)
    index.add(documents)
    query = documents.rows([int(np.argmax(documents.lengths))])
    assert index.search(query, 1).rows[0, 0] == 3 + int(np.argmax(documents.lengths))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mode": "exact", "candidates": 5}, "candidates has no effect with mode: exact"),
        ({"mode": "exact", "latency_ms": 5}, "latency_ms has no effect with mode: exact"),
        ({"mode": "gather", "latency_ms": 5}, "set mode: auto"),
        ({"mode": "gather", "candidates": 5, "recall": 0.9}, "remove one of them"),
        ({"mode": "gather", "recall": 1.5}, "recall is 1.5"),
        ({"mode": "auto", "latency_ms": 0}, "milliseconds above 0"),
        ({"mode": "gathr"}, "gather"),
        ({"mode": "gather", "probes": 0}, "probes"),
    ],
)
def test_settings_are_checked(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TokenIndex("int8", **given)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"probe": 3}, "did you mean 'probes'"),
        ({"candidates": 0}, "candidates"),
        ({"mode": "auto"}, "expected exact or gather"),
    ],
)
def test_parameters_are_checked(
    documents: TokenVectors, params: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        filled(documents).search(documents.rows([0]), 1, params=params)


def test_a_batch_is_its_queries(documents: TokenVectors, queries: TokenVectors) -> None:
    index = filled(documents, candidates=15, probes=3)
    together = index.search(queries, 10)
    for line in range(len(queries)):
        alone = index.search(queries.rows([line]), 10)
        np.testing.assert_array_equal(alone.rows[0], together.rows[line])
        np.testing.assert_array_equal(alone.scores[0], together.scores[line])


def test_sums_are_max_sim_over_centroids(documents: TokenVectors, queries: TokenVectors) -> None:
    gather = CentroidGather(13)
    gather.train(documents, len(documents))
    assigned = gather.assigned(documents)
    gather.append(assigned)
    centroids = gather._centroids.values
    nearest = TokenVectors(centroids[assigned.codes], documents.bounds)
    for query in queries:
        expected = np.array([max_sim(query, text) for text in nearest])
        best = np.argsort(-expected, kind="stable")[:30]
        found = gather.candidates(query, 30, None, {"probes": len(centroids)})
        if len(query):
            # Equal to what float32 sums tell apart.
            assert expected[found].min() == pytest.approx(expected[best].min(), abs=1e-5)
        else:
            assert len(found) == 0


def test_missing_tokens_count_as_the_next_centroid() -> None:
    points = np.eye(DIM, dtype=np.float32)[:4]
    documents = TokenVectors.of([points[:1], points[1:2], points[2:3], points[3:]] * 3, DIM)
    gather = CentroidGather(13)
    gather._centroids = Centroids(points, points[:1], np.array([0, 4]))
    gather._lists = CentroidLists(4)
    gather.append(gather.assigned(documents))
    query = np.array([[0.9, 0.5, 0.2, 0.1], [0.1, 0.3, 0.8, 0.2]], np.float32)
    query = np.pad(query, ((0, 0), (0, DIM - 4)))
    # Two probes: centroids 0 and 1 of the first token (else 0.2), 2 and 1 of the second (else 0.2).
    sums = {0: 0.9 + 0.2, 1: 0.5 + 0.3, 2: 0.2 + 0.8}  # those of centroid 3 are in no list
    order = sorted(sums, key=lambda centroid: -sums[centroid])
    for places in (1, 2, 3):
        found = gather.candidates(query, 3 * places, None, {"probes": 2})
        assert set((found % 4).tolist()) == set(order[:places])


def test_tokens_go_to_the_nearest_centroid(documents: TokenVectors) -> None:
    centroids = Centroids.trained(documents.values, 300, 13)
    assert 200 <= len(centroids) <= 300
    values = documents.values.astype(np.float64)
    distances = ((values[:, None] - centroids.values[None]) ** 2).sum(axis=2)
    chosen = distances[np.arange(len(values)), centroids.assign(documents.values)]
    # Only the nearest cells are looked into.
    assert (chosen <= distances.min(axis=1) + 1e-5).mean() > 0.97
    assert chosen.mean() < 0.5 * (values**2).sum(axis=1).mean()


def test_centroids_of_few_vectors() -> None:
    same_vector = np.ones((5, DIM), np.float32)
    assert len(Centroids.trained(same_vector, 8, 1)) == 1
    assert len(Centroids.trained(same_vector[:1], 8, 1)) == 1
    zeros = Centroids.trained(np.zeros((9, DIM), np.float32), 3, 1)
    assert np.isfinite(zeros.values).all()
    np.testing.assert_array_equal(zeros.assign(np.zeros((2, DIM), np.float32)) < len(zeros), True)


def test_few_queries_at_a_time_find_the_same(
    documents: TokenVectors, queries: TokenVectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = filled(documents, candidates=50)
    together = index.search(queries, 10)
    monkeypatch.setattr(gathering, "MOST_CANDIDATES", 150)
    sizes: list[int] = []
    exact = gathering.Gathering.search

    def sized(
        self: gathering.Gathering, search: object, texts: TokenVectors, *rest: object
    ) -> object:
        sizes.append(len(texts))
        return exact(self, search, texts, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(gathering.Gathering, "search", sized)
    same(index.search(queries, 10), together)
    assert sizes[0] == len(queries)
    assert max(sizes[1:]) == 3
