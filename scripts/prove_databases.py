"""Kills PostgreSQL and builds during COPY, and fills disks: nothing is lost or stored twice.

Usage: python scripts/prove_databases.py [KILLS] [SEED]

A build of 3,000 documents into PostgreSQL is ended after some chunk: the build itself, the server's
process behind it, or the whole server, with SIGKILL and as a crash. The same build is then begun
again, until it is complete: each row once, the hits of a flat index, `verify`, one table. Then the
disk of the table, of our folder and of Qdrant's is full (a small tmpfs, which needs root; skipped
without): one error, and after more space the same build completes. Prints a line for each part; an
exit status other than 0 is a failure.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

import psycopg
from postgres import USER, Postgres

from sluice import Document, Retriever, SluiceError
from sluice.indexing import FlatIndex, Index, PgvectorIndex, QdrantIndex

COUNT, WIDTH, CHUNK = 3_000, 64, 100
VECTORS = np.random.default_rng(5).integers(-3, 4, (COUNT, WIDTH)).astype(np.float32)
QUERIES = VECTORS[::300]
KINDS = ("builder", "backend", "server crash", "postmaster")
REFUSED = 3  # the exit status of a build that ended with one of our errors
SECONDS = 240


def embed(texts: list[str]) -> np.ndarray:
    """Return the vector that a text names."""
    return VECTORS[[int(text) for text in texts]]


def documents() -> Iterator[Document]:
    return (Document(f"d{row}", "", str(row), {"row": row}) for row in range(COUNT))


def built(path: Path, index: Index, told: Callable[[], Any] = lambda: None) -> Retriever:
    def chunks() -> Iterator[np.ndarray]:
        for start in range(0, COUNT, CHUNK):
            told()
            yield VECTORS[start : start + CHUNK]

    return Retriever.build(embed, documents(), vectors=chunks(), index=index, path=path)


def begun(build: Callable[[Callable[[], Any]], Any]) -> tuple[int, int]:
    """Start a build in a process of its own; return its number, and where it tells of chunks."""
    read, write = os.pipe()
    if process := os.fork():
        os.close(write)
        return process, read
    status = 1
    try:
        os.close(read)
        build(lambda: os.write(write, b"."))
        status = 0
    except (SluiceError, OSError) as error:  # the latter names the file on a full disk
        sys.stderr.write(f"  {type(error).__name__}: {error}\n")
        status = REFUSED
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(status)


def ended(process: int, pipe: int) -> int:
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os.close(pipe)
    return status


def kill_backend(dsn: str) -> bool:
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'sluice'"
        ).fetchone()
    if found is None:
        return False
    os.kill(found[0], signal.SIGKILL)
    return True


def kill_postmaster(server: Postgres) -> None:
    file = server.folder / "data" / "postmaster.pid"
    os.kill(int(file.read_text().split()[0]), signal.SIGKILL)


def back(server: Postgres) -> None:
    """Start the server if it does not answer, and wait until it does."""
    until = time.monotonic() + SECONDS
    while True:
        try:
            psycopg.connect(server.dsn).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > until:
                raise
            with contextlib.suppress(subprocess.SubprocessError):  # its processes are ending
                server.start()
            time.sleep(0.2)


def rows_of(server: Postgres) -> tuple[int, int, int, int]:
    """Return how many tables of ours there are, and of the last: rows, different ids, the last."""
    with psycopg.connect(server.dsn) as connection:
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE tablename ~ '^proof_'"
        ).fetchall()
        if not tables:
            return 0, 0, 0, -1
        counted = connection.execute(
            f"SELECT count(*), count(DISTINCT id), coalesce(max(row), -1) FROM {tables[-1][0]}"
        ).fetchone()
    return (len(tables), *counted)


def check_whole(server: Postgres, retriever: Retriever, flat: FlatIndex) -> None:
    assert rows_of(server) == (1, COUNT, COUNT, COUNT - 1), rows_of(server)
    check_hits(retriever, flat)


def check_hits(retriever: Retriever, flat: FlatIndex) -> None:
    retriever.index.verify()
    found, expected = retriever.index.search(QUERIES, 50), flat.search(QUERIES, 50)
    assert np.array_equal(found.rows, expected.rows)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


def kills(server: Postgres, work: Path, count: int, draw: random.Random, flat: FlatIndex) -> None:
    """Kill again and again, and complete the build after every five kills."""
    done, completed, statuses = Counter[str](), 0, Counter[str]()
    copied = 0
    while done.total() < count:
        path = work / f"r{completed}"
        kind = KINDS[done.total() % len(KINDS)]
        index = PgvectorIndex(server.dsn, table="proof")
        process, pipe = begun(lambda told, path=path, index=index: built(path, index, told))
        for _ in range(draw.randrange(1, 2 + copied // CHUNK + 6)):
            os.read(pipe, 1)
        time.sleep(draw.uniform(0, 0.02))
        killed = True
        if kind == "builder":
            os.kill(process, signal.SIGKILL)
        elif kind == "backend":
            killed = kill_backend(server.dsn)
        elif kind == "server crash":
            server.kill()
        else:
            kill_postmaster(server)
        status = ended(process, pipe)
        assert status in (0, REFUSED, -signal.SIGKILL), f"{kind}: exit status {status}"
        back(server)
        tables, rows, different, last = rows_of(server)
        assert tables <= 1 + (completed > 0), tables
        assert rows == different == last + 1, (kind, rows, different, last)
        assert rows % CHUNK == 0 or rows == COUNT, (kind, rows)
        copied = rows
        if killed:
            done[kind] += 1
            statuses["ended" if status == 0 else "refused" if status > 0 else "killed"] += 1
        if done.total() % 5 == 0 or done.total() == count or status == 0:
            whole = built(path, PgvectorIndex(server.dsn, table="proof"))
            check_whole(server, whole, flat)
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                name = whole.index._table.name  # type: ignore[attr-defined]
                connection.execute(f"DROP TABLE {name}")
                connection.execute("DELETE FROM sluice_indexes")
            copied, completed = 0, completed + 1
    print(f"kills: {dict(done)}; builds then: {dict(statuses)}; {completed} completed, all whole")


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Callable[[str], None]]:
    """Mount a small file system; yields what makes it larger. ``OSError`` without root."""
    folder.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
            check=True, capture_output=True,
        )  # fmt: skip
    except (subprocess.SubprocessError, FileNotFoundError) as error:
        raise OSError(f"no file system can be mounted here: {error}") from None
    try:
        yield (
            lambda larger: (
                subprocess.run(["mount", "-o", f"remount,size={larger}", str(folder)], check=True)
                and None
            )
        )
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def refused_once(what: str, build: Callable[[], Any]) -> None:
    """Run a build on a full disk in a process of its own; it must end with one of our errors."""
    status = ended(*begun(lambda _: build()))
    assert status == REFUSED, f"{what}: exit status {status}"


def full_disks(server: Postgres, work: Path, flat: FlatIndex) -> None:
    with small_disk(server.folder / "small", "900k") as grow:
        shutil.chown(server.folder / "small", USER)  # as it is mounted by root
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE TABLESPACE small LOCATION '{server.folder}/small'")
            connection.execute("ALTER ROLE sluice SET default_tablespace = 'small'")
        path = work / "table"
        refused_once("table", lambda: built(path, PgvectorIndex(server.dsn, table="proof")))
        left = rows_of(server)
        assert left[1] == left[2] == left[3] + 1 < COUNT, left
        grow("64m")
        whole = built(path, PgvectorIndex(server.dsn, table="proof"))
        check_whole(server, whole, flat)
        print(f"full disk of the table: refused after {left[1]:,} rows, then completed")
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("ALTER ROLE sluice RESET default_tablespace")
            connection.execute(f"DROP TABLE {whole.index._table.name}")  # type: ignore[attr-defined]
            connection.execute("DELETE FROM sluice_indexes")
            connection.execute("DROP TABLESPACE small")
    with small_disk(work / "ours", "100k") as grow:
        path = work / "ours" / "r"
        refused_once("ours", lambda: built(path, PgvectorIndex(server.dsn, table="proof")))
        grow("64m")
        check_whole(server, built(path, PgvectorIndex(server.dsn, table="proof")), flat)
        print("full disk of our folder: refused, then completed")
    with small_disk(work / "qdrant", "64m") as grow:
        place, path = str(work / "qdrant" / "db"), work / "q"
        refused_once("qdrant", lambda: built(path, QdrantIndex(place)))
        grow("512m")
        whole = built(path, QdrantIndex(place))
        check_hits(whole, flat)
        print("full disk of Qdrant's folder: refused, then completed")
        del whole


def main() -> None:
    numbers = [int(each) for each in sys.argv[1:]]
    count, seed = [*numbers, *(50, 1)[len(numbers) :]]
    flat = FlatIndex()
    flat.add(VECTORS)
    server = Postgres()
    try:
        with tempfile.TemporaryDirectory() as folder:
            kills(server, Path(folder), count, random.Random(seed), flat)
            try:
                full_disks(server, Path(folder), flat)
            except OSError as error:
                print(f"full disks: skipped: {error}")
    finally:
        server.stop()


if __name__ == "__main__":
    main()
