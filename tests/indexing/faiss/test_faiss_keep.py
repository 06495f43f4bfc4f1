"""FAISS with masks of every selectivity, rescoring, and changes in any order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sluice.indexing import FaissIndex, FlatIndex, Hits, open_index
from sluice.indexing.faiss.filtered_search import exact_pays, widened
from sluice.indexing.faiss.index import probe

QUICK = settings(derandomize=True, deadline=None, max_examples=20)


def clustered(count: int, seed: int = 0, width: int = 24) -> Any:
    """Normalised vectors around a few centres."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(1).standard_normal((30, width))
    vectors = centres[rng.integers(0, 30, count)] + 0.5 * rng.standard_normal((count, width))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def recall(found: Hits, truth: Hits) -> float:
    pairs = zip(found.rows, truth.rows, strict=True)
    return float(np.mean([np.isin(t[t >= 0], f).mean() for f, t in pairs if (t >= 0).any()]))


def made(factory: str, count: int, **settings: Any) -> tuple[FaissIndex, FlatIndex]:
    index, truth = FaissIndex(factory, **settings), FlatIndex("ip")
    for each in (index, truth):
        each.add(clustered(count))
    return index, truth


@pytest.mark.thorough
@pytest.mark.parametrize("rescore", [None, 2])
@pytest.mark.parametrize("factory", ["Flat", "SQ8", "HNSW16", "IVF64,Flat", "IVF64,SQ8", "PQ12x8"])
def test_recall_at_every_selectivity(
    factory: str, rescore: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fewer rows to score in one go, as if the index were larger.
    monkeypatch.setattr("sluice.indexing.faiss.filtered_search.GRAPH_ROWS", 1)
    monkeypatch.setattr("sluice.indexing.faiss.filtered_search.GRAPH_BATCH_ROWS", 1)
    index, truth = made(factory, 4000, rescore=rescore)
    queries = clustered(30, seed=2)
    params = {"nprobe": 16} if "IVF" in factory else None
    unmasked = recall(index.search(queries, 10, params=params), truth.search(queries, 10))
    for share in (0.001, 0.005, 0.01, 0.05, 0.2, 0.5, 0.9):
        keep = np.random.default_rng(3).random(4000) < share
        for batch in (queries[:1], queries):
            found = index.search(batch, 10, keep=keep, params=params)
            expected = truth.search(batch, 10, keep=keep)
            np.testing.assert_array_equal(found.rows < 0, expected.rows < 0)
            assert recall(found, expected) >= min(unmasked, 0.98) - (
                0.2 if len(batch) == 1 else 0.1
            )


@pytest.mark.parametrize("metric", ["ip", "l2"])
def test_few_allowed_rows_are_scored_as_they_are_stored(metric: Any) -> None:
    index, truth = FaissIndex("SQ8", metric=metric), FlatIndex(metric)
    for each in (index, truth):
        each.add(clustered(4000))
    keep = np.arange(4000) % 400 == 0
    found, expected = (each.search(clustered(5, seed=2), 5, keep=keep) for each in (index, truth))
    assert recall(found, expected) == 1.0
    np.testing.assert_allclose(found.scores, expected.scores, atol=0.05)


def test_the_rule_of_selectivity() -> None:
    graph, lists, flat, codes = (
        made(factory, 4000)[0]._engine for factory in ("HNSW8", "IVF64,Flat", "Flat", "PQ4x4fs")
    )
    assert graph is not None
    assert lists is not None
    assert flat is not None
    assert codes is not None
    assert widened(graph, 10, 4000, {}) == {}
    assert widened(graph, 10, 400, {}) == {"efSearch": 160}
    assert widened(graph, 10, 400, {"efSearch": 100}) == {"efSearch": 200}
    assert widened(graph, 10, 400, {"efSearch": 900}) == {"efSearch": 900}
    assert widened(lists, 10, 4000, {}) == {}
    assert widened(lists, 10, 1000, {"nprobe": 2}) == {"nprobe": 8}
    assert widened(lists, 10, 100, {"nprobe": 2}) == {"nprobe": 64}
    assert widened(codes, 10, 100, {}) == {}
    for engine, least, most in ((graph, 300, 3500), (lists, 60, 3900), (flat, 500, 900)):
        assert exact_pays(engine, 10, least, 1, {}, full=True)
        assert not exact_pays(engine, 10, most, 1, {}, full=True)
    assert exact_pays(flat, 10, 3999, 16, {}, full=False)
    assert not exact_pays(codes, 10, 500, 64, {}, full=True)


@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_rescoring_all_candidates_is_exact(metric: Any) -> None:
    documents, queries = clustered(300), clustered(9, seed=2)
    documents[50:90] = documents[:40]  # ties
    truth = FlatIndex(metric)
    truth.add(documents)
    for factory in ("Flat", "SQ8", "PQ4x4fs", "SQfp16", "L2norm,Flat"):
        index = FaissIndex(factory, metric=metric, rescore=30)
        index.add(documents)
        for keep in (None, np.arange(300) % 3 > 0, np.arange(5)):
            found, expected = (each.search(queries, 10, keep=keep) for each in (index, truth))
            np.testing.assert_array_equal(found.rows, expected.rows)
            np.testing.assert_array_equal(found.scores, expected.scores)


@QUICK
@given(seed=st.integers(0, 2**32), rescore=st.sampled_from([None, 100]))
def test_changes_in_any_order_equal_a_rebuild(seed: int, rescore: int | None) -> None:
    rng = np.random.default_rng(seed)
    indexes = [FaissIndex(factory, metric="ip", rescore=rescore)
               for factory in ("Flat", "SQfp16", "BFlat")]  # fmt: skip
    held = np.zeros((0, 6), dtype=np.float32)  # rows, the deleted ones too
    live = np.zeros(0, dtype=bool)
    for _ in range(8):
        step = rng.integers(3)
        if step == 0:
            new = rng.integers(-3, 4, (int(rng.integers(1, 20)), 6)).astype(np.float32)
            held, live = np.concatenate([held, new]), np.append(live, np.ones(len(new), bool))
            for index in indexes:
                index.add(new)
        elif step == 1 and live.any():
            dead = rng.choice(np.flatnonzero(live), int(rng.integers(1, 5)) % live.sum(), False)
            live[dead] = False
            for index in indexes:
                index.delete(dead)
        else:
            for index in indexes:
                index.compact()
            held, live = held[live], np.ones(int(live.sum()), bool)
    queries = rng.integers(-3, 4, (4, 6)).astype(np.float32)
    for index in indexes:
        rebuilt = FaissIndex(index.factory, metric="ip", rescore=rescore)
        rebuilt.add(held[live])
        found, expected = index.search(queries, 5), rebuilt.search(queries, 5)
        np.testing.assert_array_equal(found.scores, expected.scores)
        if rescore:  # ties by row: hit for hit
            moved = np.append(np.cumsum(live) - 1, -1)
            np.testing.assert_array_equal(moved[found.rows], expected.rows)


@pytest.mark.parametrize("factory", ["HNSW16", "IVF16,Flat", "IVF16,PQ12x4", "HNSW16,SQ8"])
@pytest.mark.parametrize("rescore", [None, 4])
def test_changes_of_graphs_and_lists_keep_recall(factory: str, rescore: int | None) -> None:
    documents, queries = clustered(1500), clustered(30, seed=2)
    settings: dict[str, Any] = {"params": {"nprobe": 8}} if "IVF" in factory else {}
    index = FaissIndex(factory, rescore=rescore, **settings)
    index.train(documents)
    index.add(documents[:1000])
    index.delete(np.arange(0, 1000, 2))
    index.add(documents[1000:])
    index.delete(np.arange(1000, 1200))
    index.compact()
    rows = np.concatenate([np.arange(1, 1000, 2), np.arange(1200, 1500)])
    rebuilt, truth = FaissIndex(factory, rescore=rescore, **settings), FlatIndex("ip")
    rebuilt.train(documents)
    for each in (rebuilt, truth):
        each.add(documents[rows])
    exact = truth.search(queries, 10)
    now, again = (recall(each.search(queries, 10), exact) for each in (index, rebuilt))
    assert now >= again - 0.05
    if rescore is not None:
        assert now > 0.8


def test_compact_of_full_vectors_does_not_decode() -> None:
    index = FaissIndex("PQ4x4", rescore=1)
    index.add(clustered(400))
    before = index.search(clustered(5, seed=2), 400, params={"rescore": 0})
    index.delete([0])
    index.compact()
    after = index.search(clustered(5, seed=2), 399, params={"rescore": 0})
    assert np.isin(after.scores, before.scores).all()


def test_folders_of_earlier_versions_open(tmp_path: Path) -> None:
    index = FaissIndex("IVF4,Flat")
    index.add(clustered(200))
    facts = index._write(tmp_path)
    old = {name: facts[name] for name in ("factory", "metric", "dim", "rows", "train_size", "seed")}
    opened = FaissIndex._read(tmp_path, json.loads(json.dumps(old)))
    opened._live.extend(200)
    assert (opened.rescore, opened.params) == (None, {})
    queries = clustered(5, seed=2)
    np.testing.assert_array_equal(opened.search(queries, 5).rows, index.search(queries, 5).rows)


def test_parameters_of_the_index_are_saved_and_a_call_wins(tmp_path: Path) -> None:
    index, _ = made("IVF32,Flat", 2000, params={"nprobe": np.int64(32)}, rescore=2)
    queries = clustered(20, seed=2)
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    everything = opened.search(queries, 40)
    np.testing.assert_array_equal(everything.rows, index.search(queries, 40).rows)
    one = opened.search(queries, 40, params={"nprobe": 1})
    assert (one.rows != everything.rows).any()
    assert probe("IVF32,Flat", "ip") is not None


@pytest.mark.thorough
@pytest.mark.parametrize("factory", ["HNSW8", "HNSW4,SQ8", "NSG8", "BHNSW8"])
@pytest.mark.parametrize("metric", ["ip", "l2"])
def test_a_graph_leaves_no_document_out(factory: str, metric: Any) -> None:
    """A graph's walk ends before, and no link leads to some: of inner products, short vectors."""
    if factory.startswith("B") and metric == "l2":
        pytest.skip("bits have no distances")
    rng = np.random.default_rng(0)
    documents = rng.normal(size=(300, 16)) * np.exp(rng.normal(size=(300, 1)))
    documents, queries = documents.astype(np.float32), rng.normal(size=(5, 16)).astype(np.float32)
    index, truth = FaissIndex(factory, metric=metric), FlatIndex(metric)
    index.add(documents)
    truth.add(documents)
    for k in (300, 1_000):
        hits = index.search(queries, k)
        assert (np.sort(hits.rows[:, :300], axis=1) == np.arange(300)).all()
        if factory in ("HNSW8", "NSG8"):
            np.testing.assert_array_equal(hits.rows, truth.search(queries, k).rows)
    assert (index.search(queries, 250).rows >= 0).all()
    index.delete([0, 1])
    left = index.search(queries, 300)
    assert (np.sort(left.rows[:, :298], axis=1) == np.arange(2, 300)).all()
