"""Measures `sluice serve` against the library and a server without batches, in one run.

    python scripts/bench_serve.py runs/quickstart [--seconds 8] [--clients 32] [--json FILE]

Needs the extras serve and offline, and sentence-transformers. Measures what the service adds to a
BM25 search at low load; dense searches at saturation beside the library's own batches, of all
queries and of as many as there are clients; an open loop of Poisson arrivals at shares of the
saturation, where latency counts from when a request was due; one and several workers, with their
memory; and mixed lengths at /v1/embeddings beside sentence-transformers with one call a request.
Ends with the table of issue 22.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MODEL = "sentence-transformers/all-MiniLM-L6-v2"  # as the dense retriever of the quickstart
PROCESSES: list[subprocess.Popen[bytes]] = []  # of servers, the latest last
START = 180  # seconds that a server may take to answer
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


class Client:
    """Connections to one address that are kept; a request takes a free one, or opens one."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(self, path: str, body: bytes) -> int:
        """Send a request, read the answer whole and return its status."""
        status, _ = await self.ask("POST", path, body)
        return status

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Send a request; return the status and the body of its answer."""
        while self._free and self._free[-1][0].at_eof():  # the server closed it meanwhile
            self._free.pop()[1].close()
        if self._free:
            reader, writer = self._free.pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        try:
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            status = int(answer.split(b" ", 2)[1])
            length = int(answer.split(b"content-length:")[1].split(b"\r\n")[0])
            content = await reader.readexactly(length)
        except BaseException:
            writer.close()
            raise
        if b"connection: close" in answer:
            writer.close()
        else:
            self._free.append((reader, writer))
        return status, content


async def closed_loop(
    port: int, path: str, bodies: list[bytes], clients: int, seconds: float
) -> dict[str, Any]:
    """Let clients ask one request after another; what is answered in the time, and how fast."""
    client, times, places = Client(port), [], iter(_endless(len(bodies)))
    ends = time.perf_counter() + seconds

    async def ask() -> None:
        while time.perf_counter() < ends:
            start = time.perf_counter()
            if await client.post(path, bodies[next(places)]) == 200:
                times.append(time.perf_counter() - start)

    start = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(clients)))
    return {"rate": len(times) / (time.perf_counter() - start), **_quantiles(times)}


async def open_loop(
    port: int, path: str, bodies: list[bytes], rate: float, seconds: float
) -> dict[str, Any]:
    """Send requests at Poisson times, whether or not earlier ones were answered."""
    client, draw = Client(port), random.Random(1)
    accepted: list[float] = []
    statuses: dict[int, int] = {}
    refused: list[float] = []

    async def ask(due: float, body: bytes) -> None:
        status = await client.post(path, body)
        statuses[status] = statuses.get(status, 0) + 1
        (accepted if status == 200 else refused).append(time.perf_counter() - due)

    tasks: list[asyncio.Future[None]] = []
    due = time.perf_counter()
    ends = due + seconds
    while due < ends:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.ensure_future(ask(due, bodies[len(tasks) % len(bodies)])))
        due += draw.expovariate(rate)
    await asyncio.gather(*tasks)
    return {
        "sent": len(tasks),
        "statuses": statuses,
        "refused_p99_ms": _quantiles(refused)["p99_ms"],
        **_quantiles(accepted),
    }


def say(text: str) -> None:
    """Print a line at once: a run takes minutes."""
    print(text, flush=True)


def _endless(size: int) -> Iterator[int]:
    while True:
        yield from range(size)


def _quantiles(times: list[float]) -> dict[str, float]:
    if not times:
        return {"p50_ms": 0.0, "p95_ms": 0.0, "p99_ms": 0.0}
    ordered = sorted(times)
    return {
        f"p{q}_ms": round(1000 * ordered[min(len(ordered) - 1, len(ordered) * q // 100)], 3)
        for q in (50, 95, 99)
    }


@contextmanager
def serving(port: int, words: list[str], log: Path) -> Iterator[int]:
    """Run a server as a process of its own until the block ends."""
    with log.open("w") as stream:
        process = subprocess.Popen([sys.executable, *words], stdout=stream, stderr=stream)
    PROCESSES.append(process)
    try:
        ends = time.monotonic() + START
        while True:
            try:
                asyncio.run(_health(port))
                break
            except OSError:
                if time.monotonic() > ends or process.poll() is not None:
                    sys.exit(f"the server did not start: {log.read_text()[-2000:]}")
                time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        process.wait(60)


async def _health(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()


def loaded(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Run a loop in a process of its own, which shares no lock with what is measured."""
    arguments["bodies"] = [body.decode() for body in arguments["bodies"]]
    call = json.dumps({"function": function.__name__, "arguments": arguments})
    words = [sys.executable, __file__, "--loop"]
    done = subprocess.run(words, input=call, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def in_process(folder: Path, queries: list[str], clients: int, seconds: float) -> dict[str, Any]:
    """Time the library in a process of its own: BM25 one by one, dense in batches."""
    code = f"""
import json, time
from sluice.retrieval import load_pipeline
queries = json.loads({json.dumps(json.dumps(queries))})
bm25, dense = (load_pipeline({str(folder)!r}, name) for name in ("bm25", "dense"))
def timed(function, least):
    function(queries[0]); times = []; ends = time.perf_counter() + least; place = 0
    while time.perf_counter() < ends:
        start = time.perf_counter(); function(queries[place % len(queries)]); place += 1
        times.append(time.perf_counter() - start)
    return times
ones = timed(lambda query: bm25.search(query, 10), {seconds})
rates = []
for size in (len(queries), {clients}, {clients} // 2):
    batches = [queries[i:i + size] for i in range(0, len(queries) - size + 1, size)]
    dense.run(batches[0], k=10); start = time.perf_counter(); count = 0
    while time.perf_counter() - start < {seconds} / 2:
        dense.run(batches[count % len(batches)], k=10); count += 1
    rates.append(count * size / (time.perf_counter() - start))
print(json.dumps([ones, rates]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ones, rates = json.loads(done.stdout.splitlines()[-1])
    return {"bm25": _quantiles(ones), "dense_rate": rates[0], "small_rates": rates[1:]}


def family(parent: int) -> list[int]:
    """Return a process and all its descendants."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(fields[1])
    found = [parent]
    for pid in found:
        found += [child for child, of in parents.items() if of == pid]
    return found


def memory_of(pid: int) -> tuple[float, float]:
    """Return a process's proportional and resident memory in MB, zeros for one that ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0, 0.0
    sizes = {line.split(":")[0]: line.split()[1] for line in lines[1:]}
    return float(sizes.get("Pss", 0)) / 1024, float(sizes.get("Rss", 0)) / 1024


def bodies_of(texts: list[str], **fields: Any) -> list[bytes]:
    """Return a request body for each query."""
    return [json.dumps({"query": text, **fields}).encode() for text in texts]


def mixed_texts(count: int) -> list[str]:
    """Return texts of 4 to 120 words, most of them short."""
    draw = random.Random(3)
    words = [
        "gold",
        "river",
        "stone",
        "water",
        "sluice",
        "vector",
        "index",
        "term",
        "rank",
        "score",
        "date",
        "file",
        "path",
        "text",
    ]
    sizes = [min(120, 4 + int(draw.expovariate(1 / 24))) for _ in range(count)]
    return [" ".join(draw.choices(words, k=size)) for size in sizes]


def own_words(words: list[str], port: int) -> list[str]:
    """Return a command with another port."""
    return [*words[: words.index("--port")], "--port", str(port)]


def show(facts: dict[str, Any], clients: int) -> None:
    """Print the table of the issue: what must be, and what is."""
    library, full = facts["library"], facts[f"dense_{clients}_clients"]
    more, twice = facts[f"dense_{4 * clients}_clients"], facts["open_2.0"]
    added = facts["bm25_one_client"]["p50_ms"] - library["bm25"]["p50_ms"]
    ours = max(facts[name]["rate"] for name in facts if name.startswith("embeddings"))
    lost = twice["sent"] - sum(count for status, count in twice["statuses"].items() if status)
    least = min(full["rate"] / rate for rate in library["small_rates"])
    rows = [
        ("BM25 at low load, added", f"{added:.2f} ms", "1.5 ms"),
        (f"dense, {clients} clients", f"{full['rate'] / library['dense_rate']:.0%}", "80 %"),
        (f"the same, of the library's batches of {clients // 2}, {clients}", f"{least:.0%}", "-"),
        (f"dense, {4 * clients} clients", f"{more['rate'] / library['dense_rate']:.0%}", "80 %"),
        ("embeddings, to one call a request", f"{ours / facts['naive']['rate']:.1f}x", "3x"),
        (
            f"twice the load: p99 of accepted, to {clients} and {4 * clients} clients'",
            f"{twice['p99_ms'] / full['p99_ms']:.1f}x, {twice['p99_ms'] / more['p99_ms']:.1f}x",
            "3x",
        ),
        ("refused: p99", f"{twice['refused_p99_ms']:.0f} ms", "at once"),
        ("lost", str(lost), "0"),
    ]
    say("| | is | must |\n|---|---|---|")
    for row in rows:
        say("| " + " | ".join(row) + " |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--window-ms", type=float, nargs="*", default=[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--loop", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loop:
        call = json.load(sys.stdin)
        arguments = call["arguments"]
        arguments["bodies"] = [body.encode() for body in arguments["bodies"]]
        print(json.dumps(asyncio.run(globals()[call["function"]](**arguments))))
        return
    from sluice.encoders.model_files.locate import model_folder
    from sluice.retrieval import load_dataset

    queries = list(load_dataset("pydocs").queries.values())[:256]
    seconds, port, log = options.seconds, 8931, options.folder / "bench_serve.log"
    facts: dict[str, Any] = {
        "library": in_process(options.folder, queries, options.clients, seconds)
    }
    library = facts["library"]
    one, half = library["small_rates"]
    say(
        f"library: BM25 {library['bm25']}, dense {library['dense_rate']:.0f} queries/s; "
        f"in batches of {options.clients} {one:.0f}, of {options.clients // 2} {half:.0f}"
    )
    words = ["-c", "from sluice.retrieval.cli import main; main()", "-q", "serve"]
    words += [str(options.folder), "--port", str(port)]
    short = {"k": 10, "fields": ["title", "text"]}
    with serving(port, words, log):
        one = bodies_of(queries, pipeline="bm25", **short)
        low = loaded(closed_loop, port=port, path="/search", bodies=one, clients=1, seconds=seconds)
        facts["bm25_one_client"] = low
        added = low["p50_ms"] - library["bm25"]["p50_ms"]
        say(f"BM25, one client: {low}; the service adds {added:.2f} ms at the median")
        for clients in (options.clients, 4 * options.clients):
            dense = bodies_of(queries, pipeline="dense", **short)
            full = loaded(
                closed_loop, port=port, path="/search", bodies=dense, clients=clients,
                seconds=seconds,
            )  # fmt: skip
            facts[f"dense_{clients}_clients"] = full
            share = full["rate"] / library["dense_rate"]
            say(f"dense, {clients} clients: {full}; {share:.0%} of the library's batches")
        for share in (0.5, 0.8, 2.0):
            loop = loaded(
                open_loop, port=port, path="/search", bodies=dense, rate=share * full["rate"],
                seconds=seconds,
            )  # fmt: skip
            facts[f"open_{share}"] = loop
            say(f"dense, open loop at {share:g} of saturation: {loop}")
    for workers in (1, 2):
        with serving(port + 2, [*own_words(words, port + 2), "--workers", str(workers)], log) as at:
            loaded(closed_loop, port=at, path="/search", bodies=dense, clients=8, seconds=3)
            facts[f"workers_{workers}"] = {
                name: loaded(
                    closed_loop, port=at, path="/search", clients=options.clients, seconds=seconds,
                    bodies=bodies_of(queries, pipeline=name, **short),
                )
                for name in ("bm25", "dense")
            }  # fmt: skip
            sizes = [memory_of(pid) for pid in family(PROCESSES[-1].pid)]
            memory = {"pss_mb": sum(pss for pss, _ in sizes), "rss_mb": sum(r for _, r in sizes)}
            facts[f"workers_{workers}"]["memory"] = memory
            say(f"workers {workers}: {facts[f'workers_{workers}']}")
    texts = mixed_texts(512)
    own = [
        json.dumps({"input": text, "model": "dense", "truncate": True}).encode() for text in texts
    ]
    embed: dict[str, Any] = {"path": "/v1/embeddings", "clients": options.clients}
    embed |= {"bodies": own, "seconds": seconds}
    with serving(port + 1, ["-c", NAIVE, str(port + 1), str(model_folder(MODEL))], log):
        facts["naive"] = loaded(closed_loop, port=port + 1, **embed)
        say(f"embeddings, sentence-transformers, no batches: {facts['naive']}")
    for window in options.window_ms:
        with serving(port, [*words, "--window-ms", str(window)], log):
            ours = loaded(closed_loop, port=port, **embed)
        facts[f"embeddings_window_{window:g}"] = ours
        ratio = ours["rate"] / facts["naive"]["rate"]
        say(f"embeddings, sluice, window {window:g} ms: {ours}; {ratio:.2f} times as many")
    show(facts, options.clients)
    if options.json:
        options.json.write_text(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
