"""MaxP over passages: against brute force, over every kind of inner index."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.indexing import (
    AugmentedIndex,
    FaissIndex,
    FlatIndex,
    Hits,
    Index,
    InvertedIndex,
    open_index,
)
from sluice.indexing.wrappers.passages import PassageIndex

QUICK = settings(derandomize=True, deadline=None, max_examples=25)
WIDTH = 6
Table = NDArray[np.float32]


def table(rng: np.random.Generator, count: int) -> Table:
    """Small whole numbers, not negative: exact sums, many ties, and documents in common."""
    return rng.integers(0, 3, (count, WIDTH)).astype(np.float32) * (
        rng.random((count, WIDTH)) < 0.4
    )


def as_sparse(vectors: Table) -> Any:
    return sparse.csr_array(vectors)


def as_dense(vectors: Table) -> Any:
    return vectors


EXACT: list[tuple[Callable[[], Index], Callable[[Table], Any]]] = [
    (FlatIndex, as_dense),
    (InvertedIndex, as_sparse),
]


def best_of(
    queries: Table,
    passages: Table,
    counts: NDArray[np.int64],
    k: int,
    live: NDArray[np.bool_],
    shared: bool,
) -> Hits:
    """Brute force in float64: the best passage of each document, ties by document row."""
    hits = Hits.missing(len(queries), k)
    ends = np.cumsum(counts)
    for line, query in enumerate(queries.astype(np.float64)):
        scored = []
        for row, (end, count) in enumerate(zip(ends, counts, strict=True)):
            scores = passages[end - count : end].astype(np.float64) @ query
            scores = scores[scores > 0] if shared else scores
            if live[row] and len(scores):
                scored.append((-scores.max(), row))
        for place, (score, row) in enumerate(sorted(scored)[:k]):
            hits.rows[line, place], hits.scores[line, place] = row, -score
    return hits


def equal(found: Hits, expected: Hits) -> None:
    np.testing.assert_array_equal(found.scores, expected.scores)
    np.testing.assert_array_equal(found.rows, expected.rows)


@pytest.mark.parametrize(("make", "form"), EXACT)
@QUICK
@given(
    seed=st.integers(0, 2**32),
    counts=st.lists(st.sampled_from([0, 1, 1, 2, 3, 30]), max_size=12),
    k=st.integers(0, 14),
)
def test_search_equals_brute_force(
    make: Callable[[], Index], form: Any, seed: int, counts: list[int], k: int
) -> None:
    rng = np.random.default_rng(seed)
    numbers = np.array(counts, dtype=np.int64)
    passages, queries = table(rng, int(numbers.sum())), table(rng, 4)
    index = PassageIndex(make())
    half, cut = len(counts) // 2, int(numbers[: len(counts) // 2].sum())
    first = index.add(form(passages[:cut]), numbers[:half])
    second = index.add(form(passages[cut:]), numbers[half:])
    np.testing.assert_array_equal(np.concatenate([first, second]), np.arange(len(counts)))
    assert (len(index), index.rows, index.passages) == (len(counts), len(counts), numbers.sum())
    shared = form is as_sparse
    live = np.ones(len(counts), dtype=np.bool_)
    equal(index.search(form(queries), k), best_of(queries, passages, numbers, k, live, shared))

    live = rng.random(len(counts)) < 0.6
    keep = rng.random(len(counts)) < 0.6
    index.delete(np.flatnonzero(~live))
    assert index.passages == numbers[live].sum()
    for _ in range(2):  # the second time with what the first one kept
        equal(index.search(form(queries), k), best_of(queries, passages, numbers, k, live, shared))
        expected = best_of(queries, passages, numbers, k, live & keep, shared)
        equal(index.search(form(queries), k, keep=keep), expected)

    moved = index.compact()
    np.testing.assert_array_equal(moved[live], np.arange(live.sum()))
    assert (index.rows, index.passages) == (live.sum(), numbers[live].sum())
    kept = passages[np.repeat(live, numbers)]
    alive = np.ones(int(live.sum()), dtype=np.bool_)
    equal(index.search(form(queries), k), best_of(queries, kept, numbers[live], k, alive, shared))


def test_a_document_of_many_passages_does_not_crowd_out_others() -> None:
    passages = np.ones((1002, 2), dtype=np.float32)
    passages[1000:] = [[0.5, 0.5], [0.25, 0.25]]
    index = PassageIndex(FlatIndex())
    index.add(passages, [1000, 1, 1])
    hits = index.search(np.ones((1, 2), dtype=np.float32), 3)
    np.testing.assert_array_equal(hits.rows, [[0, 1, 2]])
    np.testing.assert_array_equal(hits.scores, [[2.0, 1.0, 0.5]])


@pytest.mark.parametrize("factory", ["Flat", "HNSW16", "IVF4,Flat"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_over_faiss(factory: str) -> None:
    rng = np.random.default_rng(5)
    counts = rng.integers(1, 5, 60)
    passages = rng.standard_normal((int(counts.sum()), 8)).astype(np.float32)
    queries = rng.standard_normal((5, 8)).astype(np.float32)
    index = PassageIndex(FaissIndex(factory))
    index.train(passages)
    index.add(passages, counts)
    index.delete([3, 7])
    live = np.ones(60, dtype=np.bool_)
    live[[3, 7]] = False
    expected = best_of(queries, passages, counts, 10, live, shared=False)
    params = {"HNSW16": {"efSearch": 400}, "IVF4,Flat": {"nprobe": 4}}.get(factory)
    hits = index.search(queries, 10, params=params)
    np.testing.assert_array_equal(hits.rows, expected.rows)
    np.testing.assert_allclose(hits.scores, expected.scores, rtol=1e-5)
    with pytest.raises(ConfigError, match="unknown search parameter 'nprobes'"):
        index.search(queries, 10, params={"nprobes": 1})


@pytest.mark.parametrize(("make", "form"), EXACT)
def test_save_and_open(make: Callable[[], Index], form: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    counts = np.array([2, 0, 1, 5, 3, 1])
    passages, queries = table(rng, 12), form(table(rng, 4))
    index = PassageIndex(make())
    index.add(form(passages), counts)
    index.delete([2])
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index")
    assert isinstance(opened, PassageIndex)
    assert type(opened.inner) is type(index.inner)
    assert (len(opened), opened.rows, opened.passages) == (5, 6, 11)
    equal(opened.search(queries, 6), index.search(queries, 6))
    for changed in (index, opened):
        changed.add(form(passages[:3]), [1, 2])
        changed.delete([0])
        changed.compact()
    equal(opened.search(queries, 6), index.search(queries, 6))
    opened.save(tmp_path / "index")
    equal(open_index(tmp_path / "index").search(queries, 6), index.search(queries, 6))


def test_damaged_numbers_are_refused(tmp_path: Path) -> None:
    index = PassageIndex(FlatIndex())
    index.add(np.eye(3, dtype=np.float32), [2, 1])
    for counts in ([1, 1], [2, 1, 5], []):
        index._counts, index._starts = [np.array(counts, dtype=np.int64)], None
        index.save(tmp_path / "index")
        with pytest.raises(IndexFormatError, match="rebuild"):
            open_index(tmp_path / "index")


def test_best_passages() -> None:
    passages = np.array([[1, 0], [3, 0], [0, 1], [0, 2], [0, 2]], dtype=np.float32)
    index = PassageIndex(FlatIndex())
    index.add(passages, [2, 0, 3])
    queries = np.array([[1, 0], [1, 0], [0, 1]], dtype=np.float32)
    best = index.best_passages(queries, [0, 1, 2])
    np.testing.assert_array_equal(best.rows, [[1], [-1], [3]])
    np.testing.assert_array_equal(best.scores, [[3.0], [-np.inf], [2.0]])
    np.testing.assert_array_equal(index.first_passages([0, 1, 2]), [0, 2, 2])
    with pytest.raises(ConfigError, match=r"inner\.documents\(\) returns them"):
        index.documents([0])
    index.delete([0])
    assert index.best_passages(queries[:1], [0]).rows[0, 0] == -1
    with pytest.raises(DataError, match=r"rows: 1 for 3 queries"):
        index.best_passages(queries, [0])
    with pytest.raises(DataError, match="no row 3"):
        index.best_passages(queries[:1], [3])


def test_bad_counts_are_refused() -> None:
    index = PassageIndex(FlatIndex())
    vectors = np.eye(3, dtype=np.float32)
    for counts, message in (
        ([1, 1], "counts: 2 passages of 2 documents, and 3 vectors"),
        ([4, -1], "expected one whole number, 0 or more"),
        ([1.0, 2.0], "float64"),
        ([[1, 2]], r"shape \(1, 2\)"),
    ):
        with pytest.raises(DataError, match=message):
            index.add(vectors, counts)
    assert (index.rows, index.inner.rows) == (0, 0)
    np.testing.assert_array_equal(index.add(vectors[:0], [0, 0]), [0, 1])
    assert (index.search(vectors, 2).rows == -1).all()


def test_what_inner_may_be() -> None:
    assert PassageIndex({"type": "flat", "metric": "l2"}).inner.metric == "l2"
    with pytest.raises(ConfigError, match=r"inner\.type: unknown type 'flatt'"):
        PassageIndex({"type": "flatt"})
    with pytest.raises(ConfigError, match="PassageIndex, expected an index of single vectors"):
        PassageIndex(PassageIndex(FlatIndex()))
    with pytest.raises(ConfigError, match="int, expected"):
        PassageIndex(3)  # type: ignore[arg-type]
    full = FlatIndex()
    full.add(np.eye(3, dtype=np.float32))
    with pytest.raises(ConfigError, match="has 3 rows already"):
        PassageIndex(full)
    emptied = PassageIndex(InvertedIndex(n_terms=7)).empty()
    assert emptied.inner.n_terms == 7  # type: ignore[attr-defined]
    augmented = AugmentedIndex({"type": "flat", "metric": "l2"}, {"type": "mips_to_l2"})
    with pytest.raises(ConfigError, match="AugmentedIndex: cannot be emptied"):
        PassageIndex(augmented).empty()


def test_the_innermost_index_holds_the_vectors() -> None:
    for inner in (FlatIndex("cosine"), InvertedIndex()):
        index = PassageIndex(inner)
        assert index.innermost is inner is inner.innermost
        assert index.metric == inner.metric
    assert InvertedIndex().metric is None
    augmented = AugmentedIndex({"type": "flat", "metric": "l2"}, {"type": "mips_to_l2"})
    assert augmented.innermost is augmented  # the inner vectors are longer
    assert PassageIndex(augmented).metric == augmented.metric == "ip"
