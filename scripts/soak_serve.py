"""Keeps `sluice serve --workers` under load while documents change and workers are killed.

    python scripts/soak_serve.py runs/quickstart [--minutes 60] [--workers 2] [--kill-every 60]

Works on a copy of the folder. Searches come at Poisson times, whether or not earlier ones were
answered, and a document is replaced, added or deleted every few seconds. After each change the
library opens the folder and answers the same queries: every answer of the service must be that of
its state. Ends with 1 if one was wrong, mixed of two states, or lost, if none could be checked, and
if a killed worker was not replaced; a connection that broke as its worker was killed is asked
again, as clients do, and counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_serve import START, Client, family, memory_of, say

K, DEEPER = 10, 10  # hits asked for, and how many more the library is asked for
NEAR = 2e-3  # of the best score: how far batches of other sizes may move a score
TRIES = 4  # of a request whose connection broke
AFTER_KILL = 5.0  # seconds in which connections break
PATIENCE = 30.0  # seconds for an answer
SHOWN = 10  # seconds between two lines
BAD = ("wrong", "mixed", "lost", "not replaced")


@dataclass
class Soak:
    """One run: what was asked, and what came of it."""

    folder: Path
    port: int
    queries: list[str]
    pipelines: list[str]
    process: subprocess.Popen[bytes]
    counts: Counter[str] = field(default_factory=Counter)
    expected: dict[int, dict[tuple[str, str], Any]] = field(default_factory=dict)
    unchecked: list[tuple[str, str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    memory: list[tuple[float, float, float]] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)
    killed: float = 0.0
    ends: float = 0.0

    async def search(self, client: Client, draw: random.Random) -> None:
        """Ask one query and keep its answer for the check."""
        query, pipeline = draw.choice(self.queries), draw.choice(self.pipelines)
        body = json.dumps({"query": query, "pipeline": pipeline, "k": K}).encode()
        due = time.monotonic()
        status, content = await self.asked(client, "POST", "/search", body)
        if status == 200:
            self.times.append(time.monotonic() - due)
            self.unchecked.append((query, pipeline, json.loads(content)))
        elif status in (429, 503):
            self.counts["refused"] += 1
        elif status:
            self.counts["lost"] += 1
            say(f"status {status}: {content[:300]!r}")

    async def asked(self, client: Client, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Ask, again where the connection broke; status 0 is a lost request."""
        self.counts["requests"] += 1
        for _ in range(TRIES):
            try:
                return await asyncio.wait_for(client.ask(method, path, body), PATIENCE)
            except TimeoutError:
                break
            except (OSError, EOFError):
                recent = time.monotonic() - self.killed < AFTER_KILL
                self.counts["broken by a kill" if recent else "broken"] += 1
                await asyncio.sleep(0.1)
        self.counts["lost"] += 1
        return 0, b""

    async def load(self, rate: float) -> None:
        """Send searches at Poisson times."""
        client, draw, tasks = Client(self.port), random.Random(5), set()
        due = time.monotonic()
        while due < self.ends:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.ensure_future(self.search(client, draw))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            due += draw.expovariate(rate)
        await asyncio.gather(*tasks)

    async def write(self, every: float) -> None:
        """Change a document now and then; note what the library answers after it."""
        client, number = Client(self.port), 0
        while time.monotonic() < self.ends:
            number += 1
            words = " ".join(random.Random(number).sample(" ".join(self.queries).split(), 6))
            document = {"id": f"soak-{number % 7}", "title": "Soak", "text": f"{words} {number}"}
            method, body = "PUT", json.dumps({"documents": [document]}).encode()
            if number % 5 == 0:  # of the change before: it is there
                before = f"soak-{(number - 1) % 7}"
                method, body = "DELETE", json.dumps({"ids": [before]}).encode()
            status, content = await self.asked(client, method, "/documents", body)
            self.counts["writes"] += 1
            if status == 400 and method == "DELETE":  # done already, by a worker that was killed
                status, content = await self.asked(
                    client, "PUT", "/documents", json.dumps({"documents": [document]}).encode()
                )
            if status == 200:
                await self.learn(json.loads(content)["state"])
            else:
                self.counts["writes refused"] += 1
                say(f"write: {status} {content[:300]!r}")
            await asyncio.sleep(every)

    async def learn(self, state: int) -> None:
        """Note the library's answers to all queries in a state, and check what waits for them."""
        self.expected[state] = await asyncio.to_thread(self.answers)
        await asyncio.to_thread(self.check)
        for old in sorted(self.expected)[:-3]:
            del self.expected[old]

    def answers(self) -> dict[tuple[str, str], Any]:
        """Return the library's hits of all queries."""
        from sluice.retrieval import load_pipeline

        own: dict[tuple[str, str], Any] = {}
        for name in self.pipelines:
            pipeline = load_pipeline(self.folder, name)
            hits = pipeline.search(self.queries, K + DEEPER)
            own |= {(name, query): each for query, each in zip(self.queries, hits, strict=True)}
        return own

    def check(self, *, last: bool = False) -> None:
        """Check the answers of states that are known; of others, which a killed worker left."""
        waiting, self.unchecked = self.unchecked, []
        newest = max(self.expected)
        for query, pipeline, answer in waiting:
            state = answer["state"]
            if state > newest and not last:
                self.unchecked.append((query, pipeline, answer))
                continue
            if state in self.expected:
                right = same(answer["hits"], self.expected[state][pipeline, query])
                self.counts["checked" if right else "wrong"] += 1
            else:  # the answer to that change was lost with its worker
                known = [own[pipeline, query] for own in self.expected.values()]
                right = any(same(answer["hits"], hits) for hits in known)
                self.counts["checked by a neighbour" if right else "mixed"] += 1
            if not right:
                say(f"state {state}, {pipeline}, {query!r}: {[h['id'] for h in answer['hits']]}")

    async def kill(self, every: float, workers: int) -> None:
        """Kill a worker now and then, and measure how long there is one less."""
        draw = random.Random(7)
        while time.monotonic() + every < self.ends:
            await asyncio.sleep(every)
            alive = workers_of(self.process.pid)
            if len(alive) < workers:
                continue
            self.killed = time.monotonic()
            self.counts["kills"] += 1
            os.kill(draw.choice(alive), signal.SIGKILL)
            while not await self.all_listen(workers):
                if time.monotonic() - self.killed > START:
                    self.counts["not replaced"] += 1
                    return
                await asyncio.sleep(0.1)
            self.restarts.append(time.monotonic() - self.killed)

    async def all_listen(self, workers: int) -> bool:
        """Return whether each worker has a listening process: its memory has its models."""
        sizes = [memory_of(pid)[1] for pid in workers_of(self.process.pid)]
        return len(sizes) == workers and min(sizes) > 0.7 * max(sizes)

    async def watch(self) -> None:
        """Note and show memory and counts."""
        start = time.monotonic()
        while time.monotonic() < self.ends:
            processes = family(self.process.pid)
            pss, rss = (sum(memory_of(pid)[i] for pid in processes) for i in (0, 1))
            self.memory.append((time.monotonic() - start, pss, rss))
            times = sorted(self.times[-2000:]) or [0.0]
            p50, p99 = (1000 * times[len(times) * q // 100] for q in (50, 99))
            say(
                f"{time.monotonic() - start:6.0f} s  PSS {pss:,.0f} MB (RSS {rss:,.0f})  "
                f"p50 {p50:.0f} p99 {p99:.0f} ms  {dict(self.counts)}"
            )
            await asyncio.sleep(SHOWN)


def same(hits: list[dict[str, Any]], expected: list[Any]) -> bool:
    """Return whether hits are the library's; neighbours of nearly one score may change places."""
    if len(hits) != min(K, len(expected)):
        return False
    near = NEAR * max(1.0, abs(expected[0].score) if expected else 1.0)
    own = {hit.doc_id: hit for hit in expected}
    for hit, at_place in zip(hits, expected, strict=False):
        known = own.get(hit["id"])
        if abs(hit["score"] - at_place.score) > near:
            return False
        if known is None or abs(hit["score"] - known.score) > near:
            return False
        if (hit["text"], hit["title"]) != (known.text, known.title):
            return False
    return True


def workers_of(parent: int) -> list[int]:
    """Return the workers: they lead a process group of their own."""
    own = []
    for pid in family(parent)[1:]:
        try:
            if os.getpgid(pid) == pid:
                own.append(pid)
        except ProcessLookupError:
            continue
    return own


async def soak(run: Soak, options: argparse.Namespace) -> None:
    """Run everything beside each other until the time is over."""
    run.ends = time.monotonic() + 60 * options.minutes
    client = Client(run.port)
    document = {"documents": [{"id": "soak-0", "title": "Soak", "text": "first"}]}
    status, content = await client.ask("PUT", "/documents", json.dumps(document).encode())
    if status != 200:
        sys.exit(f"the first write: {status} {content!r}")
    await run.learn(json.loads(content)["state"])
    await asyncio.gather(
        run.load(options.rate), run.write(options.write_every), run.watch(),
        run.kill(options.kill_every, options.workers),
    )  # fmt: skip
    status, content = await run.asked(client, "PUT", "/documents", json.dumps(document).encode())
    if status == 200:
        await run.learn(json.loads(content)["state"])
    run.check(last=True)


def main() -> None:
    """Run and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill-every", type=float, default=60, help="seconds")
    parser.add_argument("--write-every", type=float, default=5, help="seconds")
    parser.add_argument("--rate", type=float, default=20, help="searches a second")
    parser.add_argument("--pipelines", nargs="*", default=["bm25", "dense", "hybrid"])
    parser.add_argument("--port", type=int, default=8947)
    options = parser.parse_args()
    from sluice.retrieval import load_dataset

    queries = list(load_dataset("pydocs").queries.values())[:12]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "soaked"
        shutil.copytree(options.folder, folder)
        words = ["-c", "from sluice.retrieval.cli import main; main()", "-q", "serve", str(folder)]
        words += ["--port", str(options.port), "--workers", str(options.workers), "--writable"]
        with (Path(place) / "log").open("wb") as log:
            process = subprocess.Popen([sys.executable, *words], stdout=log, stderr=log)
        try:
            wait_for(options.port, process, Path(place) / "log")
            run = Soak(folder, options.port, queries, options.pipelines, process)
            asyncio.run(soak(run, options))
        finally:
            process.terminate()
            code = process.wait(90)
        tail = [line for line in (Path(place) / "log").read_text().splitlines() if line[:1] != "{"]
    half = run.memory[len(run.memory) // 2 :]
    say("\n".join(tail[-20:]))
    say(f"ended with {code}; {dict(run.counts)}")
    say(f"a worker less for {', '.join(f'{each:.1f}' for each in run.restarts)} s")
    if half:
        first, last = half[0][1], half[-1][1]
        say(f"PSS of all processes: half-way {first:,.0f} MB, at the end {last:,.0f} MB")
    bad = {name: run.counts[name] for name in BAD if run.counts[name]}
    if not run.counts["checked"]:
        bad["checked"] = 0
    say(f"bad: {bad}" if bad else "none wrong, mixed or lost")
    sys.exit(1 if bad else 0)


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the service answers."""
    ends = time.monotonic() + START
    while True:
        try:
            status, _ = asyncio.run(Client(port).ask("GET", "/ready"))
            if status == 200:
                return
        except OSError:
            pass
        if time.monotonic() > ends or process.poll() is not None:
            sys.exit(f"the service did not start: {log.read_text()[-2000:]}")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
