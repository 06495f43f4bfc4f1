"""What happens at a step beside the optimiser: in its order, the log, the watch over memory."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn
from torch.autograd.graph import increment_version
from transformers import TrainerCallback

from sluice.encoders.foundation.disk.files import write_json, write_text
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import duration, plural, spelled_bytes
from sluice.encoders.foundation.processes import (
    give_back_memory,
    is_alive,
    peak_memory_bytes,
)
from sluice.training.journal import METRICS
from sluice.training.losses.base import LossBase
from sluice.training.sparsity.regulariser import Steering

log = logging.getLogger("sluice")


class Journal(TrainerCallback):  # type: ignore[misc]
    """Appends one JSON object a line for everything the Trainer logs.

    A resumed training run first removes the lines that the killed one wrote after its last
    checkpoint, so that each step occurs once. A number that is not finite is written as null.
    """

    def __init__(self, output: Path, *, lines: bool, writes: bool = True) -> None:
        self.path = output / METRICS
        self.lines = lines
        self.writes = writes  # of several processes only the first
        self._begun = (0.0, 0)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keep the lines up to the step that training resumes from."""
        self._begun = (time.monotonic(), state.global_step)
        if not self.writes:
            return
        lines = self._read() if state.global_step else []
        before = (line for line in lines if line["step"] <= state.global_step)
        write_text(self.path, "".join(map(_as_json, before)))

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Write the line, and log it unless a progress bar shows it."""
        if not self.writes:
            return
        line = {"step": state.global_step, **(logs or {})}
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(_as_json(line))
        if self.lines:
            log.info("training: %s", self._words(line, state.max_steps))

    def _words(self, line: dict[str, Any], total: int) -> str:
        step = line["step"]
        start, first = self._begun
        most = f"at most {spelled_bytes(peak_memory_bytes())} of memory"
        if "train_runtime" in line:
            words = [f"finished {plural(total, 'step')} in {duration(line['train_runtime'])}"]
            words += [f"mean loss {line['train_loss']:.4g}"] if "train_loss" in line else []
            return ", ".join([*words, most])
        words = [f"step {step:,} of {total:,}"]
        if first < step < total:
            left = (time.monotonic() - start) / (step - first) * (total - step)
            words.append(f"{duration(left)} left")
        words += [
            f"{_readable(name)} {value:.4g}"
            for name, value in line.items()
            if name not in ("step", "epoch", "total_flos") and isinstance(value, (int, float))
        ]
        return ", ".join([*words, most])

    def _read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        lines = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:  # the last line of a killed process
                break
        return lines


def _readable(name: str) -> str:
    return f"dev {name.removeprefix('eval_')}" if name.startswith("eval_") else name


def _as_json(line: dict[str, Any]) -> str:
    """Return the line as JSON, with null for NaN and infinity."""
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in line.items()
    }
    return json.dumps(finite, allow_nan=False) + "\n"


RUNNING = "running.json"
NEAR = 0.9  # of the limit: warned of
LIKELY = 0.8  # of the limit: then memory is why a run was killed
GROWTH = 0.05  # of the limit: by so much more the note is rewritten between log lines
KIB = 1024

ADVICE = (
    "lower per_device_train_batch_size, or keep it and set gradient_cache: 32 (the loss sees the "
    "whole batch, the encoder 32 texts at a time); shorter query_length and document_length, fewer "
    "negatives per_query, and bf16: true help too"
)


@contextlib.contextmanager
def advised_memory() -> Iterator[None]:
    """Turn a failure to allocate memory into a ``ConfigError`` that says what to lower."""
    import torch

    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ConfigError(f"trainer: a step does not fit into memory: {ADVICE}") from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error) and "out of memory" not in str(error):
            raise
        raise ConfigError(f"trainer: a step does not fit into memory: {ADVICE}") from error


class Memory(NamedTuple):
    """Bytes that a process holds now, the most it ever held, and the limit it lives under."""

    held: int
    peak: int
    limit: int


def read_memory(root: Path = Path("/")) -> Memory | None:
    """Return this process's memory; None on systems without ``/proc``.

    The limit is the smallest of the machine's memory and those of the control groups (version 2 or
    1) that the process is in. Pages of mapped files are not counted as held: they can be dropped.
    """
    own = _fields(root / "proc/self/status")
    total = _fields(root / "proc/meminfo").get("MemTotal")
    if total is None or "VmRSS" not in own:
        return None
    held = own.get("RssAnon", own["VmRSS"]) + own.get("RssShmem", 0)
    limit = min([total, *_group_limits(root)])
    return Memory(held, max(held, own.get("VmHWM", 0)), limit)


def _fields(file: Path) -> dict[str, int]:
    """Return the lines ``Name: number kB`` of a file in bytes."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    parts = (line.split() for line in lines)
    return {
        words[0].rstrip(":"): int(words[1]) * KIB
        for words in parts
        if len(words) == 3 and words[1].isdigit() and words[2] == "kB"
    }


def _group_limits(root: Path) -> Iterator[int]:
    """Yield the limits of the process's control groups and of all above them."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = Path(path.lstrip("/"))  # inside a container it may be seen as another one
        for each in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):  # "max" means no limit
                yield int((base / each / name).read_text(encoding="utf-8"))


class MemoryWatch(TrainerCallback):  # type: ignore[misc]
    """Warns once when training comes near the limit, and keeps the note of what it uses.

    Memory that is free is given back before training.
    """

    def __init__(self, folder: Path, *, writes: bool = True) -> None:
        self.folder = folder
        self.writes = writes  # of several processes only the first
        self._before = 0
        self._noted: float = 0.0
        self._warned = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Remember the memory used before training, and begin the note."""
        give_back_memory()  # what reading and mining have left
        memory = read_memory()
        if memory is not None:
            self._before = memory.peak
            self._note(state.global_step, memory.held, memory.limit)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Compare with the limit."""
        memory = read_memory()
        if memory is None or memory.limit <= 0:
            return
        most = self._most(memory)
        share = most / memory.limit
        if share >= self._noted + GROWTH:
            self._note(state.global_step, most, memory.limit)
        if share >= NEAR and not self._warned:
            self._warned = True
            log.warning(
                "training: step %d used %s of the memory limit of %s; at the limit the system "
                "kills the process without an error: %s",
                state.global_step, _gib(most), _gib(memory.limit), ADVICE,
            )  # fmt: skip

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note the memory used at a logged step."""
        memory = read_memory()
        if memory is not None:
            self._note(state.global_step, self._most(memory), memory.limit)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Remove the note: this run was not killed."""
        if self.writes:
            (self.folder / RUNNING).unlink(missing_ok=True)

    def _most(self, memory: Memory) -> int:
        # A step's peak is what counts; one from before (mining, reading) is not the batch's doing.
        return memory.peak if memory.peak > self._before else memory.held

    def _note(self, step: int, held: int, limit: int) -> None:
        if self.writes:
            self._noted = held / limit if limit > 0 else 0.0
            note = {"pid": os.getpid(), "step": step, "held": held, "limit": limit}
            write_json(self.folder / RUNNING, note)


@contextlib.contextmanager
def reported_kill(folder: Path, *, first: bool = True) -> Iterator[None]:
    """Log what the note of a killed run in ``folder`` says, and remove this run's note at its end.

    An ordinary exception removes it too; only a kill leaves it. ``first`` is False in all but
    the first of several processes.
    """
    if not first:
        yield
        return
    note = folder / RUNNING
    _report(note)
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


def _report(file: Path) -> None:
    try:
        note = json.loads(file.read_text(encoding="utf-8"))
        pid, step, held, limit = (int(note[key]) for key in ("pid", "step", "held", "limit"))
    except (OSError, ValueError, KeyError, TypeError):
        return
    if pid != os.getpid() and is_alive(pid):  # in a new container the number may be our own
        return
    if limit > 0 and held >= LIKELY * limit:
        log.warning(
            "training: the last run was killed after step %d, when it used %s of the memory limit "
            "of %s: %s", step, _gib(held), _gib(limit), ADVICE,
        )  # fmt: skip
    elif step == 0:
        log.warning(
            "training: the last run was killed before it logged a step; if it ran out of memory "
            "(it began with %s of %s): %s", _gib(held), _gib(limit), ADVICE,
        )  # fmt: skip


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


class Conductor(TrainerCallback):  # type: ignore[misc]
    """Advances everything beside the weights: epochs, penalties, the loss, early stopping.

    ``begin_epoch`` sets the batches of an epoch; ``patience`` is of evaluations.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: LossBase,
        *,
        steering: Steering | None,
        begin_epoch: Callable[[int], None],
        patience: int | None,
    ) -> None:
        self.module = module
        self.loss = loss
        self.steering = steering
        self.begin_epoch = begin_epoch
        self.patience = patience

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Give the regulariser the number of steps."""
        if self.steering is not None:
            self.steering.regulariser.begin(state.max_steps)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Set the batches of the epoch."""
        self.begin_epoch(int(state.epoch or 0))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Clear the gradients of the loss's own parameters."""
        for parameter in self.loss.parameters():  # the Trainer knows the model's only
            parameter.grad = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After an optimiser step advance versions, the sparsity by target, then the loss."""
        # A fused optimiser leaves version counters alone, by which fingerprints are cached.
        increment_version(list(self.module.parameters()))
        if self.steering is not None:
            self.steering.regulariser.advance(self.steering.dropout())
            self.steering.raise_heads()
        self.loss.advance(state.global_step)
        if state.global_step >= max(state.max_steps, args.eval_delay):
            # As the Trainer itself does in newer versions: the last step is always evaluated.
            control.should_evaluate |= args.eval_strategy == "steps"

    def on_evaluate(self, args: Any, state: Any, control: Any, **event: Any) -> None:
        """Stop after `patience` evaluations without an improvement."""
        if self.patience is None or not state.best_global_step:
            return
        # This evaluation may be the best so far: the state hears of it only after this.
        if event["metrics"][f"eval_{args.metric_for_best_model}"] > state.best_metric:
            return
        # Counted from the history, which checkpoints keep: a resumed training stops where it would.
        named = f"eval_{args.metric_for_best_model}"
        since = {
            line["step"] for line in state.log_history
            if named in line and line["step"] > state.best_global_step
        }  # fmt: skip
        if len(since) >= self.patience:
            control.should_training_stop = True
