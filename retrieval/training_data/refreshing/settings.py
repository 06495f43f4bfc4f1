"""When negatives are mined again: the YAML key ``negatives.refresh``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge

from sluice.encoders.foundation.build import build, check_arguments
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.execution.executor import EXECUTORS, Executor, LocalExecutor

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
    def of(cls, value: Any, where: str) -> RefreshSettings:
        """Read the key: a number of steps, ``epoch``, or these settings by name."""
        if not isinstance(value, Mapping):
            if value != EPOCH and (type(value) is not int or value < 1):
                raise ConfigError(
                    f"{where}: {value!r}; expected steps, 1 or more, 'epoch', or {{every: 200, "
                    "lag: 100}"
                )
            return cls(value)
        check_arguments(cls, value, where=where, kind="refresh")
        made = cls(**value)
        every = None if made.every == EPOCH else whole_number(made.every, f"{where}.every", 1)
        if made.lag is not None:
            whole_number(made.lag, f"{where}.lag", 0)
        if made.max_age is not None:
            whole_number(made.max_age, f"{where}.max_age", 2)
        if made.lag is not None and made.max_age is not None:
            raise ConfigError(
                f"{where}.max_age: stands beside lag, which says when negatives are used; leave "
                "one of them out"
            )
        if every is not None and made.lag is not None and made.lag > every:
            raise ConfigError(
                f"{where}.lag: {made.lag}; expected 0 to {every} steps: one mining ends before the "
                "next begins"
            )
        if every is not None and made.max_age is not None and made.max_age <= every:
            raise ConfigError(
                f"{where}.max_age: {made.max_age}; expected more than {every}: mining begins only "
                "every so many steps"
            )
        if made.beside:
            made.miner(where)
        return made

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
        made: Executor = build(
            {**spec, "workers": 1}, EXECUTORS, where=f"{where}.executor", allow=()
        )
        return made


def decisive(value: Any) -> Any:
    """Return what of the key decides the model: not who mines."""
    if not isinstance(value, Mapping):
        return value
    plain = {key: each for key, each in value.items() if key != "executor"}
    if "executor" in value and not plain.keys() & {"lag", "max_age"}:
        plain["beside"] = True
    return plain
