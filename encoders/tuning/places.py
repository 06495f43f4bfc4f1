"""Finds the linear layers of a transformer's blocks, by what they do, for tuning."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn
from transformers.pytorch_utils import Conv1D

from sluice.encoders.foundation.errors import ConfigError, suggest

KEYS_AND_VALUES = {
    "key", "value", "k", "v", "k_lin", "v_lin", "k_proj", "v_proj", "key_proj", "value_proj",
}  # fmt: skip
FUSED = {"c_attn", "Wqkv", "query_key_value", "qkv_proj"}  # query, key and value in one


class Places(NamedTuple):
    """Names of the linear layers of a model's blocks, without embeddings and heads.

    ``attended`` and ``outer`` end attention and feed-forward network, one in each block;
    ``attending`` are the modules inside which attention itself is computed.
    """

    linears: list[str]
    attention: list[str]
    attended: list[str]
    outer: list[str]
    attending: list[str]


def places_of(model: Any) -> Places:
    """Return the places of a transformer, found by structure instead of a table of families.

    In a block, layers below a name with ``attn`` or ``attention`` are attention, the others the
    feed-forward network; each ends in its last layer that returns hidden states. Raises
    ``ConfigError`` for a model built differently.
    """
    trunk = model.base_model
    hidden = int(model.config.hidden_size)
    stem = next(name for name, module in model.named_modules() if module is trunk)
    places = Places([], [], [], [], [])
    for block, part in _blocks(trunk):
        start = f"{stem}.{block}" if stem else block
        inside = {n: m for n, m in part.named_modules() if isinstance(m, nn.Linear | Conv1D)}
        attention = [name for name in inside if "attn" in name or "attention" in name]
        rest = [name for name in inside if name not in attention]
        places.linears.extend(f"{start}.{name}" for name in inside)
        places.attention.extend(f"{start}.{name}" for name in attention)
        for names, ends in ((attention, places.attended), (rest, places.outer)):
            last = [name for name in names if _width(inside[name]) == hidden][-1:]
            ends.extend(f"{start}.{name}" for name in last)
        places.attending.extend(f"{start}.{name.rpartition('.')[0]}" for name in attention[:1])
    if not places.attention and getattr(model.config, "is_encoder_decoder", False):
        raise ConfigError(
            f"{type(model).__name__}: an encoder with a decoder, and this is for one stack of "
            "blocks; take ln_tuning, or train all parameters"
        )
    if not places.attention:
        raise ConfigError(
            f"{type(trunk).__name__}: no blocks with linear attention layers; "
            "expected a transformer"
        )
    return places


def targets_of(places: Places, targets: str | list[str], where: str) -> list[str]:
    """Return the layers that ``all-linear``, ``attention`` or a list of name endings stand for."""
    if targets == "all-linear":
        return places.linears
    if targets == "attention":
        return places.attention
    endings = [targets] if isinstance(targets, str) else list(targets)
    chosen: list[str] = []
    for ending in endings:
        fitting = [n for n in places.linears if n == ending or n.endswith(f".{ending}")]
        if not fitting:
            known = sorted({name.rpartition(".")[2] for name in places.linears})
            raise ConfigError(
                f"{where}: no linear layer is called {ending!r}; known: all-linear, attention, "
                f"{', '.join(known)}{suggest(ending, ['all-linear', 'attention', *known])}"
            )
        chosen += [name for name in fitting if name not in chosen]
    if not chosen:
        raise ConfigError(f"{where}: []; expected all-linear, attention, or names of layers")
    return chosen


def _blocks(trunk: Any) -> list[tuple[str, nn.Module]]:
    """Return the items of the outermost lists of modules, by name."""
    outer: list[str] = []
    for name, module in trunk.named_modules():
        nested = any(name.startswith(f"{other}.") for other in outer)
        if isinstance(module, nn.ModuleList) and not nested:
            outer.append(name)
    modules = dict(trunk.named_modules())
    return [
        (f"{name}.{key}", item) for name in outer for key, item in modules[name].named_children()
    ]


def _width(linear: Any) -> int:
    return int(linear.nf if isinstance(linear, Conv1D) else linear.out_features)
