"""Times searches of one collection, whole and in shards, in turn; prints medians and ratios.

On a busy machine the processor time says more, where searches take one thread.

Usage: python scripts/bench_shards.py [DOCUMENTS] [SHARDS]

Documents are drawn: 60 words of a Zipf distribution for BM25, vectors of 64 dimensions for the flat
index. Every query is checked to have the same hits in both.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator

import numpy as np

from sluice import BM25Encoder, Document, FlatIndex, FunctionEncoder, InvertedIndex, Retriever

DIM, WORDS, LENGTH, QUERIES, K = 64, 20_000, 60, 200, 10


def texts(count: int, length: int, seed: int) -> Iterator[str]:
    drawn = np.random.default_rng(seed)
    for _ in range(count):
        yield " ".join(f"w{word}" for word in np.minimum(drawn.zipf(1.3, length), WORDS))


def vectors(names: list[str]) -> np.ndarray:
    rows = [np.random.default_rng(list(each.encode())) for each in names]
    return np.array([each.standard_normal(DIM) for each in rows], dtype=np.float32)


def compared(name: str, whole: Retriever, sharded: Retriever, queries: list[str]) -> None:
    """Print the medians of both, each query asked of one and then the other."""
    clocks = {"time": time.perf_counter, "processor time": time.process_time}
    times = {(clock, kind): list[float]() for clock in clocks for kind in ("whole", "shards")}
    for number, query in enumerate(queries):
        pair = [("whole", whole), ("shards", sharded)]
        hits = []
        for kind, retriever in pair[:: 1 if number % 2 else -1]:
            starts = {clock: now() for clock, now in clocks.items()}
            run = retriever.run({"q": query}, None, K)
            for clock, now in clocks.items():
                times[clock, kind].append(1000 * (now() - starts[clock]))
            hits.append(list(run["q"]))
        if hits[0] != hits[1]:
            sys.exit(f"{name}: other hits for {query!r}")
    for clock in clocks:
        whole_ms, shards_ms = (
            statistics.median(times[clock, kind][5:]) for kind in ("whole", "shards")
        )
        print(
            f"{name:8} {clock:14} whole {whole_ms:.3f} ms, shards {shards_ms:.3f} ms, "
            f"ratio {shards_ms / whole_ms:.2f}"
        )


def main() -> None:
    count, shards = (int(each) for each in [*sys.argv[1:], "30000", "4"][:2])
    documents = [Document(f"d{n}", "", each) for n, each in enumerate(texts(count, LENGTH, 1))]
    queries = list(texts(QUERIES, 4, 2))
    built = [
        Retriever.build(BM25Encoder(), documents, index=InvertedIndex(), shards=each)
        for each in (None, shards)
    ]
    compared("bm25", *built, queries)
    drawn = np.random.default_rng(3).standard_normal((count, DIM)).astype(np.float32)
    encoder = FunctionEncoder(vectors, name="drawn")
    built = [
        Retriever.build(encoder, documents, vectors=drawn, index=FlatIndex(), shards=each)
        for each in (None, shards)
    ]
    compared("flat", *built, queries)


if __name__ == "__main__":
    main()
