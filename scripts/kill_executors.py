"""Kills workers, nodes, heads and drivers of a job at random moments, and continues it.

    python scripts/kill_executors.py processes [KILLS] [SEED]
    python scripts/kill_executors.py ray [KILLS] [SEED]

The job encodes a corpus in small tasks and builds two shards. Each round begins it in an empty
folder and kills one victim, in turn a worker, a node, the head and the driver (of local processes a
worker and the driver), at a moment drawn over the time that the undisturbed job takes. A job that
loses a worker or a node must end well; where another one ended, the same command is given again. At
the end of each round vectors and indexes must be those of the undisturbed job in one process, bit
for bit. Ends with 1 where they are not, or where a command failed without saying why.

A node is a process of Ray's on this machine, as `ray.cluster_utils` starts them.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SUPPORT = ROOT / "tests/support"
sys.path[:0] = [str(ROOT), str(SUPPORT)]
os.environ.update(
    dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
    RAY_USAGE_STATS_ENABLED="0",
    RAY_raylet_start_wait_time_s="60",
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # its nodes keep to the loopback
    PYTHONPATH=f"{ROOT}{os.pathsep}{SUPPORT}",
)

TEXTS, SHARD, SECONDS = 240, 16, 0.15  # fifteen tasks of so many seconds, and two shards
LONGEST = 600.0  # seconds of a command
STORE = {"object_store_memory": 80_000_000}
ATTEMPTS = 5  # to start a node: Ray gives its agents 15 seconds
BEGUN = "begun"


def job(folder: Path, kind: str, address: str) -> None:
    """Build the retriever; say when the work begins."""
    from batch_encoder import BatchEncoder, many

    from sluice.retrieval import Encoding, Retriever
    from sluice.retrieval.execution import LocalExecutor, ProcessExecutor, RayExecutor

    executor = {
        "local": LocalExecutor,
        "processes": lambda: ProcessExecutor(2),
        "ray": lambda: RayExecutor(address, workers=2),
    }[kind]()  # type: ignore[no-untyped-call]
    print(BEGUN, flush=True)
    Retriever.build(
        BatchEncoder(seconds=SECONDS), many(TEXTS), path=folder / "r", shards=2,
        encoding=Encoding(shard=SHARD, cache=folder / "cache"), executor=executor,
    )  # fmt: skip


def bits_of(folder: Path) -> dict[str, bytes]:
    """Return vectors and indexes; one that was complete, and built again, has another number."""
    from struck_encoders import arrays

    return {re.sub(r"/s\d+/", "/", name): data for name, data in arrays(folder).items()}


@dataclass
class Command:
    """The job as a command, while it runs."""

    folder: Path
    kind: str
    address: str = ""
    process: Any = field(init=False)
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.folder.with_suffix(".log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "job", str(self.folder), self.kind, self.address],
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self.process.stdout.readline()

    def end(self) -> int:
        """Wait for its end; return the exit code, 124 where it takes too long."""
        try:
            return int(self.process.wait(LONGEST))
        except subprocess.TimeoutExpired:
            self.process.kill()
            return 124


class Cluster:
    """Ray's nodes on this machine: a head without cores, and two with one."""

    def __init__(self) -> None:
        self.made: Any = None

    def complete(self) -> str:
        """Start what is missing; return the address."""
        from ray.cluster_utils import Cluster as Made

        if self.made is None:
            self.made = Made()
            self._node(num_cpus=0, include_dashboard=False)
        while len(self.made.worker_nodes) < 2:
            self._node(num_cpus=1)
        return str(self.made.address)

    def _node(self, **options: Any) -> None:
        for attempt in range(ATTEMPTS):
            try:
                self.made.add_node(**options, **STORE)
                return
            except (Exception, SystemExit):
                if attempt == ATTEMPTS - 1:
                    raise
                if not self.made.head_node:
                    self.close()
                    from ray.cluster_utils import Cluster as Made

                    self.made = Made()

    def kill_node(self) -> bool:
        """Kill a node that is not the head."""
        node = random.choice(sorted(self.made.worker_nodes, key=id))
        self.made.remove_node(node, allow_graceful=False)
        return True

    def kill_head(self) -> bool:
        """Kill the head, all at once."""
        for each in _processes_of(self.made.head_node):
            _kill(each)
        return True

    def close(self) -> None:
        """End all nodes."""
        if self.made is not None:
            with suppress(Exception):
                for node in [*self.made.worker_nodes, self.made.head_node]:
                    for each in _processes_of(node) if node else ():
                        _kill(each)
                self.made.shutdown()
        self.made = None


def _processes_of(node: Any) -> list[int]:
    return [each.process.pid for kind in node.all_processes.values() for each in kind]


def _kill(number: int) -> bool:
    try:
        os.kill(number, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def workers_of(command: Command) -> list[int]:
    """Return the processes that carry out tasks now."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            text = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            ours = parent == command.process.pid and "execution.worker" in text
            if ours or "ray::remote_answer" in text:
                found.append(int(entry.name))
    return sorted(found)


def kill_worker(command: Command, drawn: random.Random) -> bool:
    """Kill a worker, as soon as there is one."""
    while command.process.poll() is None:
        if found := workers_of(command):
            return _kill(drawn.choice(found))
        time.sleep(0.02)
    return False


def main(kind: str, kills: int, seed: int) -> int:
    victims = ("worker", "driver") if kind == "processes" else ("worker", "node", "head", "driver")
    drawn, counts, faults = random.Random(seed), Counter[str](), 0
    cluster = Cluster()
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        whole = Command(work / "whole", "local")
        assert whole.end() == 0, whole.log.read_text()
        bits = bits_of(work / "whole")
        times = []

        def begin(folder: Path) -> Command:
            return Command(folder, kind, cluster.complete() if kind == "ray" else "")

        try:
            for number in range(2):
                first = begin(work / f"undisturbed-{number}")
                start = time.monotonic()
                assert first.end() == 0, first.log.read_text()
                times.append(time.monotonic() - start)
                assert bits_of(first.folder) == bits, "undisturbed"
            print(f"{kind}: undisturbed {min(times):.1f} s, {len(bits)} files", flush=True)
            for number in range(kills):
                victim = victims[number % len(victims)]
                command = begin(work / f"{number}")
                moment = drawn.uniform(0, min(times))
                time.sleep(moment)
                hit = {
                    "worker": lambda c=command: kill_worker(c, drawn),
                    "node": cluster.kill_node,
                    "head": cluster.kill_head,
                    "driver": lambda c=command: c.process.poll() is None and _kill(c.process.pid),
                }[victim]()
                start = time.monotonic()
                code = command.end()
                line = f"{number + 1}: {victim} at {moment:.1f} s: exit {code}"
                line += f" after {time.monotonic() - start:.1f} s"
                said = (command.log.read_text().strip().splitlines() or [""])[-1]
                survives = victim in ("worker", "node")
                wrong = code not in (0, 1, -9) or (survives and code != 0)
                wrong |= victim == "head" and code != 0 and "the same command" not in said
                if victim == "head":
                    cluster.close()
                again = 0 if code == 0 else begin(command.folder).end()
                same = bits_of(command.folder) == bits
                wrong |= again != 0 or not same
                counts[victim] += 1
                counts["in time"] += bool(hit) and (code != 0 or survives)
                counts["continued"] += code != 0
                faults += wrong
                print(f"{line}; {'continued, ' * (code != 0)}{'same' if same else 'OTHER'} bits"
                      + f" FAULT: {said[:300]}" * wrong, flush=True)  # fmt: skip
                if not wrong:
                    subprocess.run(["rm", "-rf", str(command.folder)], check=True)
        finally:
            cluster.close()
    print(f"{kind}: {kills} kills ({', '.join(f'{n} {v}' for v, n in counts.items())}); "
          f"{faults} faults")  # fmt: skip
    return 1 if faults else 0


if __name__ == "__main__":
    if sys.argv[1] == "job":
        job(Path(sys.argv[2]), sys.argv[3], sys.argv[4])
    else:
        kind, *numbers = sys.argv[1:]
        kills, seed = [*map(int, numbers), 50, 13][:2] if len(numbers) != 1 else (int(*numbers), 13)
        sys.exit(main(kind, kills, seed))
