"""Tuning of a few of the parameters a model has: its biases, or its norms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from sluice.encoders.foundation.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Biases:
    """BitFit: only biases are trained, those of a SPLADE head too (Ben Zaken et al., 2022)."""

    def install(self, model: Any) -> list[nn.Parameter]:
        """Return what is trained; nothing is added."""
        chosen = [p for name, p in model.named_parameters() if name.rpartition(".")[2] == "bias"]
        if not chosen:
            raise ConfigError(f"bitfit: {type(model).__name__} has no biases; use lora")
        return chosen


@dataclass(frozen=True, slots=True)
class Norms:
    """Only the layer norms are trained, scale and bias (Zhao et al., 2023, arXiv 2312.11420)."""

    def install(self, model: Any) -> list[nn.Parameter]:
        """Return what is trained; nothing is added."""
        norms = [m for m in model.base_model.modules() if type(m).__name__.endswith("Norm")]
        chosen = [parameter for norm in norms for parameter in norm.parameters()]
        if not chosen:
            raise ConfigError(f"ln_tuning: {type(model).__name__} has no layer norms; use lora")
        return chosen
