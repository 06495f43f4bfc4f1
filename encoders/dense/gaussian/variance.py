"""The head that makes variances of states: a linear map, softplus and a floor."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import finite_number
from sluice.encoders.model_files.layout import SIDECAR, VectorModule
from sluice.encoders.transformer.vector_layers import Projection, read_layers, write_layers

KEY = "gaussian"  # of sluice.json
FLOOR = 1e-4
BETA = 1.0


class VarianceSettings(NamedTuple):
    """What decides variances beside the head's weights.

    ``start`` is the variance of every dimension before training, against which scores are counted,
    ``token`` the text of the token whose state the head reads; empty: it reads the pooled state.
    """

    start: float
    floor: float = FLOOR
    beta: float = BETA
    token: str = ""

    def checked(self) -> VarianceSettings:
        """Return the same settings as floats; ``ConfigError`` for those that cannot be."""
        floor = finite_number(self.floor, "variance_floor")
        beta, start = finite_number(self.beta, "beta"), finite_number(self.start, "start_variance")
        if floor <= 0:
            raise ConfigError(f"variance_floor: {self.floor!r}, expected a number above 0")
        if beta <= 0:
            raise ConfigError(f"beta: {self.beta!r}, expected a number above 0")
        if start <= floor:
            raise ConfigError(
                f"start_variance: {self.start!r}, expected a number above variance_floor, {floor:g}"
            )
        return VarianceSettings(start, floor, beta, self.token)


class VarianceHead(nn.Module):
    """``floor + log(1 + exp(beta (W h + b))) / beta`` of states h.

    A new head has W = 0 and the b that makes every variance ``start``.
    """

    def __init__(self, linear: Projection, settings: VarianceSettings) -> None:
        super().__init__()
        self.linear = linear
        self.settings = settings

    @classmethod
    def new(cls, inputs: int, outputs: int, settings: VarianceSettings) -> VarianceHead:
        """Return a head that knows nothing yet."""
        linear = Projection(inputs, outputs)
        over = settings.start - settings.floor
        # The inverse of softplus, which does not overflow for large beta.
        bias = over + math.log(-math.expm1(-settings.beta * over)) / settings.beta
        with torch.no_grad():
            nn.init.zeros_(linear.linear.weight)
            nn.init.constant_(linear.linear.bias, bias)
        return cls(linear, settings)

    def forward(self, states: Tensor) -> Tensor:
        """Return variances ``[n, outputs]`` of states ``[n, inputs]``, float32."""
        above: Tensor = softplus(self.linear(states.float()), beta=self.settings.beta)
        return self.settings.floor + above

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the weights into a module's folder; return what ``sluice.json`` has to note."""
        write_layers(self.linear, [folder])
        return {KEY: self.settings._asdict()}

    @classmethod
    def read(cls, folder: Path, noted: Any, inputs: int, outputs: int) -> VarianceHead:
        """Read what ``write`` wrote; ``ModelError`` where it does not fit the encoder."""
        linear = read_layers([VectorModule("Dense", folder)], inputs)
        fits = isinstance(linear, Projection) and linear.linear.bias is not None
        if not isinstance(linear, Projection) or not fits or linear.outputs != outputs:
            raise ModelError(f"{folder}: expected a linear layer to {outputs} variances, with bias")
        try:
            settings = VarianceSettings(**noted).checked()
        except (TypeError, ConfigError) as error:
            raise ModelError(f"{folder.parent / SIDECAR}: {KEY} is {noted!r}: {error}") from None
        if not isinstance(settings.token, str):
            raise ModelError(f"{folder.parent / SIDECAR}: {KEY}.token is {settings.token!r}")
        return cls(linear, settings)
