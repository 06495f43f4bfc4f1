#!/usr/bin/env python
"""Recall, documents scored and time: a graph linked by training queries beside HNSW and IVF.

    .venv/bin/python scripts/bench_ood_graph.py                     # made vectors, by their shift
    SLUICE_DATA=FOLDER .venv/bin/python scripts/bench_ood_graph.py --dataset cosqa

Made vectors: documents and queries are linear images of hidden normal vectors plus noise, and
queries are drawn away from the documents' image by a share of ``shift``, with an offset of their
own; shift 0 are queries like documents. Of a dataset the dev queries link, the test queries are
searched with. Nothing is chosen by either. Milliseconds are those of a query of a batch, one
thread, after a batch that was not timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import faiss
import numpy as np
from harness import options
from numpy.typing import NDArray

from sluice.indexing import FlatIndex, GraphIndex, QueryGraphIndex

Table = NDArray[np.float32]
Point = tuple[Table, float, float]  # rows found, documents scored and milliseconds a query
K = 10


def made(shift: float, count: int, training: int) -> tuple[Table, Table, Table]:
    """Return documents, training queries and 300 other queries, normalised."""
    rng = np.random.default_rng(13)
    maps, offset = rng.normal(size=(2, 24, 64)), 3 * rng.normal(size=64)

    def vectors(number: int, share: float) -> Table:
        image = rng.normal(size=(number, 24)) @ ((1 - share) * maps[0] + share * maps[1])
        image += share * offset + 2 * rng.normal(size=image.shape)
        return (image / np.linalg.norm(image, axis=1, keepdims=True)).astype(np.float32)

    return vectors(count, 0.0), vectors(training, shift), vectors(300, shift)


def encoded(name: str, model: str) -> tuple[Table, Table, Table]:
    """Return the vectors of a dataset's documents, dev queries and test queries."""
    from sluice import DenseEncoder, load_dataset

    encoder = DenseEncoder.from_pretrained(model, query_length=32, document_length=96)
    corpus = [document.full_text for document in load_dataset(name, "test").corpus]
    sides = [list(load_dataset(name, split).queries.values()) for split in ("dev", "test")]
    asked = [encoder.encode_queries(side) for side in sides]
    return encoder.encode_documents(corpus), asked[0], asked[1]


def faiss_points(
    factory: str, documents: Table, queries: Table, settings: list[int]
) -> Iterator[Point]:
    """Yield what FAISS finds with each setting, the documents it scores for a query, and ms."""
    faiss.omp_set_num_threads(1)
    index = faiss.index_factory(documents.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    index.train(documents)
    index.add(documents)
    hnsw = factory.startswith("HNSW")
    stats = faiss.cvar.hnsw_stats if hnsw else faiss.cvar.indexIVF_stats
    for value in settings:
        faiss.ParameterSpace().set_index_parameter(index, "efSearch" if hnsw else "nprobe", value)
        index.search(queries, K)
        stats.reset()
        start = time.perf_counter()
        found = index.search(queries, K)[1]
        yield found, stats.ndis / len(queries), milliseconds(start, queries)


def milliseconds(start: float, queries: Table) -> float:
    return 1_000 * (time.perf_counter() - start) / len(queries)


def shown(name: str, points: Iterator[Point], best: Table, count: int) -> None:
    cells = []
    for found, visited, each in points:
        recall = np.mean([len({*a} & {*b}) / K for a, b in zip(found, best, strict=True)])
        cells.append(f"{recall:.3f} of {100 * visited / count:.1f} %, {each:.2f} ms")
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def compared(documents: Table, training: Table, queries: Table) -> None:
    exact = FlatIndex()
    exact.add(documents)
    best = exact.search(queries, K).rows
    count = len(documents)

    def walks(index: GraphIndex, settings: list[int]) -> Iterator[Point]:
        index.add(documents)
        start = time.perf_counter()
        index.link()
        print(f"<!-- {index.type_name}: linked in {time.perf_counter() - start:.1f} s -->")
        for value in settings:
            index.search_counted(queries[:8], K, candidates=value)
            start = time.perf_counter()
            walked = index.search_counted(queries, K, candidates=value)
            took = milliseconds(start, queries)
            yield walked.hits.rows, float(walked.visited.mean()), took

    linked, unlearnt = QueryGraphIndex(), QueryGraphIndex()
    linked.learn(training)
    nearest = GraphIndex(neighbours=32, entries=64, early_stop=False)
    sizes = [10, 16, 32, 64, 128]
    rows: dict[str, Callable[[], Iterator[Point]]] = {
        "query_graph": lambda: walks(linked, sizes),
        "the same, nothing learnt": lambda: walks(unlearnt, sizes),
        "graph": lambda: walks(nearest, [1, 2, 5, 10, 20]),
        "HNSW32": lambda: faiss_points("HNSW32", documents, queries, sizes),
        "IVF": lambda: faiss_points(
            f"IVF{int(4 * count**0.5)},Flat", documents, queries, [2, 8, 16, 32, 64]
        ),
    }
    for name, points in rows.items():
        shown(name, points(), best, count)


def main() -> None:
    arguments = options(__doc__, {
        "--dataset": str, "--model": "sentence-transformers/all-MiniLM-L6-v2", "--documents": 8_000,
        "--training": 4_000, "--shift": [0.0, 0.6, 0.9],
    })  # fmt: skip
    if arguments.dataset:
        compared(*encoded(arguments.dataset, arguments.model))
        return
    for shift in arguments.shift:
        print(f"\nshift {shift}")
        compared(*made(shift, arguments.documents, arguments.training))


if __name__ == "__main__":
    main()
