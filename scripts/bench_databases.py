"""Times our index in a database against the engine's own Python client, in the same engine.

Usage: python scripts/bench_databases.py [DOCUMENTS] [DIMENSIONS] [ENGINE...]

The vectors are drawn. Both sides store them in the same engine with the same settings, exact and by
HNSW, and search the same queries one at a time, in turn; hits are compared. Prints seconds of the
builds, medians of the searches and ratios (below 1: ours is faster). Each engine starts by itself.
"""

from __future__ import annotations

import contextlib
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sluice.indexing import Index

QUERIES, K = 100, 10
sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))


class Theirs(NamedTuple):
    """The engine's own client: fill a table, and the rows of the ten nearest of a query."""

    fill: Callable[[np.ndarray], None]
    search: Callable[[np.ndarray], list[int]]


class Engine(NamedTuple):
    """A running engine: an empty index of ours and their client, exact or with a graph."""

    ours: Callable[[str], Index]
    theirs: Callable[[str], Theirs]


@contextlib.contextmanager
def pgvector() -> Iterator[Engine]:
    """PostgreSQL with pgvector, and psycopg with the package pgvector."""
    import psycopg
    from pgvector.psycopg import register_vector
    from postgres import Postgres

    from sluice.indexing import PgvectorIndex

    server = Postgres()
    connection = psycopg.connect(server.dsn, autocommit=True)
    connection.execute("CREATE EXTENSION vector")
    register_vector(connection)

    def theirs(method: str) -> Theirs:
        table = f"theirs_{method}"

        def fill(vectors: np.ndarray) -> None:
            connection.execute(
                f"CREATE TABLE {table} (id bigint PRIMARY KEY, "
                f"embedding vector({vectors.shape[1]}))"
            )
            with connection.cursor().copy(
                f"COPY {table} (id, embedding) FROM STDIN WITH (FORMAT BINARY)"
            ) as copy:
                copy.set_types(["int8", "vector"])
                for row, vector in enumerate(vectors):
                    copy.write_row([row, vector])
            if method == "hnsw":
                connection.execute(f"CREATE INDEX ON {table} USING hnsw (embedding vector_ip_ops)")
                connection.execute("SET hnsw.ef_search = 100")
            connection.execute(f"ANALYZE {table}")

        def search(query: np.ndarray) -> list[int]:
            found = connection.execute(
                f"SELECT id, embedding <#> %s FROM {table} ORDER BY 2 LIMIT {K}", [query]
            )
            return [row for row, _ in found.fetchall()]

        return Theirs(fill, search)

    yield Engine(lambda method: PgvectorIndex(server.dsn, table="ours", method=method), theirs)
    connection.close()
    server.stop()


@contextlib.contextmanager
def qdrant() -> Iterator[Engine]:
    """Qdrant's engine in this process, and its own Python interface."""
    import qdrant_edge as edge

    from sluice.indexing import QdrantIndex

    with tempfile.TemporaryDirectory() as folder:

        def theirs(method: str) -> Theirs:
            path = Path(folder) / f"theirs-{method}"
            path.mkdir()
            held: list[Any] = []

            def fill(vectors: np.ndarray) -> None:
                graph = method == "hnsw"
                config = edge.EdgeConfig(
                    vectors=edge.EdgeVectorParams(vectors.shape[1], edge.Distance.Dot),
                    hnsw_config=edge.HnswIndexConfig(16 if graph else 0, 100, 1),
                    optimizers=edge.EdgeOptimizersConfig(indexing_threshold=1 if graph else None),
                )
                shard = edge.EdgeShard.create(str(path), config)
                for start in range(0, len(vectors), 512):
                    rows = enumerate(vectors[start : start + 512].tolist(), start)
                    points = [edge.Point(row, vector, {"row": row}) for row, vector in rows]
                    shard.update(edge.UpdateOperation.upsert_points(points))
                shard.optimize()
                shard.flush()
                held.append((shard, edge.SearchParams(exact=not graph, hnsw_ef=128)))

            def search(query: np.ndarray) -> list[int]:
                shard, params = held[0]
                nearest = edge.Query.Nearest(query.tolist())
                found = shard.query(edge.QueryRequest(K, query=nearest, params=params))
                return [int(point.id) for point in found]

            return Theirs(fill, search)

        yield Engine(lambda method: QdrantIndex(f"{folder}/ours", method=method), theirs)


ENGINES: Mapping[str, Callable[[], contextlib.AbstractContextManager[Engine]]] = {
    "pgvector": pgvector,
    "qdrant": qdrant,
}


def timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def filled(index: Index, vectors: np.ndarray, folder: Path) -> None:
    for start in range(0, len(vectors), 16_384):
        index.add(vectors[start : start + 16_384])
    index.save(folder)
    index.settle()


def compared(name: str, engine: Engine, method: str, vectors: np.ndarray, work: Path) -> None:
    """Build and search with both clients; print times and ratios."""
    queries = np.random.default_rng(2).standard_normal((QUERIES, vectors.shape[1]), np.float32)
    index, theirs = engine.ours(method), engine.theirs(method)
    building = [
        timed(lambda: theirs.fill(vectors)),
        timed(lambda: filled(index, vectors, work / f"{name}-{method}")),
    ]
    times: list[list[float]] = [[], []]
    same = 0
    for number, query in enumerate(queries):
        hits: list[list[int]] = [[], []]
        for side in (0, 1) if number % 2 else (1, 0):
            start = time.perf_counter()
            if side:
                hits[1] = index.search(query[None], K).rows[0].tolist()
            else:
                hits[0] = theirs.search(query)
            times[side].append(1000 * (time.perf_counter() - start))
        same += len(np.intersect1d(*hits))
    medians = [statistics.median(each[10:]) for each in times]
    print(
        f"{name} {method}: build {building[1]:.2f} s, theirs {building[0]:.2f} s, ratio "
        f"{building[1] / building[0]:.2f}; search {medians[1]:.2f} ms, theirs {medians[0]:.2f} ms, "
        f"ratio {medians[1] / medians[0]:.2f}; {same / QUERIES / K:.1%} of the hits are the same"
    )


def main() -> None:
    numbers = [int(each) for each in sys.argv[1:] if each.isdigit()]
    count, width = [*numbers, *(20_000, 128)[len(numbers) :]]
    names = [each for each in sys.argv[1:] if not each.isdigit()] or list(ENGINES)
    vectors = np.random.default_rng(1).standard_normal((count, width), np.float32)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with tempfile.TemporaryDirectory() as work:
        for name in names:
            with ENGINES[name]() as engine:
                for method in ("exact", "hnsw"):
                    compared(name, engine, method, vectors, Path(work))


if __name__ == "__main__":
    main()
