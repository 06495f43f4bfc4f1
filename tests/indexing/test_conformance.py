"""What every index promises, against brute force: the same tests over every implementation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from scipy import sparse

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.indexing import Hits, open_index

QUICK = settings(
    derandomize=True,
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
Same = Callable[..., None]


def exact(kind: Any) -> bool:
    """FAISS chooses between equal documents at the boundary itself."""
    return not kind.name.startswith("faiss")


@QUICK
@given(seed=st.integers(0, 2**32), count=st.integers(0, 30), k=st.integers(0, 40))
def test_search_equals_brute_force(kind: Any, same: Same, seed: int, count: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    documents, queries = kind.table(rng, count), kind.table(rng, 4)
    index = kind.make()
    rows = [index.add(kind.vectors(part)) for part in np.array_split(documents, 3)]
    np.testing.assert_array_equal(np.concatenate(rows), np.arange(count))
    assert (len(index), index.rows) == (count, count)
    found = index.search(kind.vectors(queries), k)
    same(found, kind.expected(queries, documents, k), rows=exact(kind))


@QUICK
@given(seed=st.integers(0, 2**32), count=st.integers(1, 30), share=st.floats(0, 1))
def test_deletes_keep_and_compact(
    kind: Any, same: Same, seed: int, count: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    documents, queries = kind.table(rng, count), kind.table(rng, 3)
    given_queries = kind.vectors(queries)
    index = kind.make()
    index.add(kind.vectors(documents))
    live = rng.random(count) >= share
    index.delete(np.flatnonzero(~live))
    assert (len(index), index.rows) == (live.sum(), count)
    same(
        index.search(given_queries, 5),
        kind.expected(queries, documents, 5, live),
        rows=exact(kind),
    )
    keep = rng.random(count) < 0.5
    filtered = kind.expected(queries, documents, 5, live & keep)
    same(index.search(given_queries, 5, keep=keep), filtered, rows=exact(kind))
    same(index.search(given_queries, 5, keep=np.flatnonzero(keep)), filtered, rows=exact(kind))

    moved = index.compact()
    np.testing.assert_array_equal(moved[live], np.arange(live.sum()))
    assert (moved[~live] == -1).all()
    assert (len(index), index.rows) == (live.sum(), live.sum())
    rebuilt = kind.make()
    rebuilt.add(kind.vectors(documents[live]))
    same(index.search(given_queries, 5), rebuilt.search(given_queries, 5), rows=exact(kind))
    np.testing.assert_array_equal(index.add(kind.vectors(documents[:1])), [live.sum()])


def test_save_and_open(kind: Any, same: Same, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    documents, queries = kind.table(rng, 40), kind.table(rng, 5)
    given_queries = kind.vectors(queries)
    index = kind.make()
    index.encoder_fingerprint = "abc"
    index.add(kind.vectors(documents[:30]))
    index.delete([2, 5])
    index.save(tmp_path / "index")
    opened = open_index(tmp_path / "index", encoder_fingerprint="abc")
    assert type(opened) is type(index)
    assert opened.encoder_fingerprint == "abc"
    assert (len(opened), opened.rows, opened.size_bytes) == (28, 30, index.size_bytes)
    same(opened.search(given_queries, 7), index.search(given_queries, 7))

    # An opened index grows and shrinks in memory, and may be saved onto its own folder.
    for changed in (index, opened):
        changed.add(kind.vectors(documents[30:]))
        changed.delete([7, 31])
    same(opened.search(given_queries, 7), index.search(given_queries, 7))
    same(
        open_index(tmp_path / "index").search(given_queries, 50), _of(kind, documents[:30], queries)
    )
    opened.save(tmp_path / "index")
    again = open_index(tmp_path / "index")
    same(again.search(given_queries, 7), index.search(given_queries, 7))
    again.compact()
    again.save(tmp_path / "index")
    same(opened.search(given_queries, 7), index.search(given_queries, 7))
    index.compact()
    same(open_index(tmp_path / "index").search(given_queries, 7), index.search(given_queries, 7))


def _of(kind: Any, documents: Any, queries: Any) -> Hits:
    index = kind.make()
    index.add(kind.vectors(documents))
    index.delete([2, 5])
    return index.search(kind.vectors(queries), 50)  # type: ignore[no-any-return]


@pytest.mark.parametrize("emptied", [False, True])
def test_an_empty_index_is_valid(kind: Any, tmp_path: Path, emptied: bool) -> None:
    rng = np.random.default_rng(0)
    vectors = kind.vectors(kind.table(rng, 4))
    index = kind.make()
    if emptied:
        index.add(vectors)
        index.delete([0, 1, 2, 3])
        np.testing.assert_array_equal(index.compact(), [-1] * 4)
    assert len(index.add(vectors[:0])) == 0
    index.save(tmp_path / "index")
    for empty in (index, open_index(tmp_path / "index")):
        hits = empty.search(vectors, 3)
        assert hits.rows.shape == (4, 3)
        assert (hits.rows == -1).all()
        assert (hits.scores == -np.inf).all()
        assert len(empty) == 0
        np.testing.assert_array_equal(empty.compact(), [])
    np.testing.assert_array_equal(empty.add(vectors), [0, 1, 2, 3])


def test_one_document_and_empty_batches(kind: Any) -> None:
    rng = np.random.default_rng(1)
    vectors = kind.vectors(np.eye(12, dtype=np.float32)[:1])
    index = kind.make()
    index.add(vectors)
    np.testing.assert_array_equal(index.search(vectors, 3).rows, [[0, -1, -1]])
    assert index.search(vectors[:0], 3).rows.shape == (0, 3)
    assert index.search(vectors, 0).scores.shape == (1, 0)
    assert (index.search(vectors, 3, keep=np.zeros(1, dtype=bool)).rows == -1).all()
    assert (index.search(vectors, 3, keep=[]).rows == -1).all()
    queries = kind.table(rng, 6)
    whole = index.search(kind.vectors(queries), 2)
    for place in range(6):  # the batch does not matter
        part = index.search(kind.vectors(queries[place : place + 1]), 2)
        np.testing.assert_array_equal(part.scores[0], whole.scores[place])


def test_the_caller_keeps_its_vectors(kind: Any, same: Same) -> None:
    rng = np.random.default_rng(2)
    table = kind.table(rng, 20)
    vectors, queries = kind.vectors(table.copy()), kind.vectors(table[:3])
    index = kind.make()
    index.add(vectors)
    before = index.search(queries, 5)
    values = vectors.values if kind.tokens else vectors
    (vectors.data if sparse.issparse(vectors) else values)[...] = 0
    same(index.search(queries, 5), before)


def test_float64_is_cast(kind: Any, same: Same) -> None:
    rng = np.random.default_rng(4)
    table = kind.table(rng, 10)
    one, other = kind.make(), kind.make()
    one.add(kind.vectors(table))
    other.add(kind.vectors(table.astype(np.float64)))
    same(
        other.search(kind.vectors(table.astype(np.float64)), 4),
        one.search(kind.vectors(table), 4),
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda table: table.astype(np.int64), "dtype int64, expected float32"),
        (lambda table: np.where(table == table[1, 1], np.nan, table), r"row \d+, .* nan"),
        (lambda table: np.where(table == table[1, 1], np.inf, table), r"row \d+, .* inf"),
    ],
)
def test_bad_values_are_refused(kind: Any, spoil: Any, message: str) -> None:
    table = np.eye(12, dtype=np.float32) + 0
    table[0, 0] = 1
    if kind.tokens and "dtype" in message:
        pytest.skip("TokenVectors are float32 whatever they are made of")
    index = kind.make()
    with pytest.raises(DataError, match=message):
        index.add(kind.vectors(spoil(table)))
    index.add(kind.vectors(table))
    with pytest.raises(DataError, match=message):
        index.search(kind.vectors(spoil(table)), 3)
    with pytest.raises(DataError, match="expected"):
        index.add([[1.0, 2.0]])
    assert len(index) == 12


def test_bad_rows_are_refused(kind: Any) -> None:
    index = kind.make()
    index.add(kind.vectors(np.eye(12, dtype=np.float32)))
    index.delete([3])
    for rows, message in (
        ([12], "no row 12; this index has rows 0 to 11"),
        ([-1], "no row -1"),
        ([4, 3], "row 3 is already deleted"),
        ([4, 4], "row 4 occurs twice"),
        ([0.5], "expected a list of row numbers"),
    ):
        with pytest.raises(DataError, match=message):
            index.delete(rows)
    assert len(index) == 11
    queries = kind.vectors(np.eye(12, dtype=np.float32)[:1])
    with pytest.raises(DataError, match="one boolean for each of the 12 rows"):
        index.search(queries, 3, keep=np.ones(5, dtype=bool))
    with pytest.raises(DataError, match="no row 40"):
        index.search(queries, 3, keep=[40])
    with pytest.raises(ConfigError, match="k is -1"):
        index.search(queries, -1)
    with pytest.raises(ConfigError, match="k is 1,000,000,000,000 for 1 query, expected at most"):
        index.search(queries, 10**12)
    with pytest.raises(ConfigError, match="k is 'ten'"):
        index.search(queries, "ten")
    with pytest.raises(ConfigError, match="unknown search parameter 'nprobes'"):
        index.search(queries, 3, params={"nprobes": 3})
