"""Servers in processes of their own, and load on them: for `bench_serve.py` and `soak_serve.py`.

As a program it runs one loop, whose call is JSON on standard input: it shares no interpreter with
what is measured.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from harness import refuse

PROCESSES: list[subprocess.Popen[bytes]] = []  # of servers, the latest last
START = 180  # seconds that a server may take to answer
PATIENCE = 60.0  # seconds for one answer, and for a loop to end beyond its time
STOP = 60  # seconds for a server to end before it is killed


class StepError(Exception):
    """A measurement that did not come to its end."""


class Client:
    """Connections to one address that are kept; a request takes a free one, or opens one."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(self, path: str, body: bytes) -> int:
        """Send a request, read the answer whole and return its status, 0 for none in time."""
        try:
            async with asyncio.timeout(PATIENCE):
                status, _ = await self.ask("POST", path, body)
        except (TimeoutError, OSError, EOFError):
            return 0
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
    client, times, places = Client(port), list[float](), cycle(range(len(bodies)))
    statuses: Counter[int] = Counter()
    ends = time.perf_counter() + seconds

    async def ask() -> None:
        while (start := time.perf_counter()) < ends:
            status = await client.post(path, bodies[next(places)])
            statuses[status] += 1
            if status == 200:
                times.append(time.perf_counter() - start)
            else:
                await asyncio.sleep(0.1)  # refused: clients wait before they ask again

    start = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(clients)))
    rate = len(times) / (time.perf_counter() - start)
    return {"rate": rate, "statuses": dict(statuses), **quantiles(times)}


async def open_loop(
    port: int, path: str, bodies: list[bytes], rate: float, seconds: float
) -> dict[str, Any]:
    """Send requests at Poisson times, whether or not earlier ones were answered."""
    client, draw = Client(port), random.Random(1)
    accepted, refused = list[float](), list[float]()
    statuses: Counter[int] = Counter()

    async def ask(due: float, body: bytes) -> None:
        status = await client.post(path, body)
        statuses[status] += 1
        (accepted if status == 200 else refused).append(time.perf_counter() - due)

    tasks: list[asyncio.Future[None]] = []
    start = due = time.perf_counter()
    ends = due + seconds
    while due < ends:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.ensure_future(ask(due, bodies[len(tasks) % len(bodies)])))
        due += draw.expovariate(rate)
    await asyncio.gather(*tasks)
    return {
        "sent": len(tasks), "rate": len(accepted) / (time.perf_counter() - start),
        "statuses": dict(statuses), "refused_p99_ms": quantiles(refused)["p99_ms"],
        **quantiles(accepted),
    }  # fmt: skip


def quantiles(times: list[float]) -> dict[str, float]:
    """Return the median and the tail of times in milliseconds, zeros of none."""
    if not times:
        return {"p50_ms": 0.0, "p95_ms": 0.0, "p99_ms": 0.0}
    ordered = sorted(times)
    return {
        f"p{q}_ms": round(1000 * ordered[min(len(ordered) - 1, len(ordered) * q // 100)], 3)
        for q in (50, 95, 99)
    }


def check_experiment(folder: Path) -> None:
    """Refuse a folder without an experiment."""
    if not (folder / "experiment.yaml").exists():
        refuse(f"{folder}: no experiment; sluice run configs/quickstart.yaml makes one")


def say(text: str) -> None:
    """Print a line at once: a run takes minutes."""
    print(text, flush=True)


def interrupted_by_sigterm() -> None:
    """Let SIGTERM end the program as Ctrl-C does, so that it shows what it has."""
    # Jobs that a shell runs in the background ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(
    words: Callable[[int], list[str]], log: Path, path: str | None = "/ready",
    program: str = sys.executable,
) -> Iterator[int]:  # fmt: skip
    """Run a server as a process of its own until the block ends; yield its port.

    ``words`` are those behind the program's name, for a port. It answers when ``path`` does, with
    200; a ``path`` of None is any answer to a connection. ``StepError`` if it does not start.
    """
    port = free_port()
    with log.open("w") as stream:
        process = subprocess.Popen([program, *words(port)], stdout=stream, stderr=stream)
    PROCESSES.append(process)
    try:
        ends = time.monotonic() + START
        while not asyncio.run(_answers(port, path)):
            if time.monotonic() > ends or process.poll() is not None:
                raise StepError(f"the server did not start: {log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield port
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> int:
    """End a server, by force if it does not end in time; return its exit code."""
    process.terminate()
    try:
        return process.wait(STOP)
    except subprocess.TimeoutExpired:
        say(f"the server did not end within {STOP} s; it was killed")
        process.kill()
        return process.wait()


async def _answers(port: int, path: str | None) -> bool:
    try:
        if path is not None:
            async with asyncio.timeout(10):
                status, _ = await Client(port).ask("GET", path)
            return status == 200
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
    except (OSError, EOFError, TimeoutError):
        return False
    return True


def loaded(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Run a loop in a process of its own; ``StepError`` if it fails or does not end."""
    arguments["bodies"] = [body.decode() for body in arguments["bodies"]]
    call = json.dumps({"function": function.__name__, "arguments": arguments})
    words, most = [sys.executable, __file__], arguments["seconds"] + 2 * PATIENCE
    facts: dict[str, Any] = finished(words, call, most)
    return facts


def finished(words: list[str], text: str, seconds: float) -> Any:
    """Return the JSON of a program's last line; ``StepError`` if it fails or does not end."""
    try:
        done = subprocess.run(
            words, input=text, capture_output=True, text=True, check=True, timeout=seconds
        )
    except subprocess.CalledProcessError as error:
        raise StepError(error.stderr[-2000:]) from None
    except subprocess.TimeoutExpired:
        raise StepError(f"not done within {seconds:.0f} s") from None
    return json.loads(done.stdout.splitlines()[-1])


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


LOOPS = {each.__name__: each for each in (closed_loop, open_loop)}


def main() -> None:
    call = json.load(sys.stdin)
    arguments = call["arguments"]
    arguments["bodies"] = [body.encode() for body in arguments["bodies"]]
    print(json.dumps(asyncio.run(LOOPS[call["function"]](**arguments))))


if __name__ == "__main__":
    main()
