"""The heads of a Gaussian encoder, which make means and variances: read from a folder, or new."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import finite_number
from sluice.encoders.model_files.layout import SIDECAR, Layout, VectorModule
from sluice.encoders.transformer.added_tokens import make_tokens
from sluice.encoders.transformer.decoder_attention import is_causal
from sluice.encoders.transformer.projection import chosen_projection
from sluice.encoders.transformer.vector_layers import (
    Projection,
    VectorLayer,
    read_layers,
    write_layers,
)

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


# The start's variance, where means have length 1: scores are then 20 times the cosine, which dense
# encoders are trained with, but for a constant.
UNIT_START = 0.1
START = 1.0  # where means have any length
USUAL_TOKEN = "[unused0]"  # in BERTs
NEW_TOKEN = "[VAR]"  # added to others


class Parts(NamedTuple):
    """The layers that make means and variances, and whether means have length 1."""

    projection: VectorLayer | None
    variance: VarianceHead
    unit: bool


def read_parts(layout: Layout, place: Path, hidden: int, given: Mapping[str, Any]) -> Parts:
    """Return the parts of a trained folder, whose ``place`` has the variances' weights.

    It takes no settings of a new one.
    """
    for name, value in given.items():
        if value is not None:
            raise ConfigError(
                f"{name}: {value!r}; {place.parent} is a Gaussian encoder's folder, which has its "
                "own; leave it out, or start from a dense encoder or a transformer"
            )
    projection = read_layers(layout.layers, hidden)
    outputs = hidden if projection is None else projection.outputs
    variance = VarianceHead.read(place, layout.sidecar.get(KEY), hidden, outputs)
    return Parts(projection, variance, layout.normalize)


def new_parts(
    layout: Layout,
    folder: Path,
    network: Any,
    tokenizer: Any,
    given: Mapping[str, Any],
    seed: int,
) -> Parts:
    """Return new parts over a dense encoder or a bare transformer, by the settings given."""
    if {"top_layers", "dim"} & layout.sidecar.keys():
        raise ModelError(
            f"{folder}: pools several layers or cuts its vectors (top_layers, dim), which a "
            "Gaussian encoder cannot start from; take the model it was made of"
        )
    hidden = int(network.config.hidden_size)
    projection = chosen_projection(given["projection"], layout.layers, hidden, seed)
    unit = given["normalize"]
    if unit is None:
        unit = layout.normalize or not layout.modules
    named = {
        "start": given["start_variance"], "floor": given["variance_floor"], "beta": given["beta"],
        "token": _token(given["variance_token"], network, tokenizer),
    }  # fmt: skip
    named = {name: value for name, value in named.items() if value is not None}
    settings = VarianceSettings(**{"start": UNIT_START if unit else START, **named}).checked()
    make_tokens(network, tokenizer, [settings.token], seed)
    outputs = hidden if projection is None else projection.outputs
    return Parts(projection, VarianceHead.new(hidden, outputs, settings), unit)


def _token(given: Any, network: Any, tokenizer: Any) -> str:
    """Return the token that variances are made of, empty for none."""
    causal = is_causal(network)
    if given is None:
        usual = USUAL_TOKEN if USUAL_TOKEN in tokenizer.get_vocab() else NEW_TOKEN
        return "" if causal else usual
    if not isinstance(given, str) or any(character.isspace() for character in given):
        raise ConfigError(f"variance_token: {given!r}, expected a text without white space, or ''")
    if given and (given[0].isalnum() or given[-1].isalnum()):
        raise ConfigError(
            f"variance_token: {given!r} is made one token wherever it stands, also inside words of "
            f"the texts; expected a mark that no text has, such as {NEW_TOKEN}"
        )
    around = {tokenizer.pad_token_id, *tokenizer("")["input_ids"]}
    if given and tokenizer.get_vocab().get(given, -1) in around:
        raise ConfigError(
            f"variance_token: {given!r} is a token that the tokenizer puts around every text; "
            f"expected one of its own, such as {NEW_TOKEN}"
        )
    if given and causal:
        raise ConfigError(
            f"variance_token: {given!r} stands before the text, and the tokens of a "
            f"{type(network).__name__} see only those before them; give variance_token: ''"
        )
    return given
