"""Recall, speed, memory and build time of FAISS types through ``FaissIndex``, against exact search.

A budget of seconds bounds the whole: types that would be built after it are left out, and said so.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from bench_dense_timing import recalled

from sluice import FaissIndex, FlatIndex, SluiceError

if TYPE_CHECKING:
    from bench_dense_data import Collection

BUDGET = 60.0  # seconds in which a type may begin
QUERIES = 200
ROUNDS = 3
TRAINED = 3_000  # vectors that a type is trained on: more takes minutes

Case = tuple[str, int | None, dict[str, int]]  # factory, rescored candidates, search parameters


def cases(dimensions: int) -> list[Case]:
    """Return what is measured; product quantisers get 8 dimensions for each byte."""
    parts = dimensions // 8
    return [
        ("Flat", None, {}),
        ("SQ8", None, {}),
        ("SQ8", 50, {}),
        ("IVF64,Flat", None, {"nprobe": 8}),
        ("IVF64,Flat", None, {"nprobe": 32}),
        ("IVF64,SQ8", 50, {"nprobe": 16}),
        (f"PQ{parts}x4fs", 100, {}),
        (f"IVF64,PQ{parts}x4fs", 100, {"nprobe": 16}),
        ("HNSW32", None, {"efSearch": 64}),
        ("HNSW32", None, {"efSearch": 200}),
        (f"IVF64,PQ{parts}", 100, {"nprobe": 16}),
        # Its rotation takes longest to learn, so that it is to few dimensions.
        ("OPQ16_64,IVF64,PQ16x4fs", 200, {"nprobe": 16}),
    ]


def types_table(collection: Collection, k: int) -> list[dict[str, Any]]:
    """Print the table of types, one line each; return its figures."""
    documents, queries = collection.documents, collection.queries[:QUERIES]
    exact = FlatIndex()
    exact.add(documents)
    truth = exact.search(queries, k).rows
    print(f"\n## FAISS types, {len(documents):,} documents of {collection.name}, k = {k}\n")
    print(
        "| type | rescored | parameters | recall@10 | ms a query, batch | x FlatIndex's time |",
        end="",
    )
    print(" build s | MB |")
    print("|---|---|---|---|---|---|---|---|")
    figures: list[dict[str, Any]] = []
    built: dict[tuple[str, int | None], tuple[FaissIndex, float]] = {}
    begun = time.perf_counter()
    for factory, rescore, parameters in cases(documents.shape[1]):
        title = f"| {factory} | {rescore or ''} | {_words(parameters)} |"
        key = factory, rescore
        try:
            if key not in built:
                if time.perf_counter() - begun > BUDGET:
                    print(f"{title} left out: the {BUDGET:.0f} s for building are over | | | | |")
                    continue
                built[key] = _built(factory, rescore, documents)
            index, seconds = built[key]
            row = _timed(index, exact, queries, k, truth, parameters)
        except (SluiceError, TypeError) as error:
            print(f"{title} left out: {error} | | | | |")
            continue
        row |= {"factory": factory, "rescore": rescore, "params": parameters, "build": seconds}
        figures.append(row)
        print(
            f"{title} {row['recall']:.4f} | {row['ms']:.3f} | {row['ratio']:.2f} | {seconds:.1f} "
            f"| {index.size_bytes / 1e6:.0f} |",
            flush=True,
        )
    return figures


def _built(factory: str, rescore: int | None, documents: Any) -> tuple[FaissIndex, float]:
    begun = time.perf_counter()
    given: dict[str, Any] = {} if rescore is None else {"rescore": rescore}
    index = FaissIndex(factory, metric="ip", **given)
    index.train(documents[:: max(1, len(documents) // TRAINED)])
    index.add(documents)
    return index, time.perf_counter() - begun


def _timed(
    index: FaissIndex, exact: FlatIndex, queries: Any, k: int, truth: Any,
    parameters: dict[str, int],
) -> dict[str, Any]:  # fmt: skip
    """Return recall, milliseconds a query, and the ratio to exact search, in turns."""
    rows = index.search(queries, k, params=parameters).rows
    times = []
    for _ in range(ROUNDS):
        marks = [time.perf_counter()]
        index.search(queries, k, params=parameters)
        marks.append(time.perf_counter())
        exact.search(queries, k)
        marks.append(time.perf_counter())
        times.append(np.diff(marks))
    spent = np.array(times)
    return {
        "recall": recalled(rows, truth),
        "ms": float(np.median(spent[:, 0])) / len(queries) * 1e3,
        "ratio": float(np.median(spent[:, 0] / spent[:, 1])),
    }


def _words(parameters: dict[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in parameters.items())
