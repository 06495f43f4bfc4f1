"""Checks that an index finds what brute force finds, and keeps its rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing.folder import open_index
from sluice.indexing.hits import Hits, best_first
from sluice.indexing.index import Index
from sluice.retrieval.testing.rules import expect, verify

Table = NDArray[np.float32]
Mask = NDArray[np.bool_]


def check_index(
    make: Callable[[], Index],
    *,
    width: int = 12,
    count: int = 40,
    exact: bool = True,
    ties: bool = True,
    tokens: bool = False,
    skip: Collection[str] = (),
) -> None:
    """Raise ``BrokenRule`` unless the indexes that ``make`` returns keep every rule of an index.

    ``make`` is called often and returns a new, empty index: a class, or a lambda. Its vectors are
    dense ``[n, width]``, and sparse where its ``metric`` is None; ``count`` of them are added,
    after ``train`` where it asks for a sample. An approximate index is checked with
    ``exact=False``: what it finds may not be the best, all else holds. ``ties=False`` leaves it
    the choice among equal documents. With ``tokens`` the vectors are ``TokenVectors``, one token
    for each document. ``skip`` names rules that do not apply.

    An index is saved and opened, for which its class must be importable by its module's name.
    """
    index = make()
    name = f"index {type(index).__name__}"
    verify(name, [is_an_index], (index, make()), [])
    verify(
        name,
        RULES,
        World(make, "ip" if tokens else index.metric, width, count, exact, ties, tokens),
        skip,
    )


@dataclass(frozen=True)
class World:
    """How to make an index, its vectors, and its brute force."""

    make: Callable[[], Index]
    metric: str | None
    width: int
    count: int
    exact: bool
    ties: bool
    tokens: bool = False

    def table(self, count: int, seed: int = 0) -> Table:
        """Small whole numbers: exact in every order of summing, with many ties and duplicates."""
        rng = np.random.default_rng(seed)
        shape = (count, self.width)
        if self.metric is None:
            return (rng.integers(0, 3, shape) * (rng.random(shape) < 0.4)).astype(np.float32)
        if self.metric == "cosine":
            return np.eye(self.width, dtype=np.float32)[rng.integers(0, self.width, count)]
        return rng.integers(-2, 3, shape).astype(np.float32)

    def vectors(self, table: Table) -> Any:
        """Return a table in the form that the index takes."""
        if self.tokens:
            return TokenVectors(table, np.arange(len(table) + 1))
        return sp.csr_array(table) if self.metric is None else table

    def built(self, table: Table) -> Index:
        """Return an index of these vectors, added in three parts."""
        index = self.make()
        if index.training_rows(len(table)):
            index.train(self.vectors(table))
        for part in np.array_split(table, 3):
            index.add(self.vectors(part))
        return index

    def expected(self, queries: Table, table: Table, k: int, allowed: Mask | None = None) -> Hits:
        """Return the hits of brute force, ties by row."""
        one, other = queries.astype(np.float64), table.astype(np.float64)
        scores = one @ other.T
        if self.metric == "l2":
            scores = -((one[:, None] - other[None]) ** 2).sum(axis=2)
        elif self.metric == "cosine":
            lengths = np.linalg.norm(one, axis=1)[:, None] * np.linalg.norm(other, axis=1)
            scores = np.divide(scores, lengths, out=np.zeros_like(scores), where=lengths > 0)
        possible: Mask = np.ones(scores.shape, np.bool_)
        if self.metric is None:
            shared = (queries[:, None] > 0) & (table[None] > 0)
            possible = np.asarray(shared.any(axis=2))
        if allowed is not None:
            possible &= allowed
        hits = Hits.missing(len(queries), k)
        for place, line in enumerate(scores.astype(np.float32)):
            rows = np.flatnonzero(possible[place])
            rows, best = best_first(rows.astype(np.int64), line[rows], k)
            hits.rows[place, : len(rows)], hits.scores[place, : len(rows)] = rows, best
        return hits

    def agrees(self, found: Hits, expected: Hits, what: str) -> None:
        """Expect the hits of an exact index to be those of brute force."""
        if self.exact:
            _same(found, expected, what, rows=self.ties)


def is_an_index(made: tuple[Any, Any]) -> None:
    """Each call of make returns a new Index without rows."""
    index, other = made
    expect(isinstance(index, Index), f"it is a {type(index).__name__}; subclass indexing.Index")
    expect(index is not other, "make returned the same index twice")
    expect(index.rows == 0 and len(index) == 0, f"it has {index.rows} rows already")
    expect(
        index.metric in (None, "ip", "cosine", "l2"),
        f"metric is {index.metric!r}; expected 'ip', 'cosine' or 'l2', or None for sparse vectors",
    )


def rows_of_adding(world: World) -> None:
    """Adding returns the next rows, int64, and copies the vectors."""
    table = world.table(world.count)
    index = world.built(table)
    expect(
        (len(index), index.rows) == (world.count, world.count),
        f"added {world.count}, it has len {len(index)} and rows {index.rows}",
    )
    more = world.table(3, 5)
    vectors, queries = world.vectors(more.copy()), world.vectors(table[:3])
    rows = index.add(vectors)
    expect(
        rows.dtype == np.int64 and rows.tolist() == [world.count + n for n in range(3)],
        f"add returned {rows!r} after {world.count} rows",
    )
    expect(len(index.add(vectors[:0])) == 0, "adding no vectors gave rows")
    before = index.search(queries, 5)
    values = vectors.values if isinstance(vectors, TokenVectors) else vectors
    (vectors.data if isinstance(vectors, sp.csr_array) else values)[...] = 0
    _same(index.search(queries, 5), before, "after the caller changed its vectors")


def form_of_hits(world: World) -> None:
    """Hits are int64 rows, float32 scores [n, k], best first; empty places are -1, -inf, last."""
    index = world.built(world.table(world.count))
    queries = world.vectors(world.table(4, 1))
    for k in (0, 1, 5, world.count + 7):
        hits = index.search(queries, k)
        _check_form(hits, 4, k)
        for rows, scores in zip(*hits, strict=True):
            full = rows >= 0
            expect(
                len(set(rows[full].tolist())) == full.sum() and (rows < world.count).all(),
                f"k={k}: rows {rows.tolist()}",
            )
            tied = (np.diff(scores[full]) == 0) & (np.diff(rows[full]) < 0)
            expect(not tied.any(), f"k={k}: equal scores, rows descend: {rows.tolist()}")
    expect(index.search(queries[:0], 3).rows.shape == (0, 3), "no queries: expected shape (0, 3)")


def brute_force(world: World) -> None:
    """A search finds what brute force finds: the same scores, ties by row ascending."""
    for seed in range(4):
        table, queries = world.table(world.count, seed), world.table(4, seed + 10)
        index = world.built(table)
        for k in (1, 5, world.count + 7):
            found = index.search(world.vectors(queries), k)
            world.agrees(found, world.expected(queries, table, k), f"k={k}, seed {seed}")


def one_query_at_a_time(world: World) -> None:
    """A query's hits do not depend on the other queries, and come again."""
    index = world.built(world.table(world.count))
    queries = world.vectors(world.table(6, 1))
    together = index.search(queries, 5)
    for place in range(6):
        alone = index.search(queries[place : place + 1], 5)
        batch = Hits(together.rows[place : place + 1], together.scores[place : place + 1])
        _same(alone, batch, f"query {place} alone, then with others", rows=world.ties)
    _same(index.search(queries, 5), together, "the second time", rows=world.ties)


def kept_rows(world: World) -> None:
    """A search with keep, a mask or row numbers, finds those rows alone."""
    table, queries = world.table(world.count), world.table(4, 1)
    index, vectors = world.built(table), world.vectors(queries)
    mask = np.random.default_rng(2).random(world.count) < 0.5
    for keep in (mask, np.flatnonzero(mask)):
        found = index.search(vectors, 5, keep=keep)
        _check_form(found, 4, 5)
        rows = found.rows[found.rows >= 0]
        expect(mask[rows].all(), f"rows {rows[~mask[rows]].tolist()} are not in keep")
        world.agrees(found, world.expected(queries, table, 5, mask), "with keep")
    expect((index.search(vectors, 3, keep=[]).rows == -1).all(), "an empty keep has hits")


def deleted_rows(world: World) -> None:
    """Deleted rows are never hits, and the others keep their numbers until compact."""
    table, queries = world.table(world.count), world.table(4, 1)
    index, vectors = world.built(table), world.vectors(queries)
    live = np.random.default_rng(3).random(world.count) < 0.6
    index.delete(np.flatnonzero(~live))
    expect(
        (len(index), index.rows) == (live.sum(), world.count),
        f"after {(~live).sum()} deletions len is {len(index)}, rows {index.rows}",
    )
    found = index.search(vectors, 5)
    rows = found.rows[found.rows >= 0]
    expect(live[rows].all(), f"deleted rows {rows[~live[rows]].tolist()} are hits")
    world.agrees(found, world.expected(queries, table, 5, live), "after deleting")

    moved = index.compact()
    numbers = np.where(live, np.cumsum(live) - 1, -1)
    expect((moved == numbers).all(), f"compact returned {moved.tolist()}")
    expect(index.rows == live.sum(), f"after compact there are {index.rows} rows")
    again = index.search(vectors, 5)
    renumbered = Hits(np.where(found.rows < 0, -1, numbers[found.rows]), found.scores)
    world.agrees(again, renumbered, "after compact")
    expect(index.add(world.vectors(table[:1])).tolist() == [live.sum()], "add after compact")


def empty_index(world: World) -> None:
    """An empty index is valid: it finds nothing, compacts, saves and opens."""
    table = world.table(world.count)
    vectors = world.vectors(table[:4])
    emptied = world.built(table)
    emptied.delete(np.arange(world.count))
    emptied.compact()
    with tempfile.TemporaryDirectory() as folder:
        emptied.save(Path(folder) / "index")
        for index in (emptied, _opened(folder, emptied)):
            hits = index.search(vectors, 3)
            _check_form(hits, 4, 3)
            expect((hits.rows == -1).all(), f"it found {hits.rows.tolist()}")
            expect(len(index.compact()) == 0, "compact returned rows")
    fresh = world.make()
    expect((fresh.search(vectors, 3).rows == -1).all(), "a new index has hits")


def saved_and_opened(world: World) -> None:
    """What is saved opens as the same index, and may be changed and saved again."""
    table, queries = world.table(world.count), world.vectors(world.table(5, 1))
    index = world.built(table[:30])
    index.encoder_fingerprint = "abc"
    index.delete([2, 5])
    before = index.search(queries, 7)
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder) / "index")
        opened = _opened(folder, index)
        expect(type(opened) is type(index), f"opened a {type(opened).__name__}")
        expect(opened.encoder_fingerprint == "abc", "the encoder's fingerprint is lost")
        for name in ("rows", "size_bytes", "metric"):
            one, other = getattr(index, name), getattr(opened, name)
            expect(one == other, f"{name} is {one!r}, {other!r} when opened")
        _same(opened.search(queries, 7), before, "opened")
        for each in (index, opened):
            each.add(world.vectors(table[30:]))
            each.delete([7, 31])
        changed = opened.search(queries, 7)
        world.agrees(changed, index.search(queries, 7), "opened, then changed")
        _same(_opened(folder, index).search(queries, 7), before, "on disk, after changes in memory")
        opened.save(Path(folder) / "index")
        _same(_opened(folder, index).search(queries, 7), changed, "saved onto its own folder")


def refused(world: World) -> None:
    """NaN and unknown rows are a DataError, after which nothing has changed."""
    table = np.eye(world.width, dtype=np.float32)[np.arange(world.count) % world.width]
    index = world.built(table)
    spoiled = table.copy()
    spoiled[0, 0] = np.nan
    trials: dict[str, Callable[[], object]] = {
        "adding NaN": lambda: index.add(world.vectors(spoiled)),
        "searching NaN": lambda: index.search(world.vectors(spoiled), 3),
        "deleting a row beyond the last": lambda: index.delete([world.count]),
        "deleting row -1": lambda: index.delete([-1]),
        "deleting a row twice": lambda: index.delete([1, 1]),
    }
    for what, trial in trials.items():
        try:
            trial()
        except DataError:
            expect(len(index) == world.count, f"{what} left {len(index)} rows of {world.count}")
        else:
            expect(False, f"{what} was accepted")


def stored_vectors(world: World) -> None:
    """With documents(rows) the vectors come back, or a ConfigError is raised."""
    table = world.table(world.count)
    index = world.built(table)
    try:
        found = index.documents([3, 1, 1])
    except ConfigError:
        return
    expect(found.shape[0] == 3, f"3 rows gave {found.shape}")
    if world.exact and world.ties:
        dense = found.values if isinstance(found, TokenVectors) else found
        dense = found.toarray() if isinstance(found, sp.csr_array) else dense
        wide = np.zeros((3, world.width), np.float32)
        wide[:, : dense.shape[1]] = dense
        expect((wide == table[[3, 1, 1]]).all(), f"rows 3, 1, 1 are {wide.tolist()}")


RULES: Final = (
    rows_of_adding, form_of_hits, brute_force, one_query_at_a_time, kept_rows, deleted_rows,
    empty_index, saved_and_opened, refused, stored_vectors,
)  # fmt: skip


def _opened(folder: str, index: Index) -> Index:
    return open_index(Path(folder) / "index", allow=index.words)


def _check_form(hits: Hits, queries: int, k: int) -> None:
    expect(
        hits.rows.dtype == np.int64 and hits.scores.dtype == np.float32,
        f"rows are {hits.rows.dtype}, scores {hits.scores.dtype}",
    )
    shape = (queries, k)
    expect(
        hits.rows.shape == shape and hits.scores.shape == shape,
        f"k={k}: rows {hits.rows.shape}, scores {hits.scores.shape}, expected {shape}",
    )
    for rows, scores in zip(*hits, strict=True):
        missing = rows < 0
        expect(
            (rows[missing] == -1).all() and np.isneginf(scores[missing]).all(),
            f"k={k}: an empty place is not (-1, -inf): {rows.tolist()}, {scores.tolist()}",
        )
        expect(np.isfinite(scores[~missing]).all(), f"k={k}: scores {scores.tolist()}")
        expect(not (np.diff(missing.astype(int)) < 0).any(), f"k={k}: rows {rows.tolist()}")
        expect((scores[1:] <= scores[:-1]).all(), f"k={k}: scores rise: {scores.tolist()}")


def _same(found: Hits, expected: Hits, what: str, *, rows: bool = True) -> None:
    for place, (score, right) in enumerate(zip(found.scores, expected.scores, strict=True)):
        expect(
            np.array_equal(score, right),
            f"{what}: query {place} scores {score.tolist()}, expected {right.tolist()}",
        )
    for place, (row, right_row) in enumerate(zip(found.rows, expected.rows, strict=True)):
        expect(
            not rows or np.array_equal(row, right_row),
            f"{what}: query {place} finds rows {row.tolist()}, expected {right_row.tolist()}",
        )
