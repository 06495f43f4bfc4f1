"""Carries out tasks in processes of this machine, which are replaced where one dies."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, NamedTuple

from annotated_types import Ge

from sluice.encoders.foundation.children import (
    GRACE,
    available_threads,
    end,
    end_phrase,
    start,
)
from sluice.encoders.foundation.machine import cores
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.progress import Advance
from sluice.retrieval.execution import worker as worker_module
from sluice.retrieval.execution.executor import Crew, Executor, Outcome, Task


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


class _Worker(NamedTuple):
    process: subprocess.Popen[str]
    reader: threading.Thread


class _Processes(Crew):
    def __init__(self, workers: int, threads: int) -> None:
        self.slots, self._threads = workers, threads
        self._idle: list[int] = []
        self._workers: dict[int, _Worker] = {}
        self._tasks: dict[int, Task] = {}
        self._answers: queue.Queue[tuple[int, str]] = queue.Queue()  # (worker, "") is its end

    def submit(self, task: Task) -> None:
        number = self._idle.pop() if self._idle else self._start()
        self._tasks[number] = task
        stream = self._workers[number].process.stdin
        with suppress(OSError):  # its end is read from its answers
            if stream is not None:
                stream.write(task.order + "\n")
                stream.flush()

    def next(self, advance: Advance) -> Outcome:
        while True:
            number, line = self._answers.get()
            task = self._tasks.pop(number, None)
            if not line:
                worker = self._workers.pop(number, None)
                why = "it was ended" if worker is None else _end(worker)  # by ``close``
                if number in self._idle:
                    self._idle.remove(number)
                if task is not None:
                    return Outcome(task, {}, lost=why)
            elif task is not None:
                self._idle.append(number)
                return Outcome.from_answer(task, line)

    def _start(self) -> int:
        number = max(self._workers, default=-1) + 1
        process = start(
            worker_module.__name__, self._threads, threads=self._threads,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8",
        )  # fmt: skip
        reader = threading.Thread(target=self._read, args=(number, process), daemon=True)
        self._workers[number] = _Worker(process, reader)
        reader.start()
        return number

    def _read(self, number: int, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            if line.endswith("\n"):  # else cut off by its end
                self._answers.put((number, line))
        self._answers.put((number, ""))

    def close(self) -> None:
        """End the processes; a task under way is lost, what it had not completed is removed."""
        workers = list(self._workers.values())  # a thread that waits in ``next`` removes its own
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            _end(worker)
        self._workers = {}


def _end(worker: _Worker) -> str:
    """Wait for a process that ends; return how it did."""
    worker.reader.join()
    (code,) = end([worker.process], GRACE)
    return f"it {end_phrase(code)}"
