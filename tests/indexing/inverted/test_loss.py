"""``loss``: the setting that is chosen, against brute force over queries it has not seen."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing import InvertedIndex, open_index
from sluice.indexing.inverted import approximate

TERMS = 600


def documents(count: int = 3_000, seed: int = 1, whole: bool = False) -> Any:
    """Topics in order, each document of a few heavy terms of its topic and many light ones."""
    rng = np.random.default_rng(seed)
    own = rng.integers(0, TERMS, (40, 25))
    topic = np.sort(rng.integers(0, 40, count))
    columns = np.concatenate(
        [own[topic][:, :12], (TERMS * rng.random((count, 28)) ** 2).astype(int)], axis=1
    )
    values = rng.integers(1, 4, columns.shape) if whole else rng.lognormal(-2, 1, columns.shape)
    values[:, :12] += 1
    starts = np.arange(0, columns.size + 1, columns.shape[1])
    matrix = sparse.csr_array(
        (np.asarray(values, np.float32).ravel(), columns.ravel(), starts), shape=(count, TERMS)
    )
    matrix.sum_duplicates()
    return matrix


def queries(held: Any, count: int, seed: int) -> Any:
    """Half of the terms of documents, with weights of their own."""
    rng = np.random.default_rng(seed)
    rows = held[rng.choice(held.shape[0], count, replace=False)]
    rows.data = rows.data * (rng.random(len(rows.data)) < 0.5) * rng.lognormal(0, 0.3, rows.nnz)
    rows.data = rows.data.astype(np.float32)
    rows.eliminate_zeros()
    return rows


def lost(found: Any, held: Any, asked: Any, k: int, alive: Any = None) -> float:
    """Return 1 less the recall: a row counts if its float64 score reaches the k-th best."""
    shares = []
    scores = (asked.astype(np.float64) @ held.astype(np.float64).T).toarray()
    if alive is not None:
        scores[:, ~alive] = 0
    for line, rows in zip(scores, found.rows, strict=True):
        best = np.sort(line)[::-1][:k]
        best = best[best > 0]
        hits = line[rows[rows >= 0]]
        shares.append((hits >= best[-1] * (1 - 3e-7)).sum() / len(best))
    return 1 - float(np.mean(shares))


def made(held: Any, **settings: Any) -> InvertedIndex:
    index = InvertedIndex(block_size=8, **settings)
    index.add(held)
    return index


@pytest.fixture(autouse=True)
def few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approximate, "FEWEST", 50)
    monkeypatch.setattr(approximate, "BETAS", (1.0, 0.7))


@pytest.fixture(scope="module")
def held() -> Any:
    return documents()


@pytest.mark.parametrize("source", ["queries", "documents"])
@pytest.mark.parametrize("loss", [0.05, 0.1])
def test_stays_near_the_loss_on_other_queries(held: Any, loss: float, source: str) -> None:
    index = made(held, loss=loss)
    note = index.measure_recall(queries(held, 150, 2) if source == "queries" else None)
    assert note is not None
    assert note.source == source
    assert not note.exact
    assert note.work < 0.95
    assert index.searches == "approximate"
    unseen = queries(held, 150, 3)
    for k in (10, 100):
        share = lost(index.search(unseen, k), held, unseen, k)
        assert share <= (1.5 if source == "queries" else 3) * loss + 0.005
    whole = index.search(unseen, 10, params={"alpha": 1, "beta": 1})
    np.testing.assert_array_equal(whole.scores, made(held).search(unseen, 10).scores)


def test_the_noted_recall_is_that_of_the_search(held: Any, tmp_path: Path) -> None:
    index, asked = made(held, loss=0.1), queries(held, 50, 4)
    note = index.measure_recall(asked)
    assert note is not None
    assert not note.exact
    for k, recall in ((10, note.at_10), (100, note.at_100), (1000, note.at_1000)):
        assert 1 - lost(index.search(asked, k), held, asked, k) == pytest.approx(recall, abs=1e-9)
    index.save(tmp_path / "saved")
    opened = open_index(tmp_path / "saved")
    assert isinstance(opened, InvertedIndex)
    assert opened.recall_note == note
    assert opened.settings.loss == 0.1
    for mine, theirs in zip(opened.search(asked, 20), index.search(asked, 20), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert opened.plan(asked[[0]], 10) == index.plan(asked[[0]], 10)


@pytest.mark.parametrize("loss", [None, 0, 0.0])
def test_without_a_loss_nothing_is_measured(held: Any, loss: Any, tmp_path: Path) -> None:
    index, asked = made(held[:500], loss=loss), queries(held, 20, 5)
    assert index.measure_recall(asked) is None
    index.save(tmp_path / "saved")
    assert index.recall_note is None
    assert index.searches == "exact"
    assert lost(index.search(asked, 10), held[:500], asked, 10) == 0


def test_ties_count_as_found() -> None:
    held = documents(2_000, whole=True)
    index, asked = made(held, loss=0.1), queries(held, 50, 6)
    asked.data[:] = 1
    note = index.measure_recall(asked)
    assert note is not None
    assert 1 - lost(index.search(asked, 10), held, asked, 10) == pytest.approx(note.at_10, abs=1e-9)


def test_too_few_documents_stay_exact(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, held: Any
) -> None:
    index = made(held[[7]], loss=0.05)
    with caplog.at_level(logging.WARNING, logger="sluice"):
        index.save(tmp_path / "one")
    said = "loss 0.05 needs 4 queries or documents to be measured, there are 1; search stays exact"
    assert said in caplog.text
    found = open_index(tmp_path / "one").search(held[[7]], 5)
    assert found.rows.tolist() == [[0, -1, -1, -1, -1]]
    empty = InvertedIndex(loss=0.05)
    empty.save(tmp_path / "none")
    assert open_index(tmp_path / "none").search(held[[7]], 2).rows.tolist() == [[-1, -1]]


def test_more_hits_than_documents(held: Any) -> None:
    index, asked = made(held[:300], loss=0.3), queries(held, 30, 7)
    assert index.measure_recall(asked) is not None
    found = index.search(asked, 500)
    assert lost(found, held[:300], asked, 500) <= 0.35
    assert (found.rows[:, 300:] == -1).all()


def test_too_few_queries_leave_it_to_documents(held: Any, caplog: pytest.LogCaptureFixture) -> None:
    index = made(held, loss=0.02)
    with caplog.at_level(logging.INFO, logger="sluice"):
        note = index.measure_recall(queries(held, 5, 8))
    assert note is not None
    assert note.source == "documents"
    assert note.queries == 50
    assert "loss 0.02 needs 10 queries, there are 5; documents serve instead" in caplog.text


def test_changes_are_noted_and_many_measured_again(held: Any, tmp_path: Path) -> None:
    index = made(held, loss=0.1)
    first = index.measure_recall(queries(held, 100, 9))
    assert first is not None
    assert not first.exact
    dead = np.arange(0, 3_000, 3)
    index.delete(dead)
    note = index.recall_note
    assert note is not None
    assert note.deleted == 1_000
    assert str(note).endswith("; 1,000 deleted since")
    unseen, alive = queries(held, 100, 10), np.ones(3_000, bool)
    alive[dead] = False
    found = index.search(unseen, 10)
    assert not np.isin(found.rows, dead).any()
    assert lost(found, held, unseen, 10, alive) <= 0.2
    index.save(tmp_path / "saved")
    assert index.recall_note == note
    for _ in range(2):
        index.add(held[:1_500])
    index.save(tmp_path / "saved")
    assert (note := index.recall_note) is not None
    assert (note.documents, note.added, note.source) == (5_000, 0, "documents")


def test_shards_leave_out_what_none_of_them_keeps(held: Any) -> None:
    parts = [made(held[:1_500], loss=0.1), made(held[1_500:], loss=0.1)]
    rows = [np.arange(1_500), np.arange(1_500, 3_000)]
    notes = [part.measure_recall(queries(held, 100, 11)) for part in parts]
    whole = InvertedIndex._together(parts, rows)
    assert whole is not None
    assert all(notes)
    note = whole.recall_note
    assert note is not None
    assert note.alpha == max(each.alpha for each in notes if each)
    assert note.beta == max(each.beta for each in notes if each)
    parts[0].notes.clear()
    other = InvertedIndex._together(parts, rows)
    assert other is not None
    assert other.searches == "exact"


def test_what_saves_nothing_is_not_chosen(held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approximate, "WORTH", 0.0)
    index = made(held, loss=0.1)
    note = index.measure_recall(queries(held, 100, 12))
    assert note is not None
    assert note.exact
    assert note.work == note.at_10 == 1
    assert str(note).startswith("exact: no setting within the loss 0.1 saves")
    assert index.searches == "exact"


@pytest.mark.parametrize("loss", [-0.1, 1, 1.5, float("nan")])
def test_wrong_losses(loss: float) -> None:
    with pytest.raises(ConfigError, match=r"loss: .*; expected a number, 0 or more and below 1"):
        InvertedIndex(loss=loss)
