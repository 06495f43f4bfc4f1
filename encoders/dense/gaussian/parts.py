"""What stands on the transformer of a Gaussian encoder: read from its folder, or new."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.dense.gaussian.variance import KEY, VarianceHead, VarianceSettings
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.layout import Layout
from sluice.encoders.transformer.added_tokens import make_tokens
from sluice.encoders.transformer.decoder_attention import is_causal
from sluice.encoders.transformer.projection import draw_projection
from sluice.encoders.transformer.vector_layers import VectorLayer, read_layers

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
    if given["projection"] is None:
        projection = read_layers(layout.layers, hidden)
    else:
        projection = draw_projection(hidden, given["projection"], seed)
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
