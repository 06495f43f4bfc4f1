"""Times encoding by one process, two local ones and Ray: the same plan, one thread each, in turn.

Usage: python scripts/bench_executors.py [DOCUMENTS] [TASKS] [ROUNDS] [MODEL]

Each round times the tasks of every executor once, into an empty cache, with workers that have
opened the model; starting them is printed apart. The vectors are checked to be equal to the bit.
Ray is left out where it is not installed. Two cores must be idle.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import numpy as np

from sluice.encoders.foundation.errors import MissingPackageError
from sluice.encoders.objects import as_encoder
from sluice.retrieval import Encoding
from sluice.retrieval.execution import (
    Executor,
    LocalExecutor,
    ProcessExecutor,
    RayExecutor,
)
from sluice.retrieval.execution.executor import Crew
from sluice.retrieval.retrievers.corpus.vectors.corpus_vectors import CorpusEncoder

WORDS, LENGTH, WORKERS = 20_000, 100, 2


class Held(Executor):
    """An executor whose workers stay between plans."""

    type_name = "held"

    def __init__(self, executor: Executor, stack: ExitStack) -> None:
        self.remote = executor.remote  # type: ignore[misc]
        self._crew = stack.enter_context(executor.crew())

    @contextmanager
    def crew(self) -> Iterator[Crew]:
        """Yield the workers that have been started."""
        yield self._crew


def texts(count: int, seed: int) -> list[str]:
    drawn = np.random.default_rng(seed)
    rows = np.minimum(drawn.zipf(1.3, (count, LENGTH)), WORDS)
    return [" ".join(f"w{word}" for word in row) for row in rows]


def encoded(
    executor: Executor, encoder: Any, given: list[str], shard: int, work: Path
) -> tuple[float, str]:
    """Return the seconds of the plan, and a hash of its files."""
    with tempfile.TemporaryDirectory() as cache:
        settings = Encoding(shard=shard)
        with CorpusEncoder(encoder, Path(cache), settings, executor, work) as corpus:
            hashes, rows = corpus.plan(given)
            start = time.perf_counter()
            corpus.encode(hashes, rows, lambda part: [given[row] for row in part.tolist()])
            seconds = time.perf_counter() - start
        files = sorted(Path(cache).glob("*/*.vectors"))
        return seconds, hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()


def main() -> None:
    given = dict(enumerate(sys.argv[1:]))
    count, tasks, rounds = (int(given.get(n, d)) for n, d in enumerate(("2000", "10", "3")))
    encoder = as_encoder(given.get(3, "sentence-transformers/all-MiniLM-L6-v2"))
    documents, shard = texts(count, 1), -(-count // tasks)
    executors: dict[str, Executor] = {}
    times: dict[str, list[float]] = {}
    hashes = set()
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, executor in (
            ("one process", LocalExecutor()),
            ("processes", ProcessExecutor(WORKERS, threads=1)),
            ("ray", RayExecutor(workers=WORKERS)),
        ):
            start = time.perf_counter()
            try:
                executors[name] = Held(executor, stack)
            except MissingPackageError as error:
                print(f"without Ray: {error}")
                continue
            encoded(executors[name], encoder, texts(4 * WORKERS, 2), 4, work / name)
            print(f"{name}: started in {time.perf_counter() - start:.1f} s", flush=True)
        for number in range(rounds):
            for name in list(executors)[:: -1 if number % 2 else 1]:
                seconds, found = encoded(executors[name], encoder, documents, shard, work / name)
                times.setdefault(name, []).append(seconds)
                hashes.add(found)
                print(f"round {number + 1}: {name}: {seconds:.2f} s", flush=True)
    if len(hashes) != 1:
        sys.exit("other vectors")
    medians = {name: statistics.median(each) for name, each in times.items()}
    for name, seconds in medians.items():
        print(
            f"{name:12} {count / seconds:8.1f} documents/s, "
            f"{medians['one process'] / seconds:.2f} times one process"
        )
    if "ray" in medians:
        print(f"ray over processes: {100 * (medians['ray'] / medians['processes'] - 1):+.1f} %")


if __name__ == "__main__":
    main()
