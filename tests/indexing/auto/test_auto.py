"""The autopilot: targets met on other queries, limits kept or named, small corpora exact."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sluice.indexing.auto.index
from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.indexing import INDEXES, AutoIndex, FaissIndex, FlatIndex, QueryGraphIndex, open_index
from sluice.indexing.auto.candidates import (
    ArrayVectors,
    Judge,
    candidates,
    exact_hits,
    lower_bound,
    vectors_of_rows,
)
from sluice.indexing.auto.trials import Choice

WIDTH = 32
NONE = np.full(1000, -1, dtype=np.int64)


def clustered(rng: np.random.Generator, count: int) -> Any:
    centres = np.random.default_rng(0).standard_normal((100, WIDTH))
    table = centres[rng.integers(0, 100, count)] + 0.5 * rng.standard_normal((count, WIDTH))
    return (table / np.linalg.norm(table, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(autouse=True)
def _few_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.indexing.auto.candidates.TIMED", 10)
    monkeypatch.setattr("sluice.indexing.auto.candidates.SECONDS", 0.05)


@pytest.fixture(scope="module")
def documents() -> Any:
    return clustered(np.random.default_rng(1), 6000)


@pytest.fixture(scope="module")
def queries() -> Any:
    return clustered(np.random.default_rng(2), 200)


def recall(choice: Choice, documents: Any, queries: Any, k: int = 10) -> float:
    flat = FlatIndex()
    flat.add(documents)
    best = flat.search(queries, k).rows
    found = choice.index.search(queries, k).rows
    return float(np.mean([np.isin(a, b).mean() for a, b in zip(best, found, strict=True)]))


def only(monkeypatch: pytest.MonkeyPatch, *kinds: str) -> None:
    """Try some kinds alone, so that a test does not depend on the machine's timing."""

    def few(*given: Any, **named: Any) -> Iterator[Any]:
        return (each for each in candidates(*given, **named) if each.kind in kinds)

    monkeypatch.setattr("sluice.indexing.auto.trials.candidates", few)


def test_small_corpora_are_searched_exactly(
    documents: Any, queries: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "sluice"):
        choice = AutoIndex().choose(documents, queries)
    assert type(choice.index) is FlatIndex
    assert len(choice.index) == 6000
    assert "below 100,000 vectors (here 6,000)" in choice.reason
    assert [row.name for row in choice.table] == ["flat"]
    assert choice.table[0].recall == 1
    assert str(choice) in caplog.text
    assert str(choice).count("\n") == 4
    choice.index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    assert type(opened) is FlatIndex
    assert opened.notes["auto"] == choice.as_dict() == json.loads(json.dumps(choice.as_dict()))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["HNSW32", "IVF,Flat", "IVF,SQ8", "IVF,PQ4", "flat binary"])
def test_the_target_is_met_on_other_queries(
    kind: str, documents: Any, queries: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, kind)
    choice = AutoIndex(0.95, exact_below=100).choose(documents, queries)
    assert choice.chosen is not None
    assert not choice.chosen.breaks, str(choice)
    assert choice.chosen.queries == "held-out"
    assert choice.chosen.recall >= 0.95
    assert choice.index.default_params == dict(choice.chosen.params)
    others = clustered(np.random.default_rng(3), 200)
    assert recall(choice, documents, others) >= 0.94
    choice.index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    np.testing.assert_array_equal(
        opened.search(others, 10).rows, choice.index.search(others, 10).rows
    )
    # The smallest setting that does: the ones before it fall short.
    tuned = [row for row in choice.table if row.queries == "held-out"]
    assert [bool(row.breaks) for row in tuned] == [True] * (len(tuned) - 1) + [False]


@pytest.mark.thorough
def test_training_queries_link_a_graph(
    documents: Any, queries: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "flat", "query_graph")
    part, offset = documents[:1000], np.full(WIDTH, 0.2, np.float32)  # of the queries
    queries = queries + offset
    calls: list[int] = []

    def training() -> Any:
        calls.append(1)
        return clustered(np.random.default_rng(4), 300) + offset

    recipe = AutoIndex(0.9, exact_below=100)
    rows = recipe.choose(part, queries, training=training).table
    assert calls == [1]
    assert {row.name for row in rows} == {"flat", "query_graph"}
    assert {row.name for row in recipe.choose(part, queries).table} == {"flat"}
    euclidean = AutoIndex(0.9, metric="l2", exact_below=100)  # the links are of inner products
    assert {row.name for row in euclidean.choose(part, queries, training=training).table} == {
        "flat"
    }
    AutoIndex(0.9).choose(part, queries, training=training)  # exact, by its size
    assert calls == [1]
    only(monkeypatch, "query_graph")
    choice = recipe.choose(part, queries, training=training)
    assert type(choice.index) is QueryGraphIndex
    assert "linked by 300 training queries" in choice.reason
    assert "query_graph (candidates=" in choice.reason
    assert recall(choice, part, queries) >= 0.9
    choice.index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    assert opened.default_params == choice.index.default_params
    np.testing.assert_array_equal(
        opened.search(queries[:20], 10).rows, choice.index.search(queries[:20], 10).rows
    )


@pytest.mark.thorough
def test_the_fastest_of_all_candidates(documents: Any, queries: Any) -> None:
    choice = AutoIndex(0.95, exact_below=100).choose(ArrayVectors(documents), queries)
    assert choice.chosen is not None
    assert not choice.chosen.breaks
    assert type(choice.index) in (FlatIndex, FaissIndex)
    assert recall(choice, documents, queries) >= 0.94
    names = {row.name.split(",")[0] for row in choice.table}
    assert {"flat", "HNSW32"} <= names
    assert any(name.startswith("IVF") for name in names)
    compared = [row.ms_one for row in choice.table if row.queries == "choosing" and not row.breaks]
    assert len(compared) >= 3
    assert "the fastest of those that meet recall@10 0.95" in choice.reason


def test_a_sample_is_compared_and_all_are_searched(
    documents: Any, queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sluice.indexing.auto.index, "MEASURED", 2000)
    only(monkeypatch, "flat", "IVF,Flat")
    for asked in (queries, None):
        choice = AutoIndex(0.9, exact_below=100).choose(documents, asked)
        assert len(choice.index) == 6000
        assert {row.measured_on for row in choice.table} == {2000, 6000}
        assert "compared on 2,000 of 6,000 vectors" in choice.reason
        flat = next(row for row in choice.table if row.name == "flat")
        assert flat.memory_bytes == pytest.approx(6000 * (4 * WIDTH + 8), rel=0.01)
        assert ("documents" in choice.reason) == (asked is None)
        assert recall(choice, documents, queries) > 0.85


def test_memory_forces_a_smaller_type(
    documents: Any, queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "flat", "HNSW32", "IVF,Flat", "IVF,SQ8", "IVF,PQ4")
    small = AutoIndex(0.9, max_memory="500kB", exact_below=10_000).choose(documents, queries)
    assert small.chosen is not None
    assert not small.chosen.breaks, str(small)
    assert small.chosen.memory_bytes <= 500_000
    assert isinstance(small.index, FaissIndex)
    assert next(row for row in small.table if row.name == "flat").breaks == ("memory",)


def test_limits_nothing_can_meet_are_named(
    documents: Any, queries: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "flat", "IVF,SQ8")
    with caplog.at_level(logging.WARNING, "sluice"):
        choice = AutoIndex(max_latency_ms=1e-6).choose(documents, queries)
    assert choice.chosen is not None
    assert "latency" in choice.chosen.breaks
    assert "no candidate meets recall@10 0.98, latency 1e-06 ms" in choice.reason
    assert len(choice.index) == 6000
    assert choice.reason in caplog.text
    tight = AutoIndex(max_memory=100).choose(documents, queries)
    assert tight.chosen is not None
    assert "memory" in tight.chosen.breaks


@pytest.mark.thorough
def test_the_best_recall_within_the_limits(
    documents: Any, queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "flat", "IVF,PQ4")
    monkeypatch.setattr(
        "sluice.indexing.auto.trials.lower_bound", lambda shares, k: 0.0
    )  # never proven
    choice = AutoIndex(0.98, max_memory="300kB").choose(documents, queries)
    assert choice.chosen is not None
    assert choice.chosen.breaks == ("recall",)
    tuned = [row for row in choice.table if row.queries == "held-out" and "PQ" in row.name]
    assert min(choice.chosen.recall, 0.98) == max(min(row.recall, 0.98) for row in tuned)


def test_a_latency_that_exact_search_meets(documents: Any, queries: Any) -> None:
    choice = AutoIndex(max_latency_ms=1000, exact_below=100).choose(documents, queries)
    assert choice.chosen is not None
    assert choice.chosen.exact
    assert "exact search, which is fast enough" in choice.reason


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50, 1200])
@pytest.mark.parametrize("asked", [None, 0, 1, 70])
def test_few_vectors_and_few_queries(documents: Any, queries: Any, count: int, asked: Any) -> None:
    given = None if asked is None else queries[:asked]
    choice = AutoIndex(0.8, exact_below=0).choose(documents[:count], given)
    assert len(choice.index) == count
    assert str(choice)
    if count > 1:
        assert choice.chosen is not None
        assert choice.chosen.recall >= 0.8
        documents_asked = asked is None or asked < 64
        assert ("queries were documents" in choice.reason) == documents_asked


def test_a_document_is_no_answer_to_itself(documents: Any) -> None:
    table = documents[:500]
    own = np.arange(20)
    judge = Judge.exact(ArrayVectors(table), table[:20], own, 5, "ip")
    assert not any(row in rows for row, rows in zip(own, judge.accepted, strict=True))
    flat = FlatIndex()
    flat.add(table)
    assert judge.recalls(flat, {}).min() == 1
    only_itself = FlatIndex()
    only_itself.add(table[:1])
    assert judge.recalls(only_itself, {})[0] == 0


def test_equal_documents_are_equally_good() -> None:
    table = np.eye(4, dtype=np.float32)[np.arange(400) % 4]
    judge = Judge.exact(ArrayVectors(table), np.eye(4, dtype=np.float32), NONE[:4], 3, "ip")
    turned = FlatIndex()  # finds other rows of the same vectors
    turned.add(np.concatenate([table[4:], table[:4]]))
    assert [len(rows) for rows in judge.accepted] == [22] * 4
    assert judge.recalls(turned, {}).min() == 1


def test_exact_hits_part_by_part(
    documents: Any, queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.indexing.auto.candidates.CHUNK", 700)
    monkeypatch.setattr("sluice.indexing.auto.candidates.MERGED", 1500)
    table = np.concatenate([documents[:3000], documents[:3000]])  # ties across the parts
    flat = FlatIndex("l2")
    flat.add(table)
    found, expected = (
        exact_hits(ArrayVectors(table), queries[:20], 25, "l2"),
        flat.search(queries[:20], 25),
    )
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.scores, expected.scores)
    rows = np.array([0, 5, 699, 700, 2500, 5999])
    np.testing.assert_array_equal(vectors_of_rows(ArrayVectors(table), rows), table[rows])


def test_the_lower_bound_covers() -> None:
    rng = np.random.default_rng(4)
    missed = 0
    for _ in range(400):  # queries of different difficulty, 10 places each
        difficulty = rng.beta(9, 0.6, 150)
        shares = rng.binomial(10, difficulty) / 10
        bound = lower_bound(shares, 10)
        assert bound <= shares.mean()
        missed += bound > 9 / 9.6
    assert missed / 400 < 0.08  # 0.05 is promised
    assert lower_bound(np.ones(100), 10) > 0.99
    assert lower_bound(np.ones(1), 1) < 0.5
    assert lower_bound(np.zeros(0), 10) == 0


def test_the_recipe_is_checked() -> None:
    made = build(
        {"type": "auto", "target_recall": 0.9, "max_memory": "1.5GiB", "max_latency_ms": 5},
        INDEXES,
        where="index",
    )
    assert (made.limits.memory, made.limits.latency_ms) == (3 * 2**29, 5.0)
    assert AutoIndex(max_memory="2GB").limits.memory == 2 * 10**9
    assert AutoIndex(max_memory=" 500 mb ").limits.memory == 5 * 10**8
    assert AutoIndex(max_memory=77).limits.memory == 77
    for wrong, message in (
        ({"target_recall": 0.0}, "target_recall is 0.0"),
        ({"target_recall": 98}, "target_recall is 98"),
        ({"max_memory": "much"}, "max_memory is 'much', expected bytes, such as 2GB"),
        ({"max_memory": "2iB"}, "max_memory is '2iB'"),
        ({"max_memory": 0}, "max_memory is 0"),
        ({"max_latency_ms": 0}, "max_latency_ms is 0"),
        ({"metric": "dot"}, "index.metric: 'dot'; expected one of"),
        ({"target_recal": 0.9}, "did you mean 'target_recall'"),
    ):
        with pytest.raises(ConfigError, match=message):
            build({"type": "auto", **wrong}, INDEXES, where="index")


def test_bad_vectors_are_refused(documents: Any, queries: Any) -> None:
    with pytest.raises(DataError, match="queries: 31 dimensions"):
        AutoIndex().choose(documents, queries[:, :31])
    spoiled = documents.copy()
    spoiled[50, 3] = np.nan
    with pytest.raises(DataError, match="row 50, dimension 3 is nan"):
        AutoIndex().choose(spoiled, queries)


def test_vectors_wait_in_files_where_they_can(
    documents: Any, queries: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "flat", "IVF,SQ8")
    for recipe in (AutoIndex(), AutoIndex(0.9, exact_below=0, max_memory="500kB")):
        choice = recipe.choose(documents, queries, work=tmp_path / "work")
        found = choice.index.search(queries, 10)
        choice.index.save(tmp_path / "index")
        opened = open_index(tmp_path / "index").search(queries, 10)
        np.testing.assert_array_equal(opened.rows, found.rows)
    assert any((tmp_path / "work").rglob("*"))


def test_other_metrics_and_vectors_faiss_refuses(
    documents: Any, queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "flat", "IVF,Flat")
    longer = documents * np.linspace(1, 3, len(documents), dtype=np.float32)[:, None]
    choice = AutoIndex(0.9, metric="cosine", exact_below=0).choose(longer, queries)
    assert type(choice.index) is FlatIndex  # faiss takes unit vectors only
    assert {row.name for row in choice.table} == {"flat"}
    nearest = AutoIndex(0.9, metric="l2", exact_below=0).choose(longer, queries)
    assert nearest.index.metric == "l2"
    assert nearest.chosen is not None
    assert not nearest.chosen.breaks
