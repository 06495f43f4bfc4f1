"""The graph and the walk through it, against brute force."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forging import forge
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.q_net import QNetShape, q_net_scores
from sluice.indexing import GraphIndex, Hits, open_index
from sluice.indexing.hits import best_first

DIM = 6
SHAPE = QNetShape(DIM, 2)
Table = NDArray[np.float32]


def drawn(count: int, seed: int = 0, width: int = DIM) -> Table:
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


DOCUMENTS, QUERIES = drawn(300), drawn(4, 1, SHAPE.width)


def brute(queries: Table, documents: Table, k: int, allowed: Any = None) -> Hits:
    lines = []
    for scores in q_net_scores(queries, documents):
        rows = np.arange(len(documents)) if allowed is None else np.flatnonzero(allowed)
        lines.append(best_first(rows.astype(np.int64), scores[rows], k))
    return Hits(np.stack([rows for rows, _ in lines]), np.stack([best for _, best in lines]))


def nearest(documents: Table, count: int) -> NDArray[np.int64]:
    wide = documents.astype(np.float64)
    distances = ((wide[:, None] - wide[None]) ** 2).sum(axis=2)
    np.fill_diagonal(distances, np.inf)
    return np.argsort(distances, axis=1, kind="stable")[:, :count]


def same(found: Hits, expected: Hits) -> None:
    assert (found.rows == expected.rows).all()
    assert (found.scores == expected.scores).all()


def made(mode: str = "graph", **options: Any) -> GraphIndex:
    index = GraphIndex(mode, **options)
    for part in np.array_split(DOCUMENTS, 3):
        index.add(part)
    return index


def test_a_long_exact_build_says_how_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sluice.indexing.own.graph.neighbours.SEARCHED", 100)
    monkeypatch.setattr("sluice.indexing.own.graph.neighbours.LOGGED", 301)
    made().link()
    assert not caplog.messages
    monkeypatch.setattr("sluice.indexing.own.graph.neighbours.LOGGED", 300)
    index = made()
    index.link()
    (message,) = caplog.messages
    assert message.startswith("graph: 300 documents are each compared with all 300, which takes")
    assert "build: faiss" in message
    assert (index._graph.links == nearest(DOCUMENTS, index.neighbours)).all()
    caplog.clear()
    made(build="faiss").link()
    assert not caplog.messages


@pytest.mark.parametrize("k", [1, 10, 300])
def test_exhaustive_search_is_brute_force(k: int) -> None:
    same(made("exhaustive").search(QUERIES, k), brute(QUERIES, DOCUMENTS, k))


@pytest.mark.parametrize("hidden", [0, 1, 2])
def test_copies_of_a_document_tie_by_row(hidden: int) -> None:
    shape = QNetShape(DIM, hidden, product=True)
    index = GraphIndex("exhaustive")
    index.add(np.tile(DOCUMENTS[:5], (200, 1)))
    hits = index.search(drawn(1, 2, shape.width), 200)
    assert len(set(hits.scores[0].tolist())) == 1
    assert (np.diff(hits.rows[0]) == 5).all()


def test_the_order_of_documents_does_not_matter() -> None:
    order = np.random.default_rng(3).permutation(len(DOCUMENTS))
    index = GraphIndex("exhaustive")
    index.add(DOCUMENTS[order])
    found, expected = index.search(QUERIES, 20), made("exhaustive").search(QUERIES, 20)
    assert (order[found.rows] == expected.rows).all()
    assert (found.scores == expected.scores).all()


@pytest.mark.parametrize(
    "settings",
    [
        {"entries": 300},  # all documents are entry points
        {"candidates": 300, "iterations": 300, "entries": 1, "neighbours": 12},
    ],
)
def test_a_walk_that_reaches_everything_is_exhaustive(settings: dict[str, Any]) -> None:
    index = made(**settings)
    found = index.search_counted(QUERIES, 300)
    same(found.hits, brute(QUERIES, DOCUMENTS, 300))
    assert (found.visited == 300).all()  # each document once


def test_a_walk_finds_most_with_few_visits() -> None:
    """Neighbours score alike where documents lie on a line."""
    documents = np.zeros((2_000, DIM), np.float32)
    documents[:, 0] = np.random.default_rng(4).permutation(2_000) / 1_000
    index = GraphIndex(entries=20, neighbours=8, candidates=5, iterations=100)
    index.add(documents)
    query = np.zeros((1, DIM), np.float32)
    query[0, 0] = 1
    found = index.search_counted(query, 10)
    assert (np.sort(documents[found.hits.rows[0], 0]) > 1.98).all()
    assert found.visited[0] < 1_000
    note = index.measure_recall(np.repeat(query, 3, axis=0))
    assert note is not None
    assert (note.at_10, note.queries, note.documents) == (1.0, 3, 2_000)
    assert 10 <= note.visited < 2_000
    assert index.recall_note == note
    index.add(documents[:2])
    index.delete([5])
    assert str(index.recall_note).endswith("2 added since; 1 deleted since")


def test_a_note_counts_what_is_missed() -> None:
    """One entry and no step beyond its neighbours: the recall is what a count says."""
    index = made(entries=1, iterations=1, candidates=1, neighbours=30)
    found = index.search(QUERIES, 10)
    exact = brute(QUERIES, DOCUMENTS, 10)
    shares = [
        len(set(a.tolist()) & set(b.tolist())) / 10
        for a, b in zip(found.rows, exact.rows, strict=True)
    ]
    note = index.measure_recall(QUERIES)
    assert note is not None
    assert 0 < np.mean(shares) < 1
    assert note.at_10 == pytest.approx(np.mean(shares))


def test_a_budget_is_kept() -> None:
    for budget in (15, 40, 150):
        found = made(entries=10, budget=budget).search_counted(QUERIES, 10, early_stop=False)
        assert (found.visited == budget).all()
    found = made(entries=10, budget=5).search_counted(QUERIES, 10)
    assert (found.hits.rows >= 0).all()  # never fewer than the hits that were asked for
    assert (found.visited == 10).all()


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_a_budget_is_kept_where_few_documents_are_left(share: float) -> None:
    """A walk would begin with more documents than there are, and the budget is below both."""
    keep = np.arange(300) < share * 300
    index = made(entries=400, budget=40)
    found = index.search_counted(QUERIES, 5, keep=keep)
    assert (found.visited <= 40 + 5).all()
    assert (found.hits.rows >= 0).all()
    same(
        index.search(QUERIES, 5, keep=keep, params={"budget": 300}),
        brute(QUERIES, DOCUMENTS, 5, keep),
    )


@pytest.mark.parametrize(
    ("documents", "entries", "candidates"),
    [(40, 64, 10), (5_183, 259, 10), (20_000, 1_000, 40), (8_800_000, 10_000, 50)],
)
def test_walks_grow_with_the_documents(documents: int, entries: int, candidates: int) -> None:
    settings = GraphIndex().settings
    assert settings.entry_count(documents) == entries
    assert settings.candidate_count(documents) == candidates
    own = GraphIndex(entries=3, candidates=2).settings
    assert (own.entry_count(documents), own.candidate_count(documents)) == (3, 2)


def test_queries_do_not_disturb_one_another() -> None:
    index = made(entries=20, neighbours=5, candidates=3)
    together = index.search(QUERIES, 7)
    for place in range(4):
        alone = index.search(QUERIES[place : place + 1], 7)
        same(alone, Hits(together.rows[place : place + 1], together.scores[place : place + 1]))


@pytest.mark.parametrize("mode", ["graph", "exhaustive"])
@pytest.mark.parametrize("share", [0.02, 0.5])
def test_filters_and_tombstones(mode: str, share: float) -> None:
    keep = np.random.default_rng(5).random(300) < share
    keep[:3] = True
    index = made(mode)
    index.delete([0, 7])
    allowed = keep & ~np.isin(np.arange(300), [0, 7])
    most = int(allowed.sum())
    found = index.search(QUERIES, 5, keep=keep)
    assert allowed[found.rows[found.rows >= 0]].all()
    if mode == "exhaustive" or most <= 64:  # a filter for few is answered exhaustively
        same(found, brute(QUERIES, DOCUMENTS, min(5, most), allowed).padded(5))
    everything = index.search(QUERIES, 300, keep=keep)
    assert ((everything.rows >= 0).sum(axis=1) == most).all()


def test_the_graph_is_that_of_brute_force_through_changes() -> None:
    index = made(neighbours=7)
    index.link()
    assert (index._graph.links == nearest(DOCUMENTS, 7)).all()
    more = np.concatenate([drawn(30, 6), DOCUMENTS[:4]])  # copies too
    index.add(more)
    index.link()
    both = np.concatenate([DOCUMENTS, more])
    assert (index._graph.links == nearest(both, 7)).all()
    gone = np.random.default_rng(7).random(len(both)) < 0.3
    index.delete(np.flatnonzero(gone))
    index.compact()
    assert (index._graph.links == nearest(both[~gone], 7)).all()
    index.delete(np.arange(len(index) - 3))
    index.compact()
    links = index._graph.links
    assert (np.sort(links, axis=1)[:, :5] == -1).all()
    assert ((links >= 0).sum(axis=1) == 2).all()


def test_any_function_searches() -> None:
    """Such as a pair head over [u, v, u v], or a reader of the rows' texts."""
    index = made(entries=300)
    seen: list[int] = []

    def score(rows: NDArray[np.int64], vectors: Table) -> Table:
        assert (vectors == DOCUMENTS[rows]).all()
        seen.extend(rows.tolist())
        return -np.abs(vectors).sum(axis=1)

    found = index.search_by([score], 3)
    expected = np.argsort(np.abs(DOCUMENTS).sum(axis=1), kind="stable")[:3]
    assert (found.hits.rows[0] == expected).all()
    assert sorted(seen) == list(range(300))
    with pytest.raises(DataError, match=r"scorer: returned shape \(200, 6\) for 200 documents"):
        index.search_by([lambda rows, vectors: vectors], 3)


def test_faiss_builds_a_graph_nearly_as_good() -> None:
    index = made(neighbours=7, build="faiss")
    index.link()
    links = index._graph.links
    own = [len(set(a) & set(b)) for a, b in zip(links, nearest(DOCUMENTS, 7), strict=True)]
    assert np.mean(own) > 6.5
    assert (links != np.arange(300)[:, None]).all()


def test_saved_and_opened(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "entries": 20, "neighbours": 5, "candidates": 3, "iterations": 4, "budget": 90,
        "early_stop": False, "seed": 5,
    }  # fmt: skip
    index = made(**settings)
    index.measure_recall(QUERIES)
    before = index.search(QUERIES, 7)
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    assert isinstance(opened, GraphIndex)
    same(opened.search(QUERIES, 7), before)
    assert (opened.settings, opened.recall_note) == (index.settings, index.recall_note)
    assert (opened.neighbours, opened.seed, opened.mode) == (5, 5, "graph")
    empty = opened.empty()
    assert (len(empty), empty.settings, empty.neighbours) == (0, index.settings, 5)


def test_a_graph_of_another_corpus_is_refused(tmp_path: Path) -> None:
    made(neighbours=5).save(tmp_path / "one")
    other = GraphIndex(neighbours=5)
    other.add(drawn(300, 9))
    other.save(tmp_path / "other")
    (source,) = (tmp_path / "other").rglob("neighbours.npy")
    (target,) = (tmp_path / "one").rglob("neighbours.npy")
    target.unlink()
    shutil.copyfile(source, target)
    forge(tmp_path / "one", target)
    with pytest.raises(IndexFormatError, match="the graph of other vectors than those beside it"):
        open_index(tmp_path / "one")


@pytest.mark.parametrize("row", [300, -2])
def test_a_graph_that_was_edited_is_refused(tmp_path: Path, row: int) -> None:
    made(neighbours=5).save(tmp_path / "one")
    (target,) = (tmp_path / "one").rglob("neighbours.npy")
    links = np.load(target)
    links[8:] = row
    target.unlink()
    np.save(target, links)
    forge(tmp_path / "one", target)
    opened = open_index(tmp_path / "one")
    opened.delete([0])
    for use in (lambda: opened.search(QUERIES, 5), opened.compact):
        with pytest.raises(IndexFormatError, match="names rows that the index does not have"):
            use()
    opened = open_index(tmp_path / "one")
    opened.add(DOCUMENTS[:3])
    with pytest.raises(IndexFormatError, match="names rows that the index does not have"):
        opened.search(QUERIES, 5)


@pytest.mark.parametrize(
    ("entry", "value"), [("neighbours", -1), ("build", "guess"), ("mode", "walk"), ("search", 3)]
)
def test_edited_facts_are_refused(tmp_path: Path, entry: str, value: Any) -> None:
    made().save(tmp_path / "one")
    for path in list((tmp_path / "one").rglob("manifest.json")):
        facts = json.loads(path.read_text())
        facts["index"][entry] = value
        path.unlink()
        path.write_text(json.dumps(facts))
    with pytest.raises(IndexFormatError):
        open_index(tmp_path / "one")


def test_what_is_wrong_is_refused() -> None:
    index = made()
    with pytest.raises(DataError, match="queries: 50 values, and no q-net for documents of 6"):
        index.search(drawn(1, 0, 50), 3)
    for options, message in (
        ({"mode": "walk"}, "mode is 'walk', expected graph or exhaustive"),
        ({"mode": "exhaustive", "neighbours": 5}, "neighbours has no effect with mode: exhaustive"),
        ({"mode": "exhaustive", "budget": 5}, "budget has no effect with mode: exhaustive"),
        ({"neighbours": 0}, "neighbours is 0"),
        ({"entries": 0}, "entries is 0"),
        ({"early_stop": 1}, "early_stop is 1, expected true or false"),
        ({"build": "fais"}, "expected exact or faiss; did you mean 'faiss'"),
    ):
        with pytest.raises(ConfigError, match=message):
            GraphIndex(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="budget is -1"):
        index.search(QUERIES, 3, params={"budget": -1})
    with pytest.raises(ConfigError, match="budget has no effect with mode: exhaustive"):
        index.check_params({"mode": "exhaustive", "budget": 5})
    with pytest.raises(ConfigError, match="unknown search parameter 'depth'"):
        index.search(QUERIES, 3, params={"depth": 4})
    with pytest.raises(ConfigError, match="takes none"):
        made("exhaustive").search(QUERIES, 3, params={"budget": 4})
    with (
        np.errstate(all="ignore"),
        pytest.raises(DataError, match="a score is not a finite number"),
    ):
        index.search(np.full((1, SHAPE.width), 1e38, np.float32), 3)
