"""Tunes the experts of an encoder alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from sluice.encoders.dense.experts.layers import expert_parameters
from sluice.encoders.foundation.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ExpertsAlone:
    """Only experts, and gates that learn, are trained: for encoders of type experts.

    (Yu 2024, arXiv 2412.17364.)
    """

    def install(self, model: Any) -> list[nn.Parameter]:
        """Return the parameters to train; nothing is added."""
        chosen = list(expert_parameters(model).values())
        if not chosen:
            raise ConfigError(
                f"experts: {type(model).__name__} has none; give encoder: {{type: experts, ...}}"
            )
        return chosen
