"""What carries tasks out: the contract of executors, and the one that works in this process."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from sluice.encoders.foundation.children import error_from
from sluice.encoders.foundation.errors import ModelError, SluiceError
from sluice.encoders.foundation.progress import Advance

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
        """What another process is told, a line of JSON."""
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
