"""The index of documents of several vectors, against brute force."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing import (
    FaissIndex,
    FlatIndex,
    GraphIndex,
    InvertedIndex,
    PassageIndex,
    PseudoQueryIndex,
    TokenIndex,
    open_index,
)
from sluice.indexing.own import pseudo_queries

DIM = 6
Table = NDArray[np.float32]


def drawn(count: int = 300, seed: int = 0) -> list[Table]:
    """Documents of none to six vectors, some alike."""
    chance = np.random.default_rng(seed)
    made = [
        chance.normal(size=(int(chance.integers(0, 7)), DIM)).astype(np.float32)
        for _ in range(count)
    ]
    made[20] = made[7] = np.ones((2, DIM), np.float32)
    return made


DOCUMENTS = drawn()
QUERIES = 3 * np.random.default_rng(9).normal(size=(5, DIM)).astype(np.float32)


def score(query: Table, document: Table) -> float:
    """The score as the paper has it, in Python's own arithmetic."""
    products = [sum(a * b for a, b in zip(query.tolist(), each.tolist(), strict=True))
                for each in document]  # fmt: skip
    weights = [math.exp(each - max(products)) for each in products]
    return sum(w * p for w, p in zip(weights, products, strict=True)) / sum(weights)


def ranked(query: Table, documents: list[Table], rows: list[int]) -> list[tuple[int, float]]:
    """Rows with vectors, best first, ties by row."""
    scored = [(row, score(query, documents[row])) for row in rows if len(documents[row])]
    return sorted(scored, key=lambda each: (-np.float32(round(each[1], 5)), each[0]))


def added(index: PseudoQueryIndex, documents: list[Table] = DOCUMENTS) -> PseudoQueryIndex:
    for start in range(0, len(documents), 100):
        index.add(TokenVectors.of(documents[start : start + 100], DIM))
    return index


def agrees(hits: Any, documents: list[Table], rows: list[int], k: int) -> None:
    for place, query in enumerate(QUERIES):
        expected = ranked(query, documents, rows)[:k]
        count = len(expected)
        assert hits.rows[place, :count].tolist() == [row for row, _ in expected]
        assert (hits.rows[place, count:] == -1).all()
        np.testing.assert_allclose(
            hits.scores[place, :count], [value for _, value in expected], rtol=2e-5, atol=1e-5
        )


@pytest.mark.parametrize("k", [1, 10, 300, 400])
@pytest.mark.parametrize("inner", [None, {"type": "tokens", "store": "float32"}], ids=str)
def test_exhaustive_search_is_brute_force(inner: Any, k: int) -> None:
    index = added(PseudoQueryIndex(inner, mode="exhaustive"))
    agrees(index.search(QUERIES, k), DOCUMENTS, list(range(300)), k)


INNERS: dict[str, Any] = {
    "flat": None, "faiss": lambda: FaissIndex("Flat"), "hnsw": lambda: FaissIndex("HNSW32"),
    "graph": lambda: GraphIndex(neighbours=64, entries=200),
    "tokens": lambda: TokenIndex("float32"), "spec": lambda: {"type": "tokens", "store": "float32"},
}  # fmt: skip


@pytest.mark.parametrize("name", INNERS)
def test_two_steps_score_the_documents_of_the_nearest_vectors(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Candidates are those of the largest single product; they are ranked by attention."""
    monkeypatch.setattr(pseudo_queries, "FEWEST", 1)
    make = INNERS[name]
    index = added(PseudoQueryIndex(None if make is None else make(), factor=4))
    for k in (1, 5, 20):
        hits = index.search(QUERIES, k)
        for place, query in enumerate(QUERIES):
            nearest = {row: float((each @ query).max())
                       for row, each in enumerate(DOCUMENTS) if len(each)}  # fmt: skip
            candidates = sorted(nearest, key=lambda row: (-nearest[row], row))[: 4 * k]
            expected = ranked(query, DOCUMENTS, candidates)[:k]
            assert hits.rows[place].tolist() == [row for row, _ in expected]
            for row, value in zip(hits.rows[place], hits.scores[place], strict=True):
                assert value <= nearest[row] + 1e-5
    exhaustive = index.search(QUERIES, 20, params={"mode": "exhaustive"})
    agrees(exhaustive, DOCUMENTS, list(range(300)), 20)
    np.testing.assert_array_equal(
        index.search(QUERIES, 20, params={"factor": 15}).rows, exhaustive.rows
    )


def test_a_rounded_store_scores_what_it_holds() -> None:
    index = added(PseudoQueryIndex({"type": "tokens", "store": "int8"}))
    stored = list(index.documents(np.arange(300)))
    assert any((one != other).any() for one, other in zip(stored, DOCUMENTS, strict=True))
    agrees(index.search(QUERIES, 10), stored, list(range(300)), 10)
    assert index.size_bytes < added(PseudoQueryIndex()).size_bytes


@pytest.mark.parametrize("inner", [None, {"type": "tokens", "store": "float32"}], ids=str)
def test_filters_deletions_and_a_saved_folder(inner: Any, tmp_path: Path) -> None:
    index = added(PseudoQueryIndex(inner, factor=2))
    keep = np.arange(0, 300, 2)
    agrees(index.search(QUERIES, 100, keep=keep), DOCUMENTS, keep.tolist(), 100)
    gone = [3, 4, 20, 299]
    index.delete(gone)
    left = [row for row in range(300) if row not in gone]
    agrees(index.search(QUERIES, 300), DOCUMENTS, left, 300)
    index.save(tmp_path / "i")
    opened = open_index(tmp_path / "i")
    assert isinstance(opened, PseudoQueryIndex)
    assert (opened.mode, opened.factor, len(opened)) == ("two_step", 2, 296)
    for one in (index, opened):
        moved = one.compact()
        assert moved[left].tolist() == list(range(296))
        documents = [DOCUMENTS[row] for row in left]
        agrees(one.search(QUERIES, 300), documents, list(range(296)), 300)
    if inner:
        again = opened.empty()
        assert (again.rows, again.factor, type(again.held)) == (0, 2, TokenIndex)
    np.testing.assert_array_equal(
        index.documents([5, 0]).values, np.concatenate([documents[5], documents[0]])
    )


def test_no_documents_one_and_none_with_vectors() -> None:
    index = PseudoQueryIndex()
    assert (index.search(QUERIES, 3).rows == -1).all()
    index.add(TokenVectors.of([], DIM))
    index.add(TokenVectors.of([DOCUMENTS[0][:0]], DIM))
    assert (index.search(QUERIES, 3).rows == -1).all()
    index.add(TokenVectors.of([np.ones((1, DIM), np.float32)], DIM))
    hits = index.search(QUERIES, 3)
    assert hits.rows.tolist() == [[1, -1, -1]] * 5
    np.testing.assert_allclose(hits.scores[:, 0], QUERIES.sum(axis=1), rtol=1e-5)
    assert index.search(QUERIES[:0], 3).rows.shape == (0, 3)


def test_a_trained_inner_index_and_its_parameters() -> None:
    index = PseudoQueryIndex({"type": "faiss", "factory": "IVF8,Flat"})
    assert index.training_rows(300)
    index.train(TokenVectors.of(DOCUMENTS, DIM))
    added(index)
    hits = index.search(QUERIES, 10, params={"nprobe": 8})
    agrees(hits, DOCUMENTS, list(range(300)), 10)
    with pytest.raises(ConfigError, match="unknown search parameter 'nprob'"):
        index.search(QUERIES, 10, params={"nprob": 8})
    gathered = PseudoQueryIndex({"type": "tokens", "mode": "gather", "candidates": 50})
    gathered.check_params({"mode": "two_step", "inner_mode": "exact", "candidates": 20})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: PseudoQueryIndex(FlatIndex("cosine")), "inner.metric: cosine"),
        (lambda: PseudoQueryIndex(InvertedIndex()), "inner: InvertedIndex has no metric"),
        (lambda: PseudoQueryIndex(PseudoQueryIndex()), "several vectors a document by itself"),
        (lambda: PseudoQueryIndex(PassageIndex(FlatIndex())), "several vectors a document"),
        (lambda: PseudoQueryIndex({"type": "flatt"}), "inner.type: unknown type 'flatt'"),
        (lambda: PseudoQueryIndex(mode="exact"), "mode is 'exact', expected two_step or"),
        (lambda: PseudoQueryIndex(mode="exhaustive", factor=3), "factor has no effect"),
        (lambda: PseudoQueryIndex(factor=0), "factor"),
        (lambda: PseudoQueryIndex().check_params({"mode": "exhaustive", "factor": 2}), "no effect"),
        (lambda: PseudoQueryIndex().check_params({"factor": 1.5}), "factor"),
        (lambda: PseudoQueryIndex(mode="exhaustive").check_params({"factor": 2}), "takes none"),
    ],
)
def test_settings_that_cannot_be(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_other_vectors_and_damage_are_refused(tmp_path: Path) -> None:
    index = added(PseudoQueryIndex())
    with pytest.raises(DataError, match="expected TokenVectors: several vectors for each"):
        index.add([QUERIES])
    with pytest.raises(DataError, match="queries: 4 dimensions, this index holds 6"):
        index.search(QUERIES[:, :4], 3)
    with pytest.raises(DataError, match="documents: 4 dimensions"):
        index.add(TokenVectors.of([QUERIES[:, :4]], 4))
    assert index.rows == 300
    index.save(tmp_path / "i")
    manifest = tmp_path / "i" / "manifest.json"
    whole = json.loads(manifest.read_text())
    for changes in ({"mode": "three_step"}, {"factor": 0}, {"inner": {"type": "flat"}}):
        manifest.write_text(json.dumps({**whole, "index": {**whole["index"], **changes}}))
        with pytest.raises(IndexFormatError):
            open_index(tmp_path / "i")
    manifest.write_text(json.dumps(whole))
    assert len(open_index(tmp_path / "i")) == 300
