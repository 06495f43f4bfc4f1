#!/usr/bin/env python
"""Searches of the inverted index against brute force, over corpora drawn by seed; resumable.

    scripts/prove_exact.py STATE.json [--searches 1000000] [--seed 0]

Each seed draws a corpus (empty, one and few to some thousand documents; with many ties, with terms
that are in every document, with weights of every size a float32 has, with zeros), the settings
(fidelity, block size, order), the parts it is added in, documents deleted and replaced, and then
searches it by each engine, with and without a filter, for 1 to more hits than there are documents;
likewise split into shards, after ``compact``, and opened again from a folder. Every row and every
bit of every score must be that of brute force: float32 sums in ascending term order, ties to the
lower row. Negative, NaN and infinite weights must be refused and change nothing.

STATE.json has the next seed and the counts, and is replaced after every corpus: a killed proof
continues there. The exit status is 1 where an answer was wrong; its seed is printed.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import sluice.indexing.inverted.segment_list as segment_list
from sluice.encoders.foundation.errors import DataError
from sluice.indexing import InvertedIndex, open_index
from sluice.indexing.wrappers.fan_out import ShardRows
from sluice.indexing.wrappers.sharded import ShardedIndex

ENGINES = ("auto", "blocks", "terms")
KINDS = ("ties", "real", "extreme", "heavy", "binary")
QUERIES = 24
MISSING = (-1, np.float32(-np.inf))


def drawn(rng: np.random.Generator, count: int, terms: int, kind: str) -> Any:
    """Return documents as a table float32 ``[count, terms]``; 0 is no term."""
    share = rng.random(terms) ** 2 * rng.choice([0.05, 0.3, 1.0])
    if kind == "heavy" or rng.random() < 0.5:
        share[rng.integers(0, terms)] = 1.0
    if kind == "ties":
        values = rng.integers(1, 4, (count, terms)).astype(np.float32)
    elif kind == "binary":
        values = np.ones((count, terms), np.float32)
    elif kind == "extreme":
        values = np.exp(rng.uniform(-100, 88, (count, terms))).astype(np.float32)
    else:
        values = np.log1p(rng.lognormal(0, 1, (count, terms))).astype(np.float32)
    if kind == "heavy":  # one term decides nearly all of the score
        values[:, rng.integers(0, terms)] *= np.float32(50)
    values[rng.random((count, terms)) >= share] = 0
    values[rng.random(count) < 0.05] = 0  # documents without a term
    if count > 3 and rng.random() < 0.3:  # copies
        values[rng.integers(0, count, count // 3)] = values[rng.integers(0, count)]
    return values


def as_sparse(table: Any, zeros: bool = False) -> Any:
    """Return a table as CSR; with ``zeros`` some of its zeros are stored, which must not matter."""
    matrix = sparse.csr_array(table)
    if zeros and table.size:
        filled = sparse.csr_array(np.ones_like(table))
        filled.data[:] = table.ravel()
        return filled
    return matrix


def ranked(query: Any, table: Any, allowed: Any) -> tuple[Any, Any]:
    """Return all hits of one query, best first: rows and float32 scores."""
    width = min(len(query), table.shape[1])
    sums = np.zeros(len(table), np.float32)
    touched = np.zeros(len(table), bool)
    with np.errstate(over="ignore"):
        for term in np.flatnonzero(query[:width]):
            column = table[:, term]
            sums = np.where(column > 0, sums + query[term] * column, sums)
            touched |= column > 0
    sums = np.minimum(sums, np.finfo(np.float32).max)
    rows = np.flatnonzero(touched & allowed)
    best = rows[np.lexsort((rows, -sums[rows]))]
    return best, sums[best]


def padded(rows: Any, scores: Any, k: int) -> tuple[Any, Any]:
    """Return ``k`` places of a ranking."""
    out = np.full(k, MISSING[0], np.int64), np.full(k, MISSING[1], np.float32)
    out[0][: len(rows)], out[1][: len(rows)] = rows[:k], scores[:k]
    return out


class Proof:
    """The counts so far, in a file."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.counts: dict[str, Any] = {"seed": seed, "searches": 0, "wrong": 0, "faults": []}
        if path.exists():
            self.counts |= json.loads(path.read_text())

    def save(self) -> None:
        """Replace the file."""
        made = self.path.with_suffix(".new")
        made.write_text(json.dumps(self.counts, indent=1) + "\n")
        made.replace(self.path)

    def corpus(self, seed: int) -> None:
        """Draw one corpus and check all searches of it."""
        rng = np.random.default_rng(seed)
        size = rng.choice([1, 4, 40, 300, 1_200, 4_000], p=[0.06, 0.09, 0.25, 0.4, 0.17, 0.03])
        count = int(rng.integers(1, size + 1))
        terms, kind = int(rng.integers(1, 40)), str(rng.choice(KINDS))
        table = drawn(rng, count, terms, kind)
        queries = drawn(rng, QUERIES, int(rng.integers(1, 50)), kind)
        settings: dict[str, Any] = {
            "fidelity": str(rng.choice(["exact", "u8"])),
            "block_size": rng.choice(np.array([None, 1, 2, 8, 32, 256], dtype=object)),
            "order": str(rng.choice(["input", "input", "cluster", "bisection"])),
        }
        merging = segment_list._worth_merging
        if rng.random() < 0.5:
            segment_list._worth_merging = lambda *_: False
        try:
            for name, index, stored, alive in states(rng, table, settings):
                self.check(f"seed {seed}, {name}", rng, index, stored, alive, queries)
        finally:
            segment_list._worth_merging = merging

    def check(
        self, name: str, rng: np.random.Generator, index: Any, table: Any, alive: Any, queries: Any
    ) -> None:
        """Search by each engine, filter and k; count what differs from brute force."""
        asked = as_sparse(queries, zeros=bool(rng.random() < 0.2))
        for allowed in (None, rng.random(len(table)) < rng.choice([0.05, 0.5])):
            among = alive if allowed is None else alive & allowed
            best = [ranked(query, table, among) for query in queries]
            depths = {1, 10, len(table), len(table) + 3, int(rng.integers(1, len(table) + 1))}
            for k in sorted(depths):
                expected = [padded(*each, k) for each in best]
                for engine in ENGINES:
                    hits = index.search(asked, k, keep=allowed, params={"engine": engine})
                    for place, (rows, scores) in enumerate(expected):
                        self.counts["searches"] += 1
                        same = np.array_equal(hits.rows[place], rows)
                        if not (same and np.array_equal(hits.scores[place], scores)):
                            self.counts["wrong"] += 1
                            fault = f"{name}: query {place}, k {k}, {engine}, {allowed is not None}"
                            self.counts["faults"] = [*self.counts["faults"], fault][:20]
                            logging.error("wrong: %s", fault)


def states(
    rng: np.random.Generator, table: Any, settings: dict[str, Any]
) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield an index in several states, the table of what it stores, and which rows are alive."""
    count = len(table)
    exact = settings["fidelity"] == "exact"
    index = InvertedIndex(**settings)
    for part in np.array_split(np.arange(count), int(rng.integers(1, 6))):
        index.add(as_sparse(table[part], zeros=bool(rng.random() < 0.2)))
        if rng.random() < 0.6:
            index.search(as_sparse(table[:1]), 1)  # closes a segment
    _refuses(rng, index, table)
    alive = np.ones(count, bool)

    def stored(held: Any, rows: int) -> Any:
        return held.documents(np.arange(rows)).toarray()

    first = stored(index, count)
    if exact:
        first = _wide(table, first.shape[1])  # what was added, not what the index says
    yield "added", index, first, alive
    if count > 1:  # some documents are deleted, some replaced
        gone = rng.choice(count, int(rng.integers(1, count)), replace=False)
        index.delete(gone)
        again = gone[: int(rng.integers(0, len(gone) + 1))]
        changed = table[again][:, rng.permutation(table.shape[1])]
        index.add(as_sparse(changed))
        whole = np.concatenate([table, changed])
        alive = np.concatenate([~np.isin(np.arange(count), gone), np.ones(len(again), bool)])
        now = stored(index, len(whole))
        if exact:
            now = _wide(whole, now.shape[1])
        yield "changed", index, now, alive
        if alive.any():
            index.compact()
            now = now[alive] if exact else stored(index, int(alive.sum()))
            alive = np.ones(len(now), bool)
            yield "compacted", index, now, alive
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder) / "index")
        yield "opened", open_index(Path(folder) / "index"), stored(index, len(alive)), alive
    if exact:
        yield _sharded(rng, table, settings)


def _wide(table: Any, width: int) -> Any:
    wider = np.zeros((len(table), max(width, table.shape[1])), np.float32)
    wider[:, : table.shape[1]] = table
    return wider


def _sharded(
    rng: np.random.Generator, table: Any, settings: dict[str, Any]
) -> tuple[str, Any, Any, Any]:
    """Return the documents split over shards, some of them deleted."""
    owners = rng.integers(0, int(rng.integers(1, 5)), len(table))
    held = ShardRows.split(owners, int(owners.max()) + 1)
    index = ShardedIndex.split(InvertedIndex(**settings), held)
    index.add(as_sparse(table))
    gone = np.flatnonzero(rng.random(len(table)) < 0.2)
    index.delete(gone)
    return "sharded", index, table, ~np.isin(np.arange(len(table)), gone)


def _refuses(rng: np.random.Generator, index: InvertedIndex, table: Any) -> None:
    wrong = as_sparse(table[:1] + np.float32(1))
    wrong.data[rng.integers(0, len(wrong.data))] = rng.choice([-1.0, np.nan, np.inf])
    before = index.rows
    for action in (index.add, lambda query: index.search(query, 3)):
        try:
            action(wrong)
        except DataError:
            continue
        raise SystemExit("a negative, NaN or infinite weight was not refused")
    if index.rows != before:
        raise SystemExit("a refused document was added")


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("state", type=Path, help="the file of counts, which is continued")
    parser.add_argument("--searches", type=int, default=1_000_000, help="stop after so many")
    parser.add_argument("--seed", type=int, default=0, help="the first seed of a new proof")
    options = parser.parse_args()
    proof = Proof(options.state, options.seed)
    while proof.counts["searches"] < options.searches:
        proof.corpus(proof.counts["seed"])
        proof.counts["seed"] += 1
        proof.save()
    counts = proof.counts
    print(f"{counts['searches']:,} searches of {counts['seed']:,} corpora: {counts['wrong']} wrong")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
