"""Carries out tasks in processes of this machine: each in one, or one in several that talk."""

from __future__ import annotations

import json
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.processes import (
    GRACE,
    available_threads,
    cores,
    end,
    end_phrase,
    start,
)
from sluice.encoders.foundation.progress import Advance
from sluice.retrieval.execution import group_member, worker as worker_module
from sluice.retrieval.execution.executor import Crew, Executor, Outcome, Task
from sluice.retrieval.execution.group import TRIES, Group, Order

LOOPBACK = "127.0.0.1"
LOOKS = 0.2  # seconds between two looks at the processes


class ProcessGroup(Group):
    """Trains in several processes of this machine, as torchrun does.

    ``workers`` is how many they are. ``threads`` is how many each of them uses, by default its
    share of the cores. ``tries`` is how often they are started in all where one of them is lost.
    """

    type_name = "processes"

    def __init__(
        self,
        workers: Annotated[int, Ge(1)],
        threads: Annotated[int, Ge(1)] | None = None,
        tries: Annotated[int, Ge(1)] = TRIES,
    ) -> None:
        super().__init__(whole_number(workers, "workers", 1), whole_number(tries, "tries", 1))
        share = max(1, cores() // self.workers)
        self._threads = share if threads is None else whole_number(threads, "threads", 1)

    @property
    def threads(self) -> int:
        """The threads of each process."""
        return self._threads

    def attempt(self, order: Order, work: Path) -> str:
        """Start the processes once; return why one of them ended early, or nothing."""
        with socket.socket() as free:
            free.bind((LOOPBACK, 0))
            port = str(free.getsockname()[1])
        members = [self._start(order, rank, port) for rank in range(self.workers)]
        try:
            while True:
                codes = [member.poll() for member in members]
                early = [code for code in codes if code]
                if early:
                    ended = "it was killed" if early[0] == -9 else f"exit code {early[0]}"
                    return f"process {codes.index(early[0])}: {ended}"
                if all(code == 0 for code in codes):
                    return ""
                time.sleep(LOOKS)
        finally:
            end(members)

    def _start(self, order: Order, rank: int, port: str) -> subprocess.Popen[str]:
        settings = {
            "MASTER_ADDR": LOOPBACK, "MASTER_PORT": port, "RANK": str(rank),
            "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.workers),
            "LOCAL_WORLD_SIZE": str(self.workers),
        }  # fmt: skip
        member = start(
            group_member.__name__, threads=self.threads, settings=settings,
            stdin=subprocess.PIPE, encoding="utf-8",
        )  # fmt: skip
        if member.stdin is not None:  # stays open: its end says that this process is gone
            member.stdin.write(json.dumps(order) + "\n")
            member.stdin.flush()
        return member


class ProcessExecutor(Executor):
    """Carries out tasks in several processes of this machine.

    ``workers`` is how many tasks are under way at a time: one for each core, if left out.
    ``threads`` is how many each of them uses, by default its share of the cores. Vectors have the
    same bits as in one process where that has as many threads.
    """

    type_name = "processes"

    def __init__(
        self,
        workers: Annotated[int, Ge(1)] | None = None,
        threads: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        self.workers = cores() if workers is None else whole_number(workers, "workers", 1)
        share = max(1, available_threads() // self.workers)
        self.threads = share if threads is None else whole_number(threads, "threads", 1)

    @contextmanager
    def crew(self) -> Iterator[Crew]:
        """Yield the processes; each starts with its first task."""
        crew = _Processes(self.workers, self.threads)
        try:
            yield crew
        finally:
            crew.close()


class _Processes(Crew):
    """Each task under way has a thread, which tells a process of it and waits for the answer."""

    def __init__(self, workers: int, threads: int) -> None:
        self.slots, self._threads = workers, threads
        self._idle: list[subprocess.Popen[str]] = []
        self._busy: dict[threading.Thread, subprocess.Popen[str]] = {}
        self._answers: queue.Queue[tuple[Task, str, str]] = queue.Queue()  # or why it was lost

    def submit(self, task: Task) -> None:
        process = self._idle.pop() if self._idle else start(
            worker_module.__name__, self._threads, threads=self._threads,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8",
        )  # fmt: skip
        thread = threading.Thread(target=self._carry_out, args=(task, process), daemon=True)
        self._busy[thread] = process
        thread.start()

    def _carry_out(self, task: Task, process: subprocess.Popen[str]) -> None:
        line = ""
        with suppress(OSError):  # it has ended
            if process.stdin is not None and process.stdout is not None:
                process.stdin.write(task.order + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
        if line.endswith("\n"):  # else cut off by its end
            self._idle.append(process)
            lost = ""
        else:
            (code,) = end([process], GRACE)
            lost = f"it {end_phrase(code)}"
        del self._busy[threading.current_thread()]
        self._answers.put((task, line, lost))

    def next(self, advance: Advance) -> Outcome:
        task, line, lost = self._answers.get()
        return Outcome(task, {}, lost=lost) if lost else Outcome.from_answer(task, line)

    def close(self) -> None:
        """End the processes; a task under way is lost, what it had not completed is removed."""
        busy = dict(self._busy)  # each thread removes its own
        for process in (*busy.values(), *self._idle):
            process.kill()
        for thread in busy:
            thread.join()
        end(self._idle)
        self._idle = []
