"""Measures `sluice serve` against the library and a server without batches, in one run.

    python scripts/bench_serve.py runs/quickstart [--seconds 8] [--clients 32] [--json FILE]
                                  [--infinity PROGRAM]

Needs the extras serve and offline, and sentence-transformers. Measures what the service adds to a
BM25 search at low load; dense searches at saturation beside the library's own batches, of 256
queries and of as many as there are clients; an open loop of Poisson arrivals at shares of the
saturation, where latency counts from when a request was due; one and several workers, with their
memory; and mixed lengths at /v1/embeddings beside sentence-transformers with one call a request,
and beside Infinity where ``--infinity`` says which ``infinity_emb`` (of an environment of its own).
Ends with the table of issue 22, also when it is interrupted or a part fails. Takes about 18 times
`--seconds`, and a minute or two for servers to start.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from harness import MODEL, options as parsed, refuse, write_record
from serving_load import (
    PATIENCE,
    PROCESSES,
    START,
    StepError,
    check_experiment,
    closed_loop,
    family,
    finished,
    interrupted_by_sigterm,
    loaded,
    memory_of,
    open_loop,
    quantiles,
    say,
    serving,
)

LARGE = 256  # queries of the library's large batches, and clients that could fill one
SHARES = (0.5, 0.8, 2.0)  # of the saturation, for the open loop
WAIT = "2"  # seconds that LARGE clients may wait: their queue alone takes about a half
WORDS = ("gold", "river", "stone", "water", "sluice", "vector", "index", "term", "rank", "score",
         "date", "file", "path", "text")  # fmt: skip
NAIVE = """
import json, sys
import uvicorn
from sentence_transformers import SentenceTransformer
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.routing import Route
model = SentenceTransformer(sys.argv[2], device="cpu")
async def embed(request):
    body = await request.json()
    rows = await run_in_threadpool(model.encode, body["input"], show_progress_bar=False)
    data = [{"index": i, "embedding": row.tolist()} for i, row in enumerate(rows)]
    return JSONResponse({"data": data})
async def health(request):
    return JSONResponse({})
routes = [Route("/v1/embeddings", embed, methods=["POST"]), Route("/health", health)]
uvicorn.run(Starlette(routes=routes), port=int(sys.argv[1]), log_level="warning", access_log=False)
"""
LIBRARY = """
import json, sys, time
from sluice.retrieval import load_pipeline
folder, queries, sizes, seconds = json.load(sys.stdin)
bm25, dense = (load_pipeline(folder, name) for name in ("bm25", "dense"))
bm25.search(queries[0], 10)
ones, ends = [], time.perf_counter() + seconds
while (start := time.perf_counter()) < ends:
    bm25.search(queries[len(ones) % len(queries)], 10)
    ones.append(time.perf_counter() - start)
rates = {}
for size in sizes:
    batches = [queries[i:i + size] for i in range(0, len(queries) - size + 1, size)]
    dense.run(batches[0], k=10)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds / 2:
        dense.run(batches[count % len(batches)], k=10)
        count += 1
    rates[size] = count * size / (time.perf_counter() - start)
print(json.dumps([ones, rates]))
"""
SERVE = ["-c", "from sluice.retrieval.cli import main; main()", "-q", "serve"]


class Bench:
    """One run: the folder, its queries, and the ``facts`` measured so far."""

    def __init__(self, options: argparse.Namespace, queries: list[str]) -> None:
        self.folder, self.queries = options.folder, queries
        self.seconds, self.clients = options.seconds, options.clients
        self.windows, self.infinity_program = options.window_ms, options.infinity
        self.log = options.folder / "bench_serve.log"
        self.facts: dict[str, Any] = {}

    def run(self) -> None:
        """Measure everything; what fails is said, and the rest goes on."""
        steps = [self.library, self.low_load, self.saturated, self.many_clients]
        steps += [partial(self.workers, count) for count in (1, 2)]
        steps += [self.naive, *(partial(self.embeddings, window) for window in self.windows)]
        if self.infinity_program:
            steps.append(self.infinity)
        for step in steps:
            try:
                step()
            except (StepError, KeyError) as error:  # or one that this one needs failed
                say(f"not measured: {error}")

    def note(self, name: str, fact: Any) -> Any:
        """Keep a fact and print it."""
        self.facts[name] = fact
        say(f"{name}: {fact}")
        return fact

    def serving(self, *options: str) -> Any:
        """Serve the folder with these options until the block ends."""
        words = [*SERVE, str(self.folder), *options]
        return serving(lambda port: [*words, "--port", str(port)], self.log)

    def bodies(self, pipeline: str) -> list[bytes]:
        """Return a request body for each query."""
        fields = {"pipeline": pipeline, "k": 10, "fields": ["title", "text"]}
        return [json.dumps({"query": query, **fields}).encode() for query in self.queries]

    def searched(self, port: int, pipeline: str, clients: int) -> dict[str, Any]:
        """Return what clients get that ask one query after another."""
        return loaded(
            closed_loop, port=port, path="/search", bodies=self.bodies(pipeline),
            clients=clients, seconds=self.seconds,
        )  # fmt: skip

    def library(self) -> None:
        """Time the library in a process of its own: BM25 one by one, dense in batches."""
        sizes = [LARGE, self.clients, max(1, self.clients // 2)]
        call = json.dumps([str(self.folder), self.queries, sizes, self.seconds])
        words = [sys.executable, "-c", LIBRARY]
        ones, rates = finished(words, call, START + 4 * self.seconds + PATIENCE)
        self.note("library", {"bm25": quantiles(ones), "dense": rates})

    def low_load(self) -> None:
        """Ask BM25 with one client, which never waits."""
        with self.serving() as port:
            self.note("bm25_one_client", self.searched(port, "bm25", 1))

    def saturated(self) -> None:
        """Ask the dense pipeline with as many clients as it can do, and with twice the load."""
        with self.serving() as port:
            for clients in (self.clients, 4 * self.clients):
                full = self.note(f"dense_{clients}_clients", self.searched(port, "dense", clients))
            for share in SHARES:
                loop = loaded(
                    open_loop, port=port, path="/search", bodies=self.bodies("dense"),
                    rate=max(1.0, share * full["rate"]), seconds=self.seconds,
                )  # fmt: skip
                self.note(f"open_{share}", loop)

    def many_clients(self) -> None:
        """Ask with clients enough to fill the library's large batches, and let them wait."""
        with self.serving("--most-wait", WAIT) as port:
            self.note(f"dense_{LARGE}_clients", self.searched(port, "dense", LARGE))

    def workers(self, count: int) -> None:
        """Ask several workers, and measure their memory."""
        with self.serving("--workers", str(count)) as port:
            self.searched(port, "dense", 8)
            facts: dict[str, Any] = {
                name: self.searched(port, name, self.clients) for name in ("bm25", "dense")
            }
            sizes = [memory_of(pid) for pid in family(PROCESSES[-1].pid)]
            facts["pss_mb"], facts["rss_mb"] = (sum(column) for column in zip(*sizes, strict=True))
            self.note(f"workers_{count}", facts)

    def naive(self) -> None:
        """Ask a server of sentence-transformers, one call a request."""
        from sluice.encoders.model_files.locate import model_folder

        model = str(model_folder(MODEL))
        with serving(lambda port: ["-c", NAIVE, str(port), model], self.log, "/health") as port:
            self.note("naive", self.embedded(port))

    def infinity(self) -> None:
        """Ask Infinity, which makes batches of several requests too."""
        from sluice.encoders.model_files.locate import model_folder

        words = ["v2", "--model-id", str(model_folder(MODEL)), "--served-model-name", "dense"]
        words += ["--engine", "torch", "--device", "cpu", "--url-prefix", "/v1", "--port"]
        program = str(self.infinity_program)
        with serving(lambda port: [*words, str(port)], self.log, "/health", program) as port:
            self.note("infinity", self.embedded(port))

    def embeddings(self, window: float) -> None:
        """Ask for vectors, with a window for batches."""
        with self.serving("--window-ms", str(window)) as port:
            self.note(f"embeddings_window_{window:g}", self.embedded(port))

    def embedded(self, port: int) -> dict[str, Any]:
        """Return what clients get that ask for the vectors of texts of mixed lengths."""
        bodies = [
            json.dumps({"input": text, "model": "dense", "truncate": True}).encode()
            for text in mixed_texts(512)
        ]
        return loaded(
            closed_loop, port=port, path="/v1/embeddings", bodies=bodies, clients=self.clients,
            seconds=self.seconds,
        )  # fmt: skip

    def show(self) -> None:
        """Print the table of the issue: what must be, and what is; a dash for what is not known."""
        say("| | is | must |\n|---|---|---|")
        for name, value, must in self.rows():
            try:
                shown = value()
            except (KeyError, ZeroDivisionError, ValueError):
                shown = "-"
            say(f"| {name} | {shown} | {must} |")

    def rows(self) -> list[tuple[str, Callable[[], str], str]]:
        """Return the table's rows, whose values are computed when asked for."""
        facts, few, more = self.facts, self.clients, 4 * self.clients

        def rate(clients: int) -> float:
            return float(facts[f"dense_{clients}_clients"]["rate"])

        def of_batches(size: int) -> float:
            return float(facts["library"]["dense"][str(size)])

        def p99(name: str) -> float:
            return float(facts[name]["p99_ms"])

        def added() -> str:
            own = facts["bm25_one_client"]["p50_ms"] - facts["library"]["bm25"]["p50_ms"]
            return f"{own:.2f} ms"

        def dense(clients: int, *sizes: int) -> Callable[[], str]:
            return lambda: ", ".join(f"{rate(clients) / of_batches(size):.0%}" for size in sizes)

        def embeddings(server: str) -> Callable[[], str]:
            names = [name for name in facts if name.startswith("embeddings")]
            return lambda: (
                f"{max(facts[name]['rate'] for name in names) / facts[server]['rate']:.1f}x"
            )

        def tail() -> str:
            ratios = [p99("open_2.0") / p99(f"dense_{clients}_clients") for clients in (few, more)]
            return ", ".join(f"{ratio:.1f}x" for ratio in ratios)

        def lost() -> str:
            twice = facts["open_2.0"]
            answered = sum(count for status, count in twice["statuses"].items() if status != "0")
            return str(twice["sent"] - answered)

        half = max(1, few // 2)
        return [
            ("BM25 at low load, added", added, "1.5 ms"),
            (
                f"dense, {few} clients, of the library's batches of {half}, {few}, {LARGE}",
                dense(few, half, few, LARGE), "80 %",
            ),
            (f"dense, {more} clients, of batches of {LARGE}", dense(more, LARGE), "80 %"),
            (
                f"dense, {LARGE} clients that may wait {WAIT} s, of batches of {LARGE}",
                dense(LARGE, LARGE), "80 %",
            ),
            (
                f"answered at twice the load, of batches of {LARGE}",
                lambda: f"{facts['open_2.0']['rate'] / of_batches(LARGE):.0%}", "-",
            ),
            ("embeddings, to one call a request", embeddings("naive"), "3x"),
            ("embeddings, to Infinity", embeddings("infinity"), "1.5x"),
            (f"twice the load: p99 of accepted, to {few} and {more} clients'", tail, "3x"),
            ("refused: p99", lambda: f"{facts['open_2.0']['refused_p99_ms']:.0f} ms", "at once"),
            ("lost", lost, "0"),
        ]  # fmt: skip


def mixed_texts(count: int) -> list[str]:
    """Return texts of 4 to 120 words, most of them short."""
    draw = random.Random(3)
    sizes = [min(120, 4 + int(draw.expovariate(1 / 24))) for _ in range(count)]
    return [" ".join(draw.choices(WORDS, k=size)) for size in sizes]


def main() -> None:
    options = parsed(__doc__, {
        "folder": {"nargs": "?", "type": Path, "default": Path("runs/quickstart")},
        "--seconds": (8.0, "of each measurement"), "--clients": 32, "--json": Path,
        "--infinity": {"type": Path, "metavar": "PROGRAM"},
        "--window-ms": {"type": float, "nargs": "*", "default": [0]},
    })  # fmt: skip
    if options.seconds <= 0 or options.clients < 1:
        refuse("--seconds and --clients: expected more than 0")
    check_experiment(options.folder)
    from sluice.retrieval import load_dataset

    interrupted_by_sigterm()
    bench = Bench(options, list(load_dataset("pydocs").queries.values())[:LARGE])
    try:
        bench.run()
    except KeyboardInterrupt:
        say("interrupted")
    finally:
        bench.show()
        write_record(options.json, bench.facts)


if __name__ == "__main__":
    main()
