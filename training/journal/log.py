"""Writes ``metrics.jsonl`` while training runs, and log lines unless a progress bar shows them."""

from __future__ import annotations

import json
import logging
import math
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from sluice.encoders.foundation.disk.files import write_text
from sluice.encoders.foundation.numbers import duration, plural
from sluice.training.journal.curves import METRICS

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
        if "train_runtime" in line:
            mean = f", mean loss {line['train_loss']:.4g}" if "train_loss" in line else ""
            return f"finished {plural(total, 'step')} in {duration(line['train_runtime'])}{mean}"
        words = [f"step {step:,} of {total:,}"]
        if first < step < total:
            left = (time.monotonic() - start) / (step - first) * (total - step)
            words.append(f"{duration(left)} left")
        words += [
            f"{_readable(name)} {value:.4g}"
            for name, value in line.items()
            if name not in ("step", "epoch", "total_flos") and isinstance(value, (int, float))
        ]
        return ", ".join(words)

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
