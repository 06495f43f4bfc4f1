"""Mines negatives again while a model is trained, in another process with a copy of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge

from sluice.encoders.foundation.build import build, check_arguments
from sluice.encoders.foundation.disk.files import read_json, write_json
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.progress import Advance
from sluice.encoders.vectors.pool import transfer_form
from sluice.retrieval.execution.executor import (
    EXECUTORS,
    Crew,
    Executor,
    Facts,
    LocalExecutor,
    Outcome,
    Plan,
    Task,
    run_plan,
)

EPOCH = "epoch"
PROCESS = {"type": "processes"}


@dataclass(frozen=True, slots=True)
class RefreshSettings:
    """When negatives are mined again, and whether training waits for it.

    Mining begins ``every`` so many steps, or at each ``epoch``. With ``lag``, ``max_age`` or
    ``executor`` another process mines while training continues: what it finds is used ``lag`` steps
    later (left out: when the next mining begins), or as soon as it is there, and then never longer
    than ``max_age`` steps after its encoder was copied. ``executor`` is who mines.
    """

    every: Annotated[int, Ge(1)] | Literal["epoch"] = "epoch"
    lag: Annotated[int, Ge(0)] | None = None
    max_age: Annotated[int, Ge(2)] | None = None
    executor: str | dict[str, Any] | None = None

    @classmethod
    def read(cls, value: Any, where: str) -> RefreshSettings:
        """Read the key: a number of steps, ``epoch``, or these settings by name."""
        if not isinstance(value, Mapping):
            if value != EPOCH and (type(value) is not int or value < 1):
                raise ConfigError(
                    f"{where}: {value!r}; expected steps, 1 or more, 'epoch', or {{every: 200, "
                    "lag: 100}"
                )
            return cls(value)
        check_arguments(cls, value, where=where, kind="refresh")
        own = cls(**value)
        every = None if own.every == EPOCH else whole_number(own.every, f"{where}.every", 1)
        if own.lag is not None:
            whole_number(own.lag, f"{where}.lag", 0)
        if own.max_age is not None:
            whole_number(own.max_age, f"{where}.max_age", 2)
        if own.lag is not None and own.max_age is not None:
            raise ConfigError(
                f"{where}.max_age: stands beside lag, which says when negatives are used; leave "
                "one of them out"
            )
        if every is not None and own.lag is not None and own.lag > every:
            raise ConfigError(
                f"{where}.lag: {own.lag}; expected 0 to {every} steps: one mining ends before the "
                "next begins"
            )
        if every is not None and own.max_age is not None and own.max_age <= every:
            raise ConfigError(
                f"{where}.max_age: {own.max_age}; expected more than {every}: mining begins only "
                "every so many steps"
            )
        if own.beside:
            own.miner(where)
        return own

    @property
    def steps(self) -> int | None:
        """Steps between two minings; None for an epoch."""
        return None if self.every == EPOCH else int(self.every)

    @property
    def beside(self) -> bool:
        """Whether another process mines while training continues."""
        return any(each is not None for each in (self.lag, self.max_age, self.executor))

    def miner(self, where: str) -> Executor:
        """Return the executor that mines, one encoder at a time."""
        spec = {"type": self.executor} if isinstance(self.executor, str) else self.executor
        spec = dict(spec or PROCESS)
        if spec.get("workers", 1) != 1:
            raise ConfigError(
                f"{where}.executor.workers: {spec['workers']}; one process mines at a time: leave "
                "it out"
            )
        if spec.get("type") == LocalExecutor.type_name:
            raise ConfigError(
                f"{where}.executor: local is the process that trains; write processes or ray, or "
                "leave executor, lag and max_age out: then training mines itself"
            )
        executor: Executor = build(
            {**spec, "workers": 1}, EXECUTORS, where=f"{where}.executor", allow=()
        )
        return executor


def decisive(value: Any) -> Any:
    """Return what of the key decides the model: not who mines."""
    if not isinstance(value, Mapping):
        return value
    plain = {key: each for key, each in value.items() if key != "executor"}
    if "executor" in value and not plain.keys() & {"lag", "max_age"}:
        plain["beside"] = True
    return plain


COPIES = "encoders"  # in the work folder: what is mined with
FORM = "sent.json"  # of a copy: how it is opened again
INSTEAD = "refresh: 200, with which training mines itself"


class OtherMiner:
    """Mines by an executor, one encoder at a time; processes that are lost are replaced.

    ``order`` is what the process finds the training run's data by: a few values that JSON has.
    Copies of the encoder are kept in ``work`` until their negatives are there. Use it as a context
    manager: its end ends the process too.
    """

    def __init__(
        self, encoder: Any, order: Mapping[str, Any], executor: Executor, work: Path, where: str
    ) -> None:
        self._encoder, self._order, self._executor = encoder, dict(order), executor
        self._copies = (work / COPIES).absolute()
        self._form = transfer_form(
            encoder, where=where, instead=INSTEAD, own_devices=executor.gives_devices
        )
        self._thread = ThreadPoolExecutor(1, "mining")
        self._open = ExitStack()
        self._crew: _MiningCrew | None = None
        self._mining: Future[object] | None = None
        self._copy: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._crew is not None:
            self._crew.close()  # and with it a mining that nobody waits for
        self._thread.shutdown(wait=True)
        self._open.close()

    def copies(self) -> list[int]:
        """Return the steps of which there is a copy of the encoder, in order."""
        names = [path.name for path in self._copies.glob("*") if (path / FORM).exists()]
        return sorted(int(name) for name in names if name.isdigit())

    def forget(self) -> None:
        """Remove all copies: the training begins anew."""
        shutil.rmtree(self._copies, ignore_errors=True)

    def begin(self, step: int, output: Path) -> None:
        """Begin to mine with the encoder as it is, or with the step's copy where there is one."""
        copy = self._copies / str(step)
        if step not in self.copies():
            self._save(copy)
        form = read_json(copy / FORM)
        args = {**self._order, **form, "step": step, "encoder": str(copy), "output": str(output)}

        def here(advance: Advance) -> Facts:
            raise AssertionError("negatives are mined in another process")

        task = Task("mine", f"negatives of step {step}", args, output.absolute(), here)
        if self._crew is None:
            crew = self._open.enter_context(self._executor.crew())
            self._crew = _MiningCrew(self._executor, crew)
        self._crew.lost, self._copy = 0, copy
        plan = Plan("mine", [task], show=False)
        self._mining = self._thread.submit(run_plan, plan, self._crew)

    def is_ready(self) -> bool:
        """Return whether mining has ended, well or not."""
        return self._mining is not None and self._mining.done()

    def wait(self) -> int:
        """Wait until the negatives are there; return how many processes were lost meanwhile."""
        if self._mining is None or self._crew is None or self._copy is None:
            raise AssertionError("nothing is mined")
        self._mining.result()
        self._mining = None
        shutil.rmtree(self._copy, ignore_errors=True)
        return self._crew.lost

    def _save(self, copy: Path) -> None:
        part = copy.with_name(f"{copy.name}.part")
        for folder in (part, copy):
            shutil.rmtree(folder, ignore_errors=True)
        part.parent.mkdir(parents=True, exist_ok=True)
        self._encoder.save_pretrained(part)
        write_json(part / FORM, {
            "own": self._form.own, "options": self._form.options,
            "fingerprint": str(self._encoder.fingerprint),
        })  # fmt: skip
        os.replace(part, copy)  # noqa: PTH105


class _MiningCrew(Executor, Crew):
    """The workers of an executor, which stay from plan to plan; it counts those that are lost."""

    def __init__(self, executor: Executor, crew: Crew) -> None:
        self.type_name, self.gives_devices = executor.type_name, executor.gives_devices  # type: ignore[misc]
        self.slots, self._crew = crew.slots, crew
        self.lost = 0
        self._ended = False

    @contextmanager
    def crew(self) -> Iterator[Crew]:
        """Yield the workers, which were started before and are ended later."""
        yield self

    def submit(self, task: Task) -> None:
        self._refuse_ended(task)
        self._crew.submit(task)

    def next(self, advance: Advance) -> Outcome:
        outcome = self._crew.next(advance)
        self._refuse_ended(outcome.task)
        self.lost += bool(outcome.lost)
        return outcome

    def close(self) -> None:
        """End what is under way; no other process takes it on."""
        self._ended = True
        self._crew.close()

    def _refuse_ended(self, task: Task) -> None:
        if self._ended:
            raise ModelError(f"{task.name}: nobody waits for them any more")
