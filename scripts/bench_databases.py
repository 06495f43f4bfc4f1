"""Times our index in a database against the engine's own Python client, in the same engine.

Usage: python scripts/bench_databases.py [DOCUMENTS] [DIMENSIONS] [ENGINE...] [METHOD]

The vectors are drawn. Both sides store them in the same engine with the same settings, exact and by
HNSW, in turn over ROUNDS builds, and search the same queries one at a time, in turn, and all at
once; hits are compared. Prints medians, of the clock and of CPU time (this process and the engine's
together, which a busy machine disturbs less), and ratios (below 1: ours is faster). Each engine
starts by itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sluice.indexing import Index

QUERIES, K = 200, 10
ROUNDS = 3
sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))


class Theirs(NamedTuple):
    """The engine's own client: fill a table, and the rows of the ten nearest of a query."""

    fill: Callable[[np.ndarray], None]
    search: Callable[[np.ndarray], list[int]]


class Engine(NamedTuple):
    """A running engine: an empty index of ours and their client, exact or with a graph.

    ``clear`` removes what both stored; ``cpu`` are the seconds that the engine used elsewhere.
    """

    ours: Callable[[str], Index]
    theirs: Callable[[str], Theirs]
    clear: Callable[[], None]
    cpu: Callable[[], float]


class Cost(NamedTuple):
    """Seconds of the clock, and of all CPUs."""

    wall: float
    cpu: float


def cpu_of(process: int) -> float:
    """Return the CPU seconds of a process and its children, those that ended as well."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    total = 0.0
    for number in [str(process), *children]:
        with contextlib.suppress(OSError):  # ended meanwhile
            fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
            last = 15 if number == str(process) else 13  # of those that ended, or its own alone
            total += sum(map(int, fields[11:last])) / os.sysconf("SC_CLK_TCK")
    return total


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

    def clear() -> None:
        found = connection.execute(
            "SELECT tablename FROM pg_tables WHERE tablename ~ '^(ours|theirs)_'"
        )
        for (name,) in found.fetchall():
            connection.execute(f"DROP TABLE {name}")

    def ours(method: str) -> Index:
        return PgvectorIndex(server.dsn, table="ours", method=method)

    main = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
    yield Engine(ours, theirs, clear, lambda: cpu_of(main))
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
            held: list[Any] = []

            def fill(vectors: np.ndarray) -> None:
                graph = method == "hnsw"
                path.mkdir()
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

        def clear() -> None:
            for path in Path(folder).iterdir():
                shutil.rmtree(path)

        def ours(method: str) -> Index:
            return QdrantIndex(f"{folder}/ours", method=method)

        yield Engine(ours, theirs, clear, lambda: 0.0)  # the engine is in this process


ENGINES: Mapping[str, Callable[[], contextlib.AbstractContextManager[Engine]]] = {
    "pgvector": pgvector,
    "qdrant": qdrant,
}
METHODS = ["exact", "hnsw"]


def timed(call: Callable[[], Any], engine: Engine) -> tuple[Any, Cost]:
    """Return what a call returns, and what it costs."""
    cpu, start = time.process_time() + engine.cpu(), time.perf_counter()
    returned = call()
    wall = time.perf_counter() - start
    return returned, Cost(wall, time.process_time() + engine.cpu() - cpu)


def filled(index: Index, vectors: np.ndarray, folder: Path) -> None:
    for start in range(0, len(vectors), 16_384):
        index.add(vectors[start : start + 16_384])
    index.save(folder)
    index.settle()


def compared(name: str, engine: Engine, method: str, vectors: np.ndarray, work: Path) -> None:
    """Build and search with both clients; print times and ratios."""
    queries = np.random.default_rng(2).standard_normal((QUERIES, vectors.shape[1]), np.float32)
    builds: list[list[Cost]] = [[], []]
    for each in range(ROUNDS):
        engine.clear()
        index, theirs = engine.ours(method), engine.theirs(method)
        fills: list[Callable[[], None]] = [
            lambda theirs=theirs: theirs.fill(vectors),
            lambda index=index, each=each: filled(index, vectors, work / f"{name}{method}{each}"),
        ]
        for side in (0, 1) if each % 2 else (1, 0):
            builds[side].append(timed(fills[side], engine)[1])
    single: list[list[float]] = [[], []]
    spent = [0.0, 0.0]
    found: list[list[list[int]]] = [[], []]
    searches: list[Callable[[np.ndarray], list[int]]] = [
        theirs.search, lambda query: index.search(query[None], K).rows[0].tolist(),
    ]  # fmt: skip
    for first in range(0, QUERIES, 10):  # tens, since a server's CPU time is in hundredths
        for side in (0, 1) if first % 20 else (1, 0):
            before = time.process_time() + engine.cpu()
            for query in queries[first : first + 10]:
                start = time.perf_counter()
                found[side].append(searches[side](query))
                single[side].append(1000 * (time.perf_counter() - start))
            spent[side] += 1000 * (time.process_time() + engine.cpu() - before) / QUERIES
    _, batch = timed(lambda: index.search(queries, K), engine)
    same = sum(len(np.intersect1d(*pair)) for pair in zip(*found, strict=True))
    walls, cpus = (
        [statistics.median(cost[at] for cost in side) for side in builds] for at in (0, 1)
    )
    medians = [statistics.median(each[10:]) for each in single]
    for what, unit, pair in (
        ("build", "s", walls), ("build, CPU", "s", cpus),
        ("search", "ms", medians), ("search, CPU", "ms", spent),
    ):  # fmt: skip
        print(
            f"{name} {method}: {what}: ours {pair[1]:.2f} {unit}, theirs {pair[0]:.2f} {unit}, "
            f"ratio {pair[1] / pair[0]:.2f}"
        )
    print(
        f"{name} {method}: all queries at once: {1000 * batch.wall / QUERIES:.2f} ms each, CPU "
        f"{1000 * batch.cpu / QUERIES:.2f} ms; {same / QUERIES / K:.1%} of the hits are the same",
        flush=True,
    )


def main() -> None:
    numbers = [int(each) for each in sys.argv[1:] if each.isdigit()]
    count, width = [*numbers, *(20_000, 128)[len(numbers) :]]
    names = [each for each in sys.argv[1:] if each in ENGINES] or list(ENGINES)
    methods = [each for each in sys.argv[1:] if each in METHODS] or METHODS
    vectors = np.random.default_rng(1).standard_normal((count, width), np.float32)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with tempfile.TemporaryDirectory() as work:
        for name in names:
            with ENGINES[name]() as engine:
                for method in methods:
                    compared(name, engine, method, vectors, Path(work))


if __name__ == "__main__":
    main()
