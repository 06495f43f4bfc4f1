"""Mines negatives in another process, with a copy of the encoder that is being trained."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from sluice.encoders.foundation.disk.files import read_json, write_json
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.foundation.progress import Advance
from sluice.encoders.vectors.sending import sent_form
from sluice.retrieval.execution.executor import Crew, Executor, Facts, Outcome, Task
from sluice.retrieval.execution.plan import Plan, run_plan

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
        self._form = sent_form(
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
