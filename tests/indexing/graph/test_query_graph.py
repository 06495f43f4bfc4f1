"""The graph linked by training queries, against plain loops and brute force."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forging import forge
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.indexing import FunnelIndex, GraphIndex, QueryGraphIndex, open_index
from sluice.indexing.own.graph.query_graph import both_ways, found_together, spread
from sluice.indexing.storage.rows import DenseRows

DIM = 6
Table = NDArray[np.float32]


def drawn(count: int, seed: int = 0) -> Table:
    return np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)


DOCUMENTS, TRAINING, QUERIES = drawn(150), drawn(40, 1) + 1, drawn(6, 2) + 1
SMALL: dict[str, Any] = {"neighbours": 3, "depth": 5, "entries": 4, "candidates": 6}


def made(documents: Table = DOCUMENTS, **options: Any) -> QueryGraphIndex:
    index = QueryGraphIndex(**{**SMALL, **options})
    index.learn(TRAINING)
    index.add(documents)
    return index


def rows_of(documents: Table) -> DenseRows:
    rows = DenseRows()
    rows.append(documents)
    return rows


def brute(documents: Table, queries: Table, k: int) -> NDArray[np.int64]:
    scores = queries.astype(np.float64) @ documents.astype(np.float64).T
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize(
    "lists",
    [
        [[4, 1, 0], [1, 4, -1], [2, 1, 4]],
        # 5 is twice at ranks 1 and 6 with 0, 1 once at 1 and 2: weights 1/(ab) put 1 first
        [[0, 1, 2, 3, 4, 5], [0, 4, 2, 3, -1, 5]],
    ],
)
def test_documents_that_queries_find_together(lists: list[list[int]]) -> None:
    found = np.array(lists, np.int32)
    weights: dict[tuple[int, int], float] = {}
    for line in found:
        ranked = [(row, place + 1) for place, row in enumerate(line.tolist()) if row >= 0]
        for (one, a), (other, b) in permutations(ranked, 2):
            weights[one, other] = weights.get((one, other), 0.0) + 1 / np.sqrt(a * b)
    for most in (1, 2, 9):
        together = found_together(found, 6, most)
        for row in range(6):
            others = [(-weights[pair], pair[1]) for pair in weights if pair[0] == row]
            expected = [other for _, other in sorted(others)][:most]
            assert together[row].tolist() == expected + [-1] * (most - len(expected))


def test_links_are_spread_and_made_both_ways() -> None:
    rng = np.random.default_rng(5)
    documents = rng.normal(size=(40, 2)).astype(np.float32)
    candidates = rng.integers(-1, 40, (40, 12)).astype(np.int32)
    candidates[candidates == np.arange(40)[:, None]] = -1
    exact = documents.astype(np.float64)

    def gap(a: int, b: int) -> float:
        return float(((exact[a] - exact[b]) ** 2).sum())

    links = spread(candidates, rows_of(documents), 4)
    passed = 0
    for row, line in enumerate(candidates.tolist()):
        near = sorted({one for one in line if one >= 0}, key=lambda one: (gap(row, one), one))
        taken: list[int] = []
        for one in near:
            if len(taken) < 4 and all(gap(one, other) >= gap(row, one) for other in taken):
                taken.append(one)
        passed += len(taken) < min(4, len(near))
        taken += [one for one in near if one not in taken][: 4 - len(taken)]
        assert links[row].tolist() == taken + [-1] * (4 - len(taken))
    assert passed > 10  # where those passed over take places
    joined = both_ways(links, rows_of(documents), 7)
    reached = set(links.ravel().tolist())
    assert len(reached) < 41  # -1 is one of them
    for row in range(40):
        own = [one for one in links[row].tolist() if one >= 0]
        to = [one for one in range(40) if row in links[one] and one not in own]
        to = sorted(to, key=lambda one: (one in reached, gap(row, one), one))[: 7 - len(own)]
        assert [one for one in joined[row].tolist() if one >= 0] == own + to


def test_a_walk_is_best_first() -> None:
    index = made()
    index.link()
    links, order = index._links, index._entries()
    assert set(order[: len(links.pivots())]) == set(brute(DOCUMENTS, TRAINING, 1)[:, 0])
    scores = QUERIES.astype(np.float64) @ DOCUMENTS.astype(np.float64).T
    for place, width in ((0, 6), (1, 20), (2, 150)):
        line = scores[place]
        seen, expanded = set(order[:4].tolist()), set[int]()
        while True:
            best = sorted(seen, key=lambda row: -line[row])[:width]
            left = [row for row in best if row not in expanded]
            if not left:
                break
            expanded.add(left[0])
            seen.update(links.linked(np.array(left[:1])).tolist())
        walked = index.search_counted(QUERIES[place : place + 1], 5, candidates=width)
        assert walked.visited[0] == len(seen)
        assert walked.hits.rows[0].tolist() == sorted(seen, key=lambda row: -line[row])[:5]
    whole = index.search_counted(QUERIES, 7, candidates=150)
    assert (whole.visited == 150).all()  # connected, so that every document is scored
    assert (whole.hits.rows == brute(DOCUMENTS, QUERIES, 7)).all()
    few = index.search_counted(QUERIES, 5, budget=20, candidates=150)
    assert (few.visited == 20).all()


def test_changes_leave_what_a_new_build_would_make(tmp_path: Path) -> None:
    index = made(DOCUMENTS[:60])
    index.search(QUERIES, 3)
    index.add(DOCUMENTS[60:100])
    index.search(QUERIES, 3)
    index.add(DOCUMENTS[100:])
    index.link()
    expected = made()
    expected.link()
    assert (index._links.found == brute(DOCUMENTS, TRAINING, 5)).all()
    assert (index._links.joined == expected._links.joined).all()
    gone = np.arange(0, 150, 3)
    index.delete(gone)
    hits = index.search(QUERIES, 150)
    assert (np.sort(hits.rows, axis=1)[:, 50:] == np.setdiff1d(np.arange(150), gone)).all()
    index.compact()
    left = np.delete(DOCUMENTS, gone, axis=0)
    again = made(left)
    again.link()
    assert (index._links.found == brute(left, TRAINING, 5)).all()
    assert (index._links.joined == again._links.joined).all()
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    assert isinstance(opened, QueryGraphIndex)
    assert (opened.search(QUERIES, 9).rows == again.search(QUERIES, 9).rows).all()
    opened.add(DOCUMENTS[:5])
    index.add(DOCUMENTS[:5])
    assert (opened.search(QUERIES, 9).rows == index.search(QUERIES, 9).rows).all()
    assert opened.settings == index.settings
    assert opened.size_bytes == index.size_bytes


def test_filters_few_documents_and_large_k() -> None:
    index = made()
    keep = np.arange(0, 150, 7)
    hits = index.search(QUERIES, 30, keep=keep)
    assert (np.sort(hits.rows[:, :22], axis=1) == keep).all()
    assert (hits.rows[:, 22:] == -1).all()
    assert (np.sort(index.search(QUERIES, 500).rows[:, :150]) == np.arange(150)).all()
    empty = made(DOCUMENTS[:0])
    assert (empty.search(QUERIES, 3).rows == -1).all()
    empty.add(DOCUMENTS[:1])
    assert empty.search(QUERIES, 3).rows[:, 0].tolist() == [0] * 6


@pytest.mark.thorough
def test_training_queries_help_queries_of_their_kind_and_cost_others_nothing() -> None:
    """Recall at as many documents scored, for queries unlike documents and queries like them."""
    rng = np.random.default_rng(0)
    maps, gap = rng.normal(size=(2, 12, 24)), 3 * rng.normal(size=24)

    def vectors(count: int, shift: float) -> Table:
        hidden = rng.normal(size=(count, 12))
        made = hidden @ ((1 - shift) * maps[0] + shift * maps[1]) + shift * gap
        made += rng.normal(size=made.shape)
        return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)

    documents = vectors(1_500, 0.0)
    for shift, better in ((0.6, 0.01), (0.0, -0.01)):
        training, queries = vectors(800, shift), vectors(60, shift)
        best = brute(documents, queries, 10)
        index = QueryGraphIndex(neighbours=12, candidates=20)
        index.learn(training)
        index.add(documents)
        walked = index.search_counted(queries, 10)
        budget = int(walked.visited.mean()) + 1
        nearest = GraphIndex(neighbours=24, entries=16, candidates=5, early_stop=False)
        nearest.add(documents)
        other = nearest.search_counted(queries, 10, budget=budget)
        shares = [
            np.mean([len({*a} & {*b}) / 10 for a, b in zip(hits.rows, best, strict=True)])
            for hits in (walked.hits, other.hits)
        ]
        assert shares[0] > 0.9
        assert shares[0] - shares[1] > better


def test_without_training_queries_the_nearest_alone_are_linked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    index = QueryGraphIndex(**SMALL)
    index.add(DOCUMENTS)
    found = index.search(QUERIES, 5, params={"candidates": 150}).rows
    assert (found == brute(DOCUMENTS, QUERIES, 5)).all()
    index.search(QUERIES, 5)
    (message,) = caplog.messages
    assert "no training queries were given: 150 documents are linked with" in message
    index.delete([0])
    index.compact()
    assert len(index.search(QUERIES, 5).rows) == 6


def test_learning_is_refused_late_and_of_nothing() -> None:
    index = QueryGraphIndex(**SMALL)
    with pytest.raises(DataError, match="training queries: none"):
        index.learn(np.zeros((0, DIM), np.float32))
    index.add(DOCUMENTS)
    with pytest.raises(DataError, match="training queries"):
        index.learn(TRAINING[:, :3])
    index.learn(TRAINING)
    index.search(QUERIES, 3)
    with pytest.raises(ConfigError, match="its documents are linked already"):
        index.learn(TRAINING)
    with pytest.raises(ConfigError, match="unknown search parameter 'iterations'"):
        index.search(QUERIES, 3, params={"iterations": 3})
    for wrong in ({"depth": 1}, {"neighbours": 0}, {"entries": 0}, {"build": "hnsw"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            QueryGraphIndex(**wrong)  # type: ignore[arg-type]
    assert len(index.empty()._links.queries) == len(TRAINING)


@pytest.mark.parametrize("name", ["links.npy", "found.npy"])
def test_an_edited_folder_is_refused(name: str, tmp_path: Path) -> None:
    index = made()
    index.save(tmp_path / "index")
    (file,) = (tmp_path / "index").rglob(name)
    np.save(file, np.full_like(np.load(file), 150))
    forge(tmp_path / "index", file)
    with pytest.raises(IndexFormatError, match="names rows that the index does not have"):
        open_index(tmp_path / "index").search(QUERIES, 3)


def test_training_queries_of_another_width_are_refused_when_opened(tmp_path: Path) -> None:
    made().save(tmp_path / "index")
    (file,) = (tmp_path / "index").rglob("queries.npy")
    np.save(file, np.load(file)[:, :3])
    for manifest in (tmp_path / "index").rglob("manifest.json"):
        facts = json.loads(manifest.read_text())
        facts["index"]["query_width"] = 3
        manifest.write_text(json.dumps(facts))
    forge(tmp_path / "index", file)
    with pytest.raises(IndexFormatError, match="queries of 3 dimensions, and documents of 6"):
        open_index(tmp_path / "index")


def test_inside_another_index_it_would_learn_nothing() -> None:
    with pytest.raises(ConfigError, match="first: query_graph learns from training queries"):
        FunnelIndex(3, first={"type": "query_graph"})
