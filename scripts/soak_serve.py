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
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import options as parsed, refuse
from serving_load import (
    PATIENCE,
    PROCESSES,
    START,
    Client,
    StepError,
    check_experiment,
    family,
    interrupted_by_sigterm,
    memory_of,
    say,
    serving,
)

K, DEEPER = 10, 10  # hits asked for, and how many more the library is asked for
NEAR = 2e-3  # of the best score: how far batches of other sizes may move a score
TRIES = 4  # of a request whose connection broke
AFTER_KILL = 5.0  # seconds in which connections break
SHOWN = 10  # seconds between two lines
BAD = ("wrong", "mixed", "lost", "not replaced", "not served", "failed")


@dataclass
class Soak:
    """One run: what was asked, and what came of it."""

    folder: Path
    queries: list[str]
    pipelines: list[str]
    port: int = 0
    parent: int = 0  # process id of the service
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
            if status in (200, 202):
                await self.written(client, status, json.loads(content))
            else:
                self.counts["writes refused"] += 1
                say(f"write: {status} {content[:300]!r}")
            await asyncio.sleep(every)

    async def written(self, client: Client, status: int, answer: dict[str, Any]) -> None:
        """Learn the state of a change, once it is served."""
        if status == 202:
            self.counts["writes served late"] += 1
            say(f"write: {answer['note']}")
        ends = time.monotonic() + PATIENCE
        while status == 202 and time.monotonic() < ends:
            await asyncio.sleep(0.2)
            _, ready = await self.asked(client, "GET", "/ready", b"")
            facts = json.loads(ready or "{}")
            if facts.get("fault") is None and facts.get("state", 0) > max(self.expected, default=0):
                status, answer = 200, facts
        if status == 200:
            await self.learn(answer["state"])
        else:
            self.counts["not served"] += 1

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
            alive = workers_of(self.parent)
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
        sizes = [memory_of(pid)[1] for pid in workers_of(self.parent)]
        return len(sizes) == workers and min(sizes) > 0.7 * max(sizes)

    def bad(self) -> dict[str, int]:
        """Print the summary; return what must not be."""
        say(f"a worker less for {', '.join(f'{each:.1f}' for each in self.restarts) or 0} s")
        if half := self.memory[len(self.memory) // 2 :]:
            first, last = half[0][1], half[-1][1]
            say(f"PSS of all processes: half-way {first:,.0f} MB, at the end {last:,.0f} MB")
        bad = {name: self.counts[name] for name in BAD if self.counts[name]}
        if not self.counts["checked"]:
            bad["checked"] = 0
        say(f"bad: {bad}" if bad else "none wrong, mixed or lost")
        return bad

    async def watch(self) -> None:
        """Note and show memory and counts."""
        start = time.monotonic()
        while time.monotonic() < self.ends:
            processes = family(self.parent)
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
    client = Client(run.port)
    document = {"documents": [{"id": "soak-0", "title": "Soak", "text": "first"}]}
    status, content = await run.asked(client, "PUT", "/documents", json.dumps(document).encode())
    if status != 200:
        raise StepError(f"the first write: {status} {content!r}")
    await run.learn(json.loads(content)["state"])
    run.ends = time.monotonic() + 60 * options.minutes  # not before: it loads the models
    await asyncio.gather(
        run.load(options.rate), run.write(options.write_every), run.watch(),
        run.kill(options.kill_every, options.workers),
    )  # fmt: skip
    status, content = await run.asked(client, "PUT", "/documents", json.dumps(document).encode())
    if status == 200:
        await run.learn(json.loads(content)["state"])
    run.check(last=True)


def main() -> None:
    options = parsed(__doc__, {
        "folder": {"nargs": "?", "type": Path, "default": Path("runs/quickstart")},
        "--minutes": 60.0, "--workers": 2, "--kill-every": (60.0, "seconds"),
        "--write-every": (5.0, "seconds"), "--rate": (20.0, "searches a second"),
        "--pipelines": ["bm25", "dense", "hybrid"],
    })  # fmt: skip
    if min(options.minutes, options.kill_every, options.write_every, options.rate) <= 0:
        refuse("--minutes, --kill-every, --write-every, --rate: expected more than 0")
    check_experiment(options.folder)
    from sluice.retrieval import load_dataset

    interrupted_by_sigterm()
    queries = list(load_dataset("pydocs").queries.values())[:12]
    with tempfile.TemporaryDirectory() as place:
        folder, log = Path(place) / "soaked", Path(place) / "log"
        shutil.copytree(options.folder, folder)
        run = Soak(folder, queries, options.pipelines)
        words = ["-c", "from sluice.retrieval.cli import main; main()", "-q", "serve", str(folder)]
        words += ["--workers", str(options.workers), "--writable"]
        try:
            with serving(lambda port: [*words, "--port", str(port)], log) as run.port:
                run.parent = PROCESSES[-1].pid
                asyncio.run(soak(run, options))
        except KeyboardInterrupt:
            say("interrupted")
        except Exception:
            traceback.print_exc()
            run.counts["failed"] += 1
        lines = log.read_text().splitlines() if log.exists() else []
    say("\n".join([line for line in lines if line[:1] != "{"][-20:]))
    say(f"ended with {PROCESSES[-1].returncode if PROCESSES else None}; {dict(run.counts)}")
    sys.exit(1 if run.bad() else 0)


if __name__ == "__main__":
    main()
