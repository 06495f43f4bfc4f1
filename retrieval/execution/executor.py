"""Executors: how a task list is planned, who carries it out, and what a task's name calls."""

from __future__ import annotations

import json
import logging
import os
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.errors import IndexFormatError, ModelError, SluiceError
from sluice.encoders.foundation.numbers import duration, plural
from sluice.encoders.foundation.processes import error_from
from sluice.encoders.foundation.progress import Advance, Rate, progress

# Of higher rooms: they are imported where a task of theirs is carried out.
TASKS: Final[Mapping[str, str]] = {
    "encode": "sluice.retrieval.retrievers.corpus.vectors.encoding_tasks:encode_task",
    "index_shard": "sluice.retrieval.retrievers.corpus.vectors.index_tasks:index_task",
    "lists": "sluice.retrieval.experiments.output.saved_pipeline:lists_task",
    "pairs": "sluice.retrieval.experiments.tuning.pair_tasks:pairs_task",
    "score": "sluice.retrieval.training_data.teachers.scoring_tasks:score_task",
    "train": "sluice.retrieval.experiments.suites.training_jobs:train_task",
    "mine": "sluice.retrieval.experiments.suites.training_jobs:mine_task",
    "evaluate": "sluice.retrieval.experiments.suites.training_jobs:evaluate_task",
}


def carry_out(kind: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a task; return the facts it reports, with its ``seconds``."""
    start = time.perf_counter()
    facts: dict[str, Any] = resolve(TASKS[kind])(**args)
    return {"seconds": time.perf_counter() - start, **facts}


EXECUTORS: Final[Mapping[str, str]] = {
    "local": "sluice.retrieval.execution.executor:LocalExecutor",
    "processes": "sluice.retrieval.execution.processes:ProcessExecutor",
    "ray": "sluice.retrieval.execution.on_ray:RayExecutor",
}
Facts = dict[str, Any]  # what a task reports, in a few values that JSON has


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of work from files to one file or folder, which is there as a whole or not at all.

    ``kind`` is a name of the table of ``tasks`` and ``args`` the arguments of its function: paths
    and a few values that JSON has. ``here`` does the same in this process. ``prepare`` writes the
    input just before the task is handed out, ``finish`` removes it. With ``kept`` an ``output``
    that exists is that of a former run, and the task is not carried out again. With ``alone`` the
    others do not need it: one whose workers are lost again and again reports that as ``failed``.
    """

    kind: str
    name: str
    args: Mapping[str, Any]
    output: Path
    here: Callable[[Advance], Facts]
    size: int = 1
    prepare: Callable[[], None] = field(default=_nothing)
    finish: Callable[[], None] = field(default=_nothing)
    kept: bool = True
    alone: bool = False

    @property
    def order(self) -> str:
        """An order to another process, a line of JSON."""
        return json.dumps({"kind": self.kind, "args": dict(self.args)})

    @property
    def is_done(self) -> bool:
        """Whether the output is there from before."""
        return self.kept and self.output.exists()


class Outcome(NamedTuple):
    """How a task ended: with ``facts``, with an ``error``, or with its worker ``lost``, and why."""

    task: Task
    facts: Facts
    error: SluiceError | None = None
    lost: str = ""

    @classmethod
    def failed(cls, task: Task, name: str, message: str) -> Outcome:
        """Return the outcome of a task that raised the exception ``name`` in another process."""
        error = error_from(name, message)
        foreign = ModelError(f"{task.name}: a worker failed with {name}: {message}")
        return cls(task, {}, error or foreign)

    @classmethod
    def from_answer(cls, task: Task, line: str) -> Outcome:
        """Return the outcome that the answer of another process tells, a line of JSON."""
        answer = json.loads(line)
        if "error" in answer:
            return cls.failed(task, *answer["error"])
        return cls(task, answer["facts"])


class Crew(ABC):
    """Workers that are running: they are given tasks, and tell how each ended."""

    slots = 1  # tasks at a time

    @abstractmethod
    def submit(self, task: Task) -> None:
        """Hand out a task; at most ``slots`` are under way."""

    @abstractmethod
    def next(self, advance: Advance) -> Outcome:
        """Wait until one of the tasks ends; one in this process reports its progress."""

    def close(self) -> None:  # noqa: B027 - those of this process have ended
        """End the tasks that are under way in other processes; they are lost."""


class Executor(ABC):
    """Carries out the tasks of a plan."""

    type_name: ClassVar[str]
    remote: ClassVar[bool] = True  # whether tasks leave this process
    gives_devices = False  # whether workers are given GPUs, which they find by themselves

    @abstractmethod
    def crew(self) -> AbstractContextManager[Crew]:
        """Start the workers; they end with the block, and tasks under way with them."""


class LocalExecutor(Executor):
    """Carries out one task after the other in this process."""

    type_name = "local"
    remote = False

    def __repr__(self) -> str:
        return "LocalExecutor()"

    @contextmanager
    def crew(self) -> Iterator[Crew]:
        """Yield this process."""
        yield _Here()


class _Here(Crew):
    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()

    def submit(self, task: Task) -> None:
        self._tasks.append(task)

    def next(self, advance: Advance) -> Outcome:
        task = self._tasks.popleft()
        done = 0

        def counted(amount: int = 1) -> None:
            nonlocal done
            done += amount
            advance(amount)

        facts = task.here(counted)
        advance(task.size - done)
        return Outcome(task, facts)


LOCAL: Final = LocalExecutor()


log = logging.getLogger("sluice")

TRIES = 5  # of a task whose worker is lost each time
SETTLING = 90.0  # seconds that an output of another machine is waited for


@dataclass(frozen=True, slots=True)
class Plan:
    """Tasks that are independent of each other; together they have ``unit``s as their sizes say."""

    label: str
    tasks: Sequence[Task]
    unit: str = "tasks"
    also: Rate | None = None
    show: bool = True


class Estimate(NamedTuple):
    """What the open tasks of a plan will take, by the first that was carried out."""

    label: str
    tasks: int
    done: int
    workers: int
    seconds: float
    disk_bytes: int

    def __str__(self) -> str:
        text = f"{self.label}: {plural(self.tasks, 'task')}"
        if self.done:
            text += f", {self.done:,} done"
        beside = "" if self.workers == 1 else f" with {self.workers:,} at a time"
        return (
            f"{text}; about {duration(self.seconds)} for the rest{beside}, "
            f"{self.disk_bytes / 1e6:,.1f} MB on disk in all"
        )


class Planned(Exception):
    """Ends a job that is only planned, see ``planning``; its text says what the job will take."""


_PLANNING: ContextVar[bool] = ContextVar("planning", default=False)


@contextmanager
def planning() -> Iterator[None]:
    """Carry out the first open task of a plan only, then raise ``Planned`` with the estimate."""
    token = _PLANNING.set(True)
    try:
        yield
    finally:
        _PLANNING.reset(token)


@contextmanager
def unplanned() -> Iterator[None]:
    """Carry out all tasks in the block, also where the job around it is only planned."""
    token = _PLANNING.set(False)
    try:
        yield
    finally:
        _PLANNING.reset(token)


def estimate_of(job: Callable[[], object]) -> str:
    """Begin a job as in ``planning``; return the estimate, its first task done."""
    with planning():
        try:
            job()
        except Planned as plan:
            return str(plan)
    return "nothing is left to do"


def end_planning(label: str) -> None:
    """Raise ``Planned`` where a job is only planned and has come to work that is not a task."""
    if _PLANNING.get():
        raise Planned(f"{label}: no open task; the rest is done in this process")


def begin_alone(label: str, executor: Executor, why: str) -> None:
    """Begin work without a plan: warn where the executor was to share it, or end the planning."""
    if executor.remote:
        log.warning(
            "%s: %s, so this process does it alone; executor: %s shares out other work",
            label, why, executor.type_name,
        )  # fmt: skip
    end_planning(label)


def run_plan(plan: Plan, executor: Executor) -> dict[str, Facts]:
    """Carry out the open tasks of a plan; return what each reported, by its name.

    A task whose worker is lost is given to another, up to ``TRIES`` times. The first error ends
    the plan, except that of a task ``alone``, which is among its facts. What is complete is kept,
    so that the same call continues from there.
    """
    waiting = deque(task for task in plan.tasks if not task.is_done)
    done_before = len(plan.tasks) - len(waiting)
    measure = _PLANNING.get()
    if not waiting:
        return {}
    facts: dict[str, Facts] = {}
    tries: Counter[str] = Counter()
    busy, estimated = 0, False
    total = sum(task.size for task in waiting)
    with (
        executor.crew() as crew,
        progress(plan.label, total, plan.unit, show=plan.show, also=plan.also) as advance,
    ):
        while waiting or busy:
            while waiting and busy < (1 if measure else crew.slots):
                task = waiting.popleft()
                task.prepare()
                crew.submit(task)
                busy += 1
            outcome = crew.next(advance)
            task = outcome.task
            busy -= 1
            if outcome.lost:
                tries[task.name] += 1
                if tries[task.name] < TRIES:
                    log.warning(
                        "%s: its worker is lost (%s); the task is given to another",
                        task.name, outcome.lost,
                    )  # fmt: skip
                    waiting.appendleft(task)
                    continue
                if not task.alone:
                    raise ModelError(f"{task.name}: {_lost_for_good(outcome.lost)}")
                outcome = Outcome(task, {"failed": _lost_for_good(outcome.lost)})
            if outcome.error is not None:
                raise outcome.error
            failed = outcome.facts.get("failed")
            if not failed and not arrived(task.output, SETTLING if executor.remote else 0):
                raise IndexFormatError(
                    f"{task.output}: is not here, though {task.name} has ended; every worker must "
                    "see the same folders (a file system that all machines share)"
                )
            task.finish()
            if executor.remote:
                advance(task.size)
            facts[task.name] = outcome.facts
            if failed:  # its time says nothing about the others
                log.warning("%s: %s", task.name, failed)
            elif not estimated and (measure or (executor.remote and plan.show)):
                estimated = True
                _tell(_estimated(plan, outcome, done_before, crew.slots))
    return facts


def _tell(estimate: Estimate) -> None:
    if _PLANNING.get():
        raise Planned(str(estimate))
    log.info("%s", estimate)


def arrived(path: Path, patience: float) -> bool:
    """Wait until an output that another machine has written is seen here.

    File systems of networks remember for up to a minute that a file is not there.
    """
    end = time.monotonic() + patience
    while not path.exists():
        if time.monotonic() >= end:
            return False
        time.sleep(min(1.0, patience))
        with suppress(OSError):  # to open the folder is to ask for its content anew
            os.listdir(path.parent)  # noqa: PTH208
    return True


def _lost_for_good(why: str) -> str:
    return (
        f"its worker was lost {TRIES} times, at last because {why}; most often there is too little "
        "memory: use fewer workers, or smaller tasks. What is complete is kept: the same command "
        "continues from there"
    )


def _estimated(plan: Plan, outcome: Outcome, done: int, slots: int) -> Estimate:
    first = outcome.task
    seconds = float(outcome.facts.get("seconds", 0.0)) / max(first.size, 1)
    left = [t.size for t in plan.tasks if t.name != first.name and not t.is_done]
    slots = max(1, min(slots, len(left)))
    each = _bytes_of(first.output) / max(first.size, 1)
    return Estimate(
        plan.label,
        len(plan.tasks),
        done + 1,
        slots,
        max(seconds * sum(left) / slots, seconds * max(left, default=0)),
        round(each * sum(task.size for task in plan.tasks)),
    )


def _bytes_of(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
