"""Processes that carry out one task together, as those of torchrun do: the contract, and tries."""

from __future__ import annotations

import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from sluice.encoders.foundation.disk.files import replaced_file
from sluice.encoders.foundation.errors import ConfigError, ModelError, SluiceError
from sluice.encoders.foundation.processes import describe_error, limit_threads
from sluice.retrieval.execution.executor import Outcome, Task, carry_out

LAUNCHERS: Final[Mapping[str, str]] = {
    "processes": "sluice.retrieval.execution.processes:ProcessGroup",
    "ray": "sluice.retrieval.execution.ray_group:RayGroup",
}
TRIES: Final = 3
REPORT: Final = "launch-error.json"  # what a member failed with, where another try would not help

log = logging.getLogger("sluice")


class Order(NamedTuple):
    """What every member of a group gets: the task, its threads, and where to report."""

    kind: str
    args: dict[str, Any]
    threads: int
    report: str


class Group(ABC):
    """Carries out one task in several processes that talk to each other.

    Each runs the whole task's function and knows its number, as torch.distributed has it. Where one
    is lost, all are started again, and the task continues from what it has kept.
    """

    type_name: ClassVar[str]

    def __init__(self, workers: int, tries: int) -> None:
        self.workers, self.tries = workers, tries

    def carry_out(self, task: Task, work: Path) -> int:
        """Carry out a task; return how often processes were lost and all were started again.

        Raises the error that the task ended with, or ``ModelError`` after too many losses.
        """
        work.mkdir(parents=True, exist_ok=True)
        report = work.absolute() / REPORT
        for lost in range(self.tries):
            report.unlink(missing_ok=True)
            order = Order(task.kind, dict(task.args), self.threads, str(report))
            why = self.attempt(order, work)
            if report.exists():
                name, message = json.loads(report.read_text(encoding="utf-8"))
                report.unlink()
                raise Outcome.failed(task, name, message).error or SluiceError(message)
            if not why:
                return lost
            if lost + 1 < self.tries:
                log.warning(
                    "%s: a process is lost (%s); all are started again, and continue from the last "
                    "checkpoint", task.name, why,
                )  # fmt: skip
        raise ModelError(
            f"{task.name}: processes were lost {self.tries} times, at last because {why}; most "
            "often there is too little memory. What is complete is kept: the same command "
            "continues from there"
        )

    @property
    @abstractmethod
    def threads(self) -> int:
        """The threads of each process."""

    @abstractmethod
    def attempt(self, order: Order, work: Path) -> str:
        """Start the processes once; return why one of them ended early, or nothing."""


def join(order: Order) -> None:
    """Carry out an order as a member of a group, and report an error that another try would meet.

    The first member logs what it does, the others what they warn of.
    """
    first = os.environ.get("RANK", "0") == "0"
    logging.basicConfig(level=logging.INFO if first else logging.WARNING, format="%(message)s")
    limit_threads(order.threads)
    try:
        carry_out(order.kind, order.args)
    except SluiceError as error:
        with replaced_file(Path(order.report)) as stream:
            stream.write(json.dumps(describe_error(error)).encode())
        raise


def refuse_within() -> None:
    """Raise ``ConfigError`` in a process that torchrun has started."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "launch: torchrun has started the processes already; leave launch out, or torchrun"
        )
