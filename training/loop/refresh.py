"""Refreshes the training examples every so many steps, and restores them on resuming."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.batches.processes import first_process
from sluice.training.example import Example
from sluice.training.loop.checkpoint import load_examples, save_examples

Refresh = Callable[[int], Sequence[Example]]


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
        """Return how old the examples were at the steps of a training of so many."""
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


@contextlib.contextmanager
def same_draws_after() -> Iterator[None]:
    """Restore the random states: a resumed run may read a file and draw nothing."""
    state, array_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    cuda = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(cuda):
        yield
    random.setstate(state)
    np.random.set_state(array_state)  # noqa: NPY002
