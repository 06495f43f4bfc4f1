"""Refreshes the training examples every so many steps, and restores them on resuming.

A miner may do so beside training, as ANCE does (Xiong et al. 2021): a copy of the encoder is made,
others mine with it while training continues, and their examples are used later. When they are used
is a matter of steps, so that a training run has the same bits however long mining takes.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training.batches.processes import first_process, from_first, rank
from sluice.training.loop.checkpoint import load_examples, save_examples
from sluice.training.protocol import Example

Refresh = Callable[[int], Sequence[Example]]
RECORD = "refreshes.json"  # when which examples were used


class NegativesAge(NamedTuple):
    """How many steps before each step its negatives' encoder was: at most, and on average.

    ``refreshes`` are those that were used. ``restarts`` are miners that were lost and replaced,
    ``waited`` the seconds that training waited for them, where mining is done beside it.
    """

    max: int
    mean: float
    refreshes: int
    restarts: int = 0
    waited: float = 0.0


class Refreshing:
    """Calls ``refresh(step)`` every ``every`` steps, with the encoder as it is then.

    With ``every`` None that is at the beginning of each epoch but the first; an epoch has
    ``epoch_steps``. The examples are kept as ``examples-<step>.jsonl`` in ``folder``: on resuming
    they are read instead of being mined again with later weights.
    """

    def __init__(self, refresh: Refresh, every: int | None, epoch_steps: int, folder: Path) -> None:
        if every is not None and every < 1:
            raise ConfigError(f"negatives.refresh: {every}, expected 1 or more steps")
        self.refresh = refresh
        self.every = every or epoch_steps
        self.epoch_steps = epoch_steps
        self.folder = folder
        self.total_steps = 0  # of the training, once they are known
        self._used = 0  # the step at which the examples in use were made

    def age(self, step: int) -> int:
        """Return how many steps ago the examples in use were made."""
        return step - self._used

    def ages(self, steps: int) -> NegativesAge | None:
        """Return how old the examples were in a training run of so many steps."""
        made = [self._due(step - 1) for step in range(1, steps + 1)]
        if not made:
            return None
        ages = [step - each for step, each in enumerate(made, start=1)]
        return NegativesAge(max(ages), sum(ages) / len(ages), len({*made} - {0}))

    def at_epoch(self, epoch: int, step: int, model: Any) -> list[Example] | None:
        """Return the examples in use when an epoch begins; None for the initial ones.

        ``step`` is after the beginning where the training resumes within the epoch.
        """
        self._used = self._due(epoch * self.epoch_steps)
        return self._examples(self._used, model) if self._used else None

    def resumed(self, epoch: int, step: int) -> list[Example] | None:
        """Return the examples in use when training resumes mid-epoch."""
        due = self._due(step - 1) if step > epoch * self.epoch_steps else self._used
        if due == self._used:
            return None
        self._used = due
        return load_examples(self._file(due))

    def within_epoch(self, step: int, model: Any) -> list[Example] | None:
        """Return new examples if a refresh is due before the next step."""
        due = self._due(step)
        if due == self._used:
            return None
        self._used = due
        return self._examples(due, model)

    def _due(self, step: int) -> int:
        """The step of the last refresh at or before ``step``, 0 for none."""
        return step // self.every * self.every

    def _file(self, step: int) -> Path:
        return self.folder / f"examples-{step}.jsonl"

    def _examples(self, step: int, model: Any) -> list[Example]:
        file = self._file(step)
        with first_process():
            if not file.exists():
                model.eval()
                with same_draws_after():
                    save_examples(file, self.refresh(step))
                model.train()
        return load_examples(file)


class Miner(Protocol):
    """Mines examples in another process, one encoder at a time."""

    def copies(self) -> list[int]:
        """Return the steps of which there is a copy of the encoder, in order."""

    def forget(self) -> None:
        """Remove all copies: the training begins anew."""

    def begin(self, step: int, output: Path) -> None:
        """Begin to mine with the encoder as it is, or with the step's copy where there is one.

        The examples go to ``output``, which is there as a whole or not at all.
        """

    def is_ready(self) -> bool:
        """Return whether mining has ended, well or not."""

    def wait(self) -> int:
        """Wait until the output is there; return how many processes were lost meanwhile.

        Raises what mining failed with.
        """


@dataclass(frozen=True, slots=True)
class Beside:
    """Refreshes by a miner beside training.

    Mining begins every so many steps. ``lag`` is after how many more its examples are used, by
    default when the next begins; training waits for them there. With ``max_age`` in place of it
    they are used as soon as they are there, and training waits where their age would be more; then
    the time that mining takes decides what is trained on, and a record makes a resumed training
    repeat it.
    """

    miner: Miner
    lag: int | None = None
    max_age: int | None = None

    @property
    def facts(self) -> dict[str, int]:
        """What decides the result."""
        settings = {"lag": self.lag, "max_age": self.max_age}
        return {name: value for name, value in settings.items() if value is not None}


def refreshing(
    refresh: Refresh | Beside, every: int | None, epoch_steps: int, folder: Path
) -> Refreshing:
    """Return what refreshes the examples: with the encoder as it is, or beside training."""
    if isinstance(refresh, Beside):
        return RefreshingBeside(refresh, every, epoch_steps, folder)
    return Refreshing(refresh, every, epoch_steps, folder)


class _Used(NamedTuple):
    """Examples used from ``step`` on, of the encoder of the step ``made``."""

    step: int
    made: int
    restarts: int = 0
    waited: float = 0.0


class RefreshingBeside(Refreshing):
    """Begins to mine every ``every`` steps, and uses the examples as ``Beside`` says."""

    def __init__(self, beside: Beside, every: int | None, epoch_steps: int, folder: Path) -> None:
        super().__init__(_unasked, every, epoch_steps, folder)
        self.miner, self.max_age = beside.miner, beside.max_age
        self.lag = self.every if beside.lag is None and self.max_age is None else beside.lag
        if self.lag is not None and not 0 <= self.lag <= self.every:
            raise ConfigError(
                f"negatives.refresh.lag: {self.lag}, expected 0 to {self.every} steps: one mining "
                "ends before the next begins"
            )
        if self.lag is None and (self.max_age or 0) <= self.every:
            raise ConfigError(
                f"negatives.refresh.max_age: {self.max_age}, expected more than {self.every}: "
                "mining begins only every so many steps"
            )
        self._record = self._read()
        self._mining: int | None = None  # the step of the encoder that is mined with
        self._advanced = -1
        self._left = self.miner.copies() if rank() == 0 else []  # what a killed training mined with

    def ages(self, steps: int) -> NegativesAge | None:
        """Return how old the examples were in a training run of so many steps."""
        plain = super().ages(steps)
        if plain is None:
            return None
        used = [each for each in self._record if each.step < steps]
        return plain._replace(
            restarts=sum(each.restarts for each in used), waited=sum(each.waited for each in used)
        )

    def at_epoch(self, epoch: int, step: int, model: Any) -> list[Example] | None:
        """Return the examples in use when an epoch begins; None for the initial ones."""
        if step == epoch * self.epoch_steps:  # else it resumes, and this was decided before
            self._advance(step, model)
        return super().at_epoch(epoch, step, model)

    def within_epoch(self, step: int, model: Any) -> list[Example] | None:
        """Begin to mine if that is due; return examples that are to be used from now on."""
        self._advance(step, model)
        return super().within_epoch(step, model)

    def _due(self, step: int) -> int:
        if self.lag is not None:
            return max(0, (step - self.lag) // self.every * self.every)
        return max((each.made for each in self._record if each.step <= step), default=0)

    def _examples(self, step: int, model: Any) -> list[Example]:
        with first_process():  # which has waited for them
            return load_examples(self._file(step))

    def _advance(self, step: int, model: Any) -> None:
        """Do what is due before the next step: wait for what is used from now on, begin anew."""
        if step == self._advanced:  # an epoch begins with it
            return
        self._advanced = step
        if rank() == 0:
            if self.lag is None:
                self._by_age(step, self.max_age or 0, model)
            else:
                self._by_lag(step, self.lag, model)
        if self.lag is None:
            self._record = from_first(self._record)

    def _by_lag(self, step: int, lag: int, model: Any) -> None:
        newest = step // self.every * self.every
        for made in (newest - self.every, newest):
            if made < self.every or made + lag >= self.total_steps:
                continue
            if self._mining != made:
                if self._file(made).exists():
                    continue
                self._begin(made, step, model)
            if made + lag <= step:
                self._use(made, step)

    def _by_age(self, step: int, max_age: int, model: Any) -> None:
        last = self._record[-1] if self._record else _Used(0, 0)
        if step <= last.step:  # a resumed training repeats what was done
            return
        oldest = step + 1 - max_age
        left = [copy for copy in self._left if last.made < copy <= step]
        self._left = []
        if left:
            self._begin(left[-1], step, model)
        if self._mining is not None and (last.made < oldest or self.miner.is_ready()):
            last = self._use(self._mining, step)
        if last.made < oldest:  # it took longer than that
            self._begin(step, step, model)
            last = self._use(step, step)
        begins = step % self.every == 0 and last.made < step < self.total_steps - 1
        if begins and self._mining is None:
            self._begin(step, step, model)

    def _begin(self, made: int, step: int, model: Any) -> None:
        if made < step and made not in self.miner.copies():
            raise DataError(
                f"{self.folder}: the encoder of step {made}, which negatives are mined with, is "
                "missing; delete the folder to train again"
            )
        model.eval()
        with same_draws_after():
            self.miner.begin(made, self._file(made))
        model.train()
        self._mining = made

    def _use(self, made: int, step: int) -> _Used:
        """Wait for the miner; from ``step`` on its examples are used."""
        start = time.monotonic()
        restarts = self.miner.wait()
        self._mining = None
        used = _Used(step, made, restarts, round(time.monotonic() - start, 3))
        self._record = [*(each for each in self._record if each.step < step), used]
        write_json(self.folder / RECORD, [each._asdict() for each in self._record])
        return used

    def _read(self) -> list[_Used]:
        try:
            text = (self.folder / RECORD).read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [_Used(**each) for each in json.loads(text)]


def _unasked(step: int) -> list[Example]:
    raise AssertionError(f"the miner makes the examples of step {step}")


@contextlib.contextmanager
def same_draws_after() -> Iterator[None]:
    """Restore the random states: a resumed run may read a file and draw nothing."""
    state, array_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    cuda = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(cuda):
        yield
    random.setstate(state)
    np.random.set_state(array_state)  # noqa: NPY002
