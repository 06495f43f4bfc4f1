"""What experts may be called."""

from __future__ import annotations

from typing import Any

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number

MEAN = "mean"  # in place of an expert's name: the mean of all


def checked_experts(experts: Any, gate_learns: Any = None) -> tuple[tuple[str, ...], int]:
    """Return the names and the number of experts; a number alone has no names, and a gate."""
    if not isinstance(experts, list | tuple):
        return (), whole_number(experts, "experts", 2, 64)
    if gate_learns is not None:
        raise ConfigError(
            "gate_learns: experts names datasets, and no gate chooses among them; leave it "
            "out, or give a number of experts"
        )
    names = tuple(experts)
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"experts: {name!r}, expected the name of a dataset")
        if names.count(name) > 1:
            raise ConfigError(f"experts: {name!r} is named twice")
    if MEAN in names:
        raise ConfigError(f"experts: {MEAN!r} stands for the mean of all; rename that dataset")
    if not 2 <= len(names) <= 64:
        raise ConfigError(
            f"experts: {list(names)}, expected 2 to 64 datasets; one alone is a dense encoder"
        )
    return names, len(names)
