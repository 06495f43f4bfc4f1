#!/usr/bin/env python
"""Measure gathered MaxSim: recall of the exact best, milliseconds, bytes; peers beside it.

    python scripts/bench_late_gather.py --data ../shared/data --work DIR scifact nfcorpus
    python scripts/bench_late_gather.py --data ../shared/data --work DIR --peers PYTHON scifact
    python scripts/bench_late_gather.py --data ../shared/data --work DIR --stores residual2 scifact
    python scripts/bench_late_gather.py --data ../shared/data --work DIR --million
    python scripts/bench_late_gather.py --data ../shared/data --work DIR --million --documents 50000

Token vectors are MiniLM's states of the collection's texts on 128 principal axes (kept in ``DIR``).
Recall is against brute force over these float32 vectors, whatever an index stores; times are
medians of queries asked one at a time, k = 10, in one run. ``--peers`` is the Python of an
environment that has fast-plaid, xtr-warp-rs and the very torch they were compiled for (with
another, building an index ends the process), which are asked the same queries with their defaults.

``--stores``: what each of these stores loses. All queries are searched exactly in it, and in an
index of float32 vectors, whose exact search equals brute force over them.

``--million``: short documents of 30 token vectors, sampled from encoded MS MARCO passages (windows
of two passages) and perturbed by noise of half a vector's length. The index is built chunk by chunk
in 4-bit residual codes, saved every quarter, and goes on where it was stopped. Recall is then
against the index's own exact search. Queries: the passages' real ones, and 100 of 32 perturbed
tokens.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import options, write_record

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
from bench_late_data import short_documents, short_queries, token_vectors
from numpy.typing import NDArray

from sluice import TokenIndex, open_index
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing.tokens.storage.segment import Store

QUERIES = 100
QUARTERS = 4
BASE = "msmarco-dl-pool"

Rows = NDArray[np.int64]
Line = dict[str, Any]


def main() -> None:
    given = options(__doc__, {
        "collections": {"nargs": "*"}, "--data": {"type": Path, "required": True},
        "--work": {"type": Path, "required": True}, "--peers": Path,
        "--stores": {"type": lambda names: names.split(","), "default": []}, "--million": False,
        "--documents": 1_000_000, "--json": Path,
    })  # fmt: skip
    given.work.mkdir(parents=True, exist_ok=True)
    lines: list[Line] = []
    for name in given.collections:
        documents, queries = token_vectors(given.data / name, given.work)
        if given.stores:
            lines += compare_stores(name, documents, queries, given.stores)
        else:
            lines += compare(name, documents, sampled(queries), given.work, given.peers)
    if given.million:
        base, real = token_vectors(given.data / BASE, given.work)
        lines += million(base, sampled(real), given.documents, given.work)
    write_record(given.json, lines)


def sampled(queries: TokenVectors) -> TokenVectors:
    """Return a hundred queries that have tokens."""
    filled = np.flatnonzero(queries.lengths > 0)
    order = np.random.default_rng(1).permutation(filled)
    return queries.rows(np.sort(order[:QUERIES]))


def brute_force(documents: TokenVectors, queries: TokenVectors, k: int) -> Rows:
    """Return each query's ``k`` best documents by float32 products, ties by row."""
    scores = np.full((len(queries), len(documents)), -np.inf)
    filled = np.flatnonzero(documents.lengths > 0)
    for start in range(0, len(filled), 1000):
        rows = filled[start : start + 1000]
        part = documents.rows(rows)
        for line, query in enumerate(queries):
            best = np.maximum.reduceat(part.values @ query.T, part.bounds[:-1], axis=0)
            scores[line, rows] = best.sum(axis=1, dtype=np.float64)
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def recall(found: Rows, expected: Rows) -> float:
    """Return the mean share of the expected rows that were found."""
    pairs = zip(found.tolist(), expected.tolist(), strict=True)
    return float(np.mean([len(set(rows) & set(best)) / len(best) for rows, best in pairs]))


def one_by_one(
    search: Callable[[TokenVectors], Rows], queries: TokenVectors
) -> tuple[Rows, float, float]:
    """Return what is found, the median and the 95th percentile of a query's milliseconds."""
    for place in range(min(5, len(queries))):
        search(queries.rows(slice(place, place + 1)))
    rows, times = [], []
    for place in range(len(queries)):
        query = queries.rows(slice(place, place + 1))
        start = time.perf_counter()
        rows.append(search(query))
        times.append(1000 * (time.perf_counter() - start))
    return np.concatenate(rows), float(np.median(times)), float(np.quantile(times, 0.95))


def searching(index: TokenIndex, mode: str) -> Callable[[TokenVectors], Rows]:
    """Return what searches an index for the ten best in one mode."""
    return lambda query: index.search(query, 10, params={"mode": mode}).rows


def compare(
    name: str, documents: TokenVectors, queries: TokenVectors, work: Path, peers: Path | None
) -> list[Line]:
    """Measure exact and gathered search of one collection, then the peers."""
    best = brute_force(documents, queries, 100)
    lines: list[Line] = []
    for store in ("int8", "residual4"):
        start = time.perf_counter()
        index = TokenIndex(store, mode="gather")
        index.train(documents)
        index.add(documents)
        built = time.perf_counter() - start
        note = index.measure_recall(queries)
        for mode in ("exact", "gather"):
            found, median, high = one_by_one(searching(index, mode), queries)
            deep = index.search(queries, 100, params={"mode": mode}).rows
            lines.append(
                {
                    "collection": name, "engine": f"sluice {store} {mode}",
                    "recall@10": recall(found, best[:, :10]), "recall@100": recall(deep, best),
                    "ms": median, "ms_p95": high, "bytes_a_document": index.size_bytes / len(index),
                    "build_s": built,
                }
            )  # fmt: skip
            show(lines[-1])
        print(f"  {note}", flush=True)
    if peers is not None:
        lines += measured_peers(name, documents, queries, best, work, peers)
    return lines


def compare_stores(
    name: str, documents: TokenVectors, queries: TokenVectors, stores: list[Store]
) -> list[Line]:
    """Measure what exact search in each store finds of the best by float32 vectors."""
    queries = queries.rows(np.flatnonzero(queries.lengths > 0))
    lines: list[Line] = []
    best = np.zeros((0, 0), np.int64)
    every: list[Store] = ["float32", *stores]
    for store in every:
        index = TokenIndex(store)
        index.train(documents)
        index.add(documents)
        found = index.search(queries, 100).rows
        if store == "float32":
            best = found
            continue
        lines.append(
            {
                "collection": name, "engine": f"sluice {store} exact, {len(queries):,} queries",
                "recall@10": recall(found[:, :10], best[:, :10]), "recall@100": recall(found, best),
                "first the same": float(np.mean(found[:, 0] == best[:, 0])),
                "bytes_a_document": index.size_bytes / len(index),
            }
        )  # fmt: skip
        show(lines[-1])
    return lines


def measured_peers(
    name: str, documents: TokenVectors, queries: TokenVectors, best: Rows, work: Path, python: Path,
) -> list[Line]:  # fmt: skip
    """Measure the peers in their own environment, on the same vectors."""
    lines = []
    with tempfile.TemporaryDirectory(dir=work) as folder:
        for side, vectors in (("documents", documents), ("queries", queries)):
            np.save(Path(folder) / f"{side}.values.npy", vectors.values)
            np.save(Path(folder) / f"{side}.bounds.npy", vectors.bounds)
        script = Path(__file__).with_name("bench_late_peers.py")
        code = subprocess.run([str(python), str(script), folder], check=False).returncode
        if code:
            print(f"{name}: the peers ended with code {code}; they need the torch of their wheels")
        answers = Path(folder) / "peers.json"
        for line in json.loads(answers.read_text()) if answers.exists() else []:
            found = line.pop("rows")
            for k in (10, 100):
                rows = np.array([[*each[:k], *[-1] * (k - len(each))] for each in found])
                line[f"recall@{k}"] = recall(rows, best[:, :k])
            lines.append({"collection": name, **line})
            show(lines[-1])
    return lines


def million(base: TokenVectors, real: TokenVectors, count: int, work: Path) -> list[Line]:
    """Build the index of short documents where it is not yet built, and search it."""
    folder = work / f"short-{count}"
    start = time.perf_counter()
    index = build(base, count, folder, work)
    built = time.perf_counter() - start
    lines: list[Line] = []
    for name, queries in (("real", real), ("32 tokens", short_queries(base, QUERIES))):
        start = time.perf_counter()
        note = index.measure_recall(queries)
        print(f"{name}: {note} ({time.perf_counter() - start:.0f} s)", flush=True)
        _, median, high = one_by_one(searching(index, "gather"), queries)
        few = queries.rows(slice(0, 10))
        _, exact, _ = one_by_one(searching(index, "exact"), few)
        lines.append(
            {
                "collection": f"{count:,} short documents",
                "engine": f"sluice residual4 gather, {name} queries", "recall@10": note.at_10,
                "recall@100": note.at_100, "ms": median, "ms_p95": high, "ms_exact": exact,
                "bytes_a_document": index.size_bytes / len(index), "build_s": built,
                "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            }
        )  # fmt: skip
        show(lines[-1])
    return lines


def build(base: TokenVectors, count: int, folder: Path, work: Path) -> TokenIndex:
    """Return the index, going on from what an earlier run saved."""
    if folder.exists():
        index = open_index(folder)
        print(f"{len(index):,} documents are saved", flush=True)
    else:
        index = TokenIndex("residual4", mode="gather")
        size = min(count, index.training_rows(count))
        print(f"learning from {size:,} documents", flush=True)
        chunks = [documents for _, documents in short_documents(base, size)]
        index.train(TokenVectors.joined(chunks, base.dim))
    quarter = -(-count // QUARTERS)
    start = time.perf_counter()
    while len(index) < count:
        goal = min(count, len(index) + quarter)
        with tempfile.TemporaryDirectory(dir=work) as spool:
            index.spool(Path(spool))
            for _, documents in short_documents(base, goal, len(index)):
                index.add(documents)
            spent = time.perf_counter() - start
            print(f"{len(index):,} documents added, {spent:.0f} s", flush=True)
            index.save(folder)
        index = open_index(folder)
        print(f"saved, {time.perf_counter() - start:.0f} s", flush=True)
    return index


def show(line: Line) -> None:
    """Print one line."""
    numbers = [f"{name} {value:.4g}" for name, value in line.items() if not isinstance(value, str)]
    print(f"{line['collection']}: {line['engine']}: {', '.join(numbers)}", flush=True)


if __name__ == "__main__":
    main()
