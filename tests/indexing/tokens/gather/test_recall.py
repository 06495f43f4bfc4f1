"""The recall an index notes is the recall it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.encoders.foundation.errors import ConfigError, IndexFormatError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing import open_index
from sluice.indexing.tokens import TokenIndex
from sluice.indexing.tokens.gather import state as gathering
from sluice.indexing.tokens.gather.state import EXACT_BELOW
from tests.support.forging import forge
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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_auto_that_grows_says_so_and_gathers_once_compacted(
    documents: TokenVectors,
    queries: TokenVectors,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(gathering, "EXACT_BELOW", 1_200)
    monkeypatch.setattr(gathering, "LISTED", 400)
    index = TokenIndex("int8", mode="auto")
    index.add(documents.rows(slice(0, 900)))
    assert index.advice == ""
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    opened.add(documents.rows(slice(900, 1_500)))
    assert "1,500 documents exactly" in opened.advice
    assert "compact or rebuild" in opened.advice
    assert [record.message for record in caplog.records] == [f"tokens: {opened.advice}"]
    assert opened.searches == "exact"
    opened.delete([3, 4, 1_000])
    opened.compact()
    assert opened.advice == ""
    fresh = TokenIndex("int8", mode="auto")
    live = np.delete(np.arange(1_500), [3, 4, 1_000])
    fresh.add(documents.rows(live))
    for found in (opened, fresh):
        found.save(tmp_path / "index")
        assert found.recall_note.at_10 >= 0.99
    wide = {"mode": "gather", "candidates": 1_400, "probes": 10_000}
    for params in (wide, {"mode": "exact"}):
        hits = opened.search(queries, 9, params=params)
        expected = fresh.search(queries, 9, params=params)
        np.testing.assert_array_equal(hits.scores, expected.scores)
        np.testing.assert_array_equal(hits.rows, expected.rows)


@pytest.mark.parametrize("name", ["centroids", "cells"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_centroids_that_are_no_numbers_are_refused(
    documents: TokenVectors, tmp_path: Path, name: str, value: float
) -> None:
    index = TokenIndex(mode="gather", candidates=20)
    index.add(documents.rows(slice(0, 50)))
    index.save(tmp_path / "index")
    (path,) = (tmp_path / "index").glob(f"*/gather_{name}.npy")
    values = np.load(path)
    values[-1, 2] = value
    np.save(path, values)
    forge(tmp_path / "index", path)
    with pytest.raises(IndexFormatError, match=r"gather_centroids\.npy.*rebuild the index"):
        open_index(tmp_path / "index")


def test_exact_mode_measures_nothing(documents: TokenVectors, tmp_path: Path) -> None:
    index = TokenIndex("int8")
    index.add(documents)
    index.save(tmp_path / "index")
    assert index.measure_recall() is None
    assert "recall" not in index.notes


@pytest.fixture(scope="module")
def measured(documents: TokenVectors) -> tuple[TokenIndex, dict[str, Any]]:
    """An index, and the note of its recall."""
    index = TokenIndex("int8", mode="gather", candidates=20)
    index.add(documents)
    index.measure_recall()
    return index, dict(index.notes["recall"])


@pytest.mark.parametrize("name", ["at_10", "queries", "source", "documents", "probes", "added"])
@pytest.mark.parametrize("value", ["x", None, [], float("nan")])
def test_a_note_with_other_values_is_none(
    documents: TokenVectors,
    measured: tuple[TokenIndex, dict[str, Any]],
    name: str,
    value: Any,
) -> None:
    index, note = measured
    index.notes["recall"] = dict(note)
    assert index.recall_note is not None
    index.notes["recall"][name] = value
    assert index.recall_note is None
    index.add(documents.rows(slice(0, 2)))
    index.delete([len(index) - 1])


@pytest.mark.parametrize("setting", [{"recall": "x"}, {"recall": True}, {"latency_ms": "x"}])
def test_settings_that_are_no_numbers_are_refused(
    documents: TokenVectors, tmp_path: Path, setting: dict[str, Any]
) -> None:
    (name,) = setting
    with pytest.raises(ConfigError, match=f"{name} is "):
        TokenIndex(mode="auto", **setting)
    index = TokenIndex(mode="auto")
    index.add(documents)
    index.save(tmp_path / "index")
    file = tmp_path / "index" / "manifest.json"
    facts = json.loads(file.read_text())
    facts["index"]["gathering"]["settings"].update(setting)
    file.write_text(json.dumps(facts))
    with pytest.raises(IndexFormatError, match=f"{name} is "):
        open_index(tmp_path / "index")


def test_a_gather_of_another_width_is_refused(documents: TokenVectors, tmp_path: Path) -> None:
    index = TokenIndex(mode="gather", candidates=20)
    index.add(documents)
    index.save(tmp_path / "index")
    file = tmp_path / "index" / "manifest.json"
    facts = json.loads(file.read_text())
    facts["index"]["gathering"]["gather"]["dim"] = 3
    file.write_text(json.dumps(facts))
    for name in ("centroids", "cells"):
        (path,) = (tmp_path / "index").glob(f"*/gather_{name}.npy")
        np.save(path, np.ascontiguousarray(np.load(path)[:, :3]))
        forge(tmp_path / "index", path)
    with pytest.raises(IndexFormatError, match="the gather has 3 dimensions, the index"):
        open_index(tmp_path / "index")


def test_documents_without_tokens_do_not_keep_a_saved_index_from_gathering(
    documents: TokenVectors, tmp_path: Path
) -> None:
    index = TokenIndex("int8", mode="gather", candidates=20)
    index.add(TokenVectors.of([np.zeros((0, documents.dim), np.float32)] * 3, documents.dim))
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    opened.add(documents)
    assert opened.measure_recall() is not None


def test_an_index_without_centroids_says_that_it_is_exact(documents: TokenVectors) -> None:
    index = TokenIndex("int8", mode="auto")
    index.add(documents)  # too few to prepare a gather for
    assert index.searches == "exact"
    assert index.measure_recall() is None
    gathering = TokenIndex("int8", mode="gather")
    gathering.add(documents)
    assert gathering.searches == "gather"
