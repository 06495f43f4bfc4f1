#!/usr/bin/env python
"""Times exact MaxSim: sluice's stores, numpy, maxsim-cpu, torch and sentence-transformers.

    python scripts/bench_late.py --work FOLDER [--datasets scifact nfcorpus] [--cpu-time]

Token vectors are those of ``bench_late_data.py`` (MiniLM's states on 128 axes), encoded once into
``--work``; collections are in $SLUICE_DATA. Every engine answers the same queries in turn, one at
a time, ``--rounds`` times; figures are medians over queries of the best round, in milliseconds, and
ratios to numpy. Ours answer batches too. ``--cpu-time`` counts the processor's time of the process
instead, for a machine that does other things (threads add up). The hits of every engine are
compared with float64 brute force: ``same`` is the share of queries with equal rows.
Threads: OMP_NUM_THREADS and NUMBA_NUM_THREADS. ``maxsim-cpu`` is left out where it is missing.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench_late_data import token_vectors
from harness import options as parsed, seconds_of
from numpy.typing import NDArray

from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing import TokenIndex
from sluice.indexing.tokens.storage.segment import STORES

ROOT = Path(__file__).resolve().parent.parent
K = 10
Engine = Callable[[NDArray[np.float32]], NDArray[np.int64]]


def main() -> None:
    options = parsed(__doc__, {
        "--work": {"type": Path, "required": True}, "--datasets": ["scifact", "nfcorpus"],
        "--queries": 20, "--rounds": 3, "--batch": 64, "--cpu-time": False,
    })  # fmt: skip
    clock = time.process_time if options.cpu_time else time.perf_counter
    data = Path(os.environ.get("SLUICE_DATA", ROOT.parent / "shared" / "data"))
    for dataset in options.datasets:
        documents, queries = token_vectors(data / dataset, options.work)
        documents = TokenVectors(np.array(documents.values), documents.bounds)
        documents = documents.rows(np.flatnonzero(documents.lengths))
        run(dataset, documents, full(queries), options, clock)


def full(queries: TokenVectors) -> TokenVectors:
    """Return queries of 32 tokens, as late interaction has: their own, again from the first on."""
    filled = [np.resize(np.arange(len(each)), 32) for each in queries if len(each)]
    texts = [each for each in queries if len(each)]
    values = np.concatenate([each[places] for each, places in zip(texts, filled, strict=True)])
    return TokenVectors(values, np.arange(len(texts) + 1) * 32)


def run(
    dataset: str, documents: TokenVectors, queries: TokenVectors, options: argparse.Namespace,
    clock: Callable[[], float],
) -> None:  # fmt: skip
    tokens = len(documents.values)
    print(f"\n{dataset}: {len(documents):,} documents, {tokens:,} tokens of {documents.dim}")
    rng = np.random.default_rng(0)
    chosen = queries.rows(np.sort(rng.choice(len(queries), options.queries, replace=False)))
    batch = queries.rows(np.arange(options.batch) % len(queries))
    indexes: dict[str, TokenIndex] = {}
    for store in STORES:
        before = clock()
        indexes[store] = TokenIndex(store)
        indexes[store].add(documents)
        seconds, size = clock() - before, indexes[store].size_bytes
        print(
            f"  {store}: built in {seconds:.1f} s, {size / len(documents):,.0f} bytes a document, "
            f"{size / tokens:.1f} a token"
        )
    engines: dict[str, Engine] = {"numpy": numpy_engine(documents)}
    engines |= {f"sluice {store}": ours(index) for store, index in indexes.items()}
    engines |= peers(documents)
    truth = [engines["sluice float32"](query) for query in chosen]
    check = [true_rows(documents, query) for query in chosen.rows(slice(0, 3))]
    assert all((a == b).all() for a, b in zip(check, truth, strict=False)), "not brute force"
    times: dict[str, list[list[float]]] = {name: [] for name in engines}
    same = dict.fromkeys(engines, 0)
    for turn in range(options.rounds):
        for name, engine in engines.items():
            line = []
            for place, query in enumerate(chosen):
                begun = clock()
                rows = engine(query)
                line.append(clock() - begun)
                same[name] += turn == 0 and bool((rows == truth[place]).all())
            times[name].append(line)
    medians = {name: min(map(statistics.median, each)) * 1e3 for name, each in times.items()}
    for name, milliseconds in medians.items():
        print(
            f"  {name:24} {milliseconds:9.1f} ms a query  {medians['numpy'] / milliseconds:6.1f}x "
            f"numpy  same {same[name] / len(chosen):.2f}"
        )
    for store, index in indexes.items():
        best = min(seconds_of(lambda index=index: index.search(batch, K), clock) for _ in range(2))
        print(
            f"  sluice {store:10} {best / len(batch) * 1e3:8.1f} ms a query in batches of "
            f"{len(batch)}"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"  peak memory of the whole process: {peak:,.0f} MiB")


def ours(index: TokenIndex) -> Engine:
    """Return one query's rows by a token index."""

    def search(query: NDArray[np.float32]) -> NDArray[np.int64]:
        return index.search(TokenVectors(query, np.array([0, len(query)])), K).rows[0]

    return search


def top(scores: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rows of the ``K`` best scores, ties by row."""
    near = np.flatnonzero(scores >= np.partition(scores, len(scores) - K)[len(scores) - K])
    return near[np.lexsort((near, -scores[near]))][:K]


def true_rows(documents: TokenVectors, query: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the rows of float64 brute force."""
    products = documents.values.astype(np.float64) @ query.T.astype(np.float64)
    best = np.maximum.reduceat(products, documents.bounds[:-1], axis=0)
    return top(best.sum(axis=1).astype(np.float32))


def numpy_engine(documents: TokenVectors) -> Engine:
    """Return BLAS products in blocks that stay in the cache, and their largest by document."""
    values, bounds = documents.values, documents.bounds
    step = max(1, len(documents) // 64)

    def search(query: NDArray[np.float32]) -> NDArray[np.int64]:
        scores = np.empty(len(bounds) - 1, np.float32)
        for first in range(0, len(scores), step):
            last = min(first + step, len(scores))
            products = query @ values[bounds[first] : bounds[last]].T
            starts = bounds[first:last] - bounds[first]
            scores[first:last] = np.maximum.reduceat(products, starts, axis=1).sum(axis=0)
        return top(scores)

    return search


def peers(documents: TokenVectors) -> dict[str, Engine]:
    """Return what is installed of maxsim-cpu, torch and sentence-transformers."""
    engines: dict[str, Engine] = {}
    texts = list(documents)
    try:
        import maxsim_cpu

        engines["maxsim-cpu"] = lambda query: top(
            np.asarray(maxsim_cpu.maxsim_scores_variable(query, texts))
        )
    except ImportError:
        print("  maxsim-cpu is not installed")
    import torch

    padded, masks = [], []
    order = np.argsort(documents.lengths, kind="stable")
    for places in np.array_split(order, 64):  # documents of similar lengths together
        block = torch.nn.utils.rnn.pad_sequence(
            [torch.from_numpy(texts[place]) for place in places], batch_first=True
        )
        lengths = torch.from_numpy(documents.lengths[places])
        padded.append(block)
        masks.append(torch.arange(block.shape[1]) >= lengths[:, None])

    def einsum(query: NDArray[np.float32]) -> NDArray[np.int64]:
        asked, scores = torch.from_numpy(query), np.empty(len(texts), np.float32)
        found = []
        for block, mask in zip(padded, masks, strict=True):
            products = torch.einsum("qd,ntd->nqt", asked, block)
            products.masked_fill_(mask[:, None], float("-inf"))
            found.append(products.amax(dim=2).sum(dim=1).numpy())
        scores[order] = np.concatenate(found)
        return top(scores)

    engines["torch einsum"] = einsum
    from sentence_transformers.util import maxsim

    tensors = [torch.from_numpy(text) for text in texts]
    engines["sentence-transformers"] = lambda query: top(
        maxsim([torch.from_numpy(query)], tensors)[0].numpy()
    )
    return engines


if __name__ == "__main__":
    main()
