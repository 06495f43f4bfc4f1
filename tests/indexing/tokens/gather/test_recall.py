"""The recall an index notes is the recall it has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.indexing import open_index
from sluice.indexing.tokens import TokenIndex
from sluice.indexing.tokens.gather.gathering import EXACT_BELOW
from tests.support.token_clusters import clustered


@pytest.fixture(scope="module")
def documents() -> TokenVectors:
    return clustered(np.random.default_rng(1), 1_500)


@pytest.fixture(scope="module")
def queries() -> TokenVectors:
    found = clustered(np.random.default_rng(2), 60, most=6)
    return found.rows(np.flatnonzero(found.lengths > 0))


def recomputed(index: TokenIndex, queries: TokenVectors, k: int) -> float:
    exact = index.search(queries, k, params={"mode": "exact"})
    found = index.search(queries, k)
    shares = [
        len(set(rows) & set(expected)) / k
        for rows, expected in zip(found.rows.tolist(), exact.rows.tolist(), strict=True)
    ]
    return float(np.mean(shares))


def test_the_note_is_the_recall(documents: TokenVectors, queries: TokenVectors) -> None:
    index = TokenIndex("int8", mode="gather", candidates=20, probes=2)
    index.add(documents)
    note = index.measure_recall(queries)
    assert note == index.recall_note
    assert (note.queries, note.source, note.documents) == (
        len(queries),
        "queries",
        int((documents.lengths > 0).sum()),
    )
    assert note.at_10 == pytest.approx(recomputed(index, queries, 10), abs=1e-12)
    assert note.at_100 == pytest.approx(recomputed(index, queries, 100), abs=1e-12)
    assert 0.1 < note.at_10 < 1


def test_saving_measures_by_windows_of_documents(documents: TokenVectors, tmp_path: Path) -> None:
    index = TokenIndex("int8", mode="gather", candidates=20, probes=2)
    index.add(documents)
    index.save(tmp_path / "index")
    note = open_index(tmp_path / "index").recall_note
    assert note.source == "documents"
    assert 0.1 < note.at_10 < 1
    assert open_index(tmp_path / "index").measure_recall() == note  # the seed draws the same
    assert str(note).startswith(f"recall@10 {note.at_10:.3f}, @100 {note.at_100:.3f} of exact")


def test_changes_are_noted(documents: TokenVectors, tmp_path: Path) -> None:
    index = TokenIndex("int8", mode="gather", candidates=20)
    index.add(documents)
    index.save(tmp_path / "index")
    before = index.recall_note
    index.add(documents.rows(slice(0, 7)))
    index.delete([1, 2])
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    assert opened.recall_note == before.changed(added=7, deleted=2)
    assert str(opened.recall_note).endswith("; 7 added since; 2 deleted since")
    assert opened.measure_recall().added == 0


@pytest.mark.parametrize("recall", [0.5, 0.9, 0.99])
def test_depth_is_the_least_that_reaches_the_recall(
    documents: TokenVectors, queries: TokenVectors, recall: float
) -> None:
    index = TokenIndex("int8", mode="gather", recall=recall)
    index.add(documents)
    note = index.measure_recall(queries)
    assert note.at_10 >= recall
    assert recomputed(index, queries, 10) == pytest.approx(note.at_10, abs=1e-12)
    if note.candidates > 100:
        index.default_params = {"candidates": note.candidates // 2}
        assert recomputed(index, queries, 10) < note.at_10


def test_auto_is_exact_in_small_collections(documents: TokenVectors, tmp_path: Path) -> None:
    index = TokenIndex("int8", mode="auto")
    assert index.training_rows(len(documents)) == 0
    index.add(documents)
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    assert opened.recall_note is None
    query = documents.rows([5, 6])
    exact = TokenIndex("int8")
    exact.add(documents)
    np.testing.assert_array_equal(opened.search(query, 9).scores, exact.search(query, 9).scores)


def test_auto_measures_large_collections(tmp_path: Path) -> None:
    documents = clustered(np.random.default_rng(6), EXACT_BELOW, most=4)
    fast, any_speed = (TokenIndex("int8", mode="auto", latency_ms=ms) for ms in (1e-6, 1e6))
    for index in (fast, any_speed):
        assert index.training_rows(len(documents)) > 0
        index.add(documents)
        index.save(tmp_path / "index")
        opened = open_index(tmp_path / "index")
        assert opened.searches == index.searches
        assert opened.recall_note.at_10 >= 0.99
        assert "recall@10" in opened.notes["gather"]
        assert "exact" in opened.notes["gather"]
    assert any_speed.searches == "exact"


def test_exact_mode_measures_nothing(documents: TokenVectors, tmp_path: Path) -> None:
    index = TokenIndex("int8")
    index.add(documents)
    index.save(tmp_path / "index")
    assert index.measure_recall() is None
    assert "recall" not in index.notes
