"""Tunes by LoRA or (IA)^3 through peft, by bottlenecks in every block, or beside the blocks."""

from __future__ import annotations

import importlib.util
import math
import threading
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from annotated_types import Ge, Interval
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, MissingPackageError, suggest
from sluice.encoders.model_files.adapters import AddedModule, layer_list, recomputes

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


_PLACES = ("attention", "mlp")


class Bottleneck(AddedModule):
    """``x + W_up gelu(W_down x + b_down) + b_up``, the identity at the start."""

    def __init__(self, width: int, narrow: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, narrow)
        self.up = nn.Linear(narrow, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, states: Tensor) -> Tensor:
        """Return the states ``[..., width]`` changed."""
        changed: Tensor = states + self.up(functional.gelu(self.down(states)))
        return changed


@dataclass(frozen=True, slots=True)
@checked("adapter.")
class Bottlenecks:
    """Adapters of ``hidden / reduction`` dimensions after attention, feed-forward network or both.

    They change the output of a sublayer before it is added to its input (both places: Houlsby et
    al., 2019; ``places: [mlp]``: Pfeiffer et al., 2021). They cannot be merged.
    """

    reduction: Annotated[int, Ge(1)] = 16
    places: Annotated[tuple[str, ...], "Where adapters stand: attention, mlp, or both."] = _PLACES

    def __post_init__(self) -> None:
        for place in self.places:
            if place not in _PLACES:
                raise ConfigError(
                    f"adapter.places: {place!r}, expected {' or '.join(_PLACES)}, or both"
                    f"{suggest(str(place), _PLACES)}"
                )
        if not self.places:
            raise ConfigError("adapter.places: [], expected attention, mlp, or both")

    def install(self, model: Any) -> list[nn.Parameter]:
        """Put the adapters into a model's blocks; return the parameters to train."""
        width, layers = int(model.config.hidden_size), places_of(model)
        ends = {"attention": layers.attended, "mlp": layers.outer}
        for place in self.places:
            if not ends[place]:
                raise ConfigError(
                    f"adapter.places: {type(model).__name__} has no layer for {place}"
                )
        chosen = [name for place in _PLACES if place in self.places for name in ends[place]]
        parameters: list[nn.Parameter] = []
        for name in chosen:
            layer = model.get_submodule(name)
            layer.bottleneck = Bottleneck(width, max(1, width // self.reduction))
            layer.bottleneck.to(layer.weight.device)
            layer.register_forward_hook(_through)
            parameters.extend(layer.bottleneck.parameters())
        return parameters


def _through(layer: Any, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    changed: Tensor = layer.bottleneck(output)
    return changed


@dataclass(frozen=True, slots=True)
@checked("lora.")
class LowRank:
    """LoRA: ``W + alpha / rank * B A`` with ``B`` zero at the start (Hu et al., 2022).

    ``alpha`` is, left out, twice the rank. ``targets`` are ``all-linear`` (every linear layer of
    the blocks), ``attention``, or endings of names (``[query, value]``,
    ``[attention.output.dense]``); ``dropout`` applies to the input of ``A``. Rank 4 trains 0.7% of
    a MiniLM's parameters and 0.6% of BERT-base's, with ``attention`` about half as many.
    """

    rank: Annotated[
        int, Ge(1), "The rank of the added matrices: more learns more, with more parameters."
    ] = 4
    alpha: Annotated[float | None, "The added matrices count alpha / rank."] = None
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.05
    targets: str | list[str] = "all-linear"

    def __post_init__(self) -> None:
        if self.alpha is not None and not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ConfigError(f"lora.alpha: {self.alpha!r}, expected a number above 0")

    def install(self, model: Any) -> list[nn.Parameter]:
        """Put LoRA into a model's blocks; return the parameters to train."""
        names = targets_of(places_of(model), self.targets, "lora.targets")
        _need_peft("lora")
        from peft import LoraConfig

        config = LoraConfig(
            r=self.rank,
            lora_alpha=2 * self.rank if self.alpha is None else self.alpha,
            lora_dropout=self.dropout,
            target_modules=names,
            fan_in_fan_out=_transposed(model, names),
        )
        return _injected(model, config, "lora_")


@dataclass(frozen=True, slots=True)
class LearnedScales:
    """(IA)^3: scales keys, values and the input of the last feed-forward layer, from 1 on.

    If query, key and value are one layer, all three are scaled. (Liu et al., 2022, arXiv
    2205.05638.)
    """

    def install(self, model: Any) -> list[nn.Parameter]:
        """Put the scales into a model's blocks; return the parameters to train."""
        places = places_of(model)
        scaled = [n for n in places.attention if n.rpartition(".")[2] in KEYS_AND_VALUES | FUSED]
        if not scaled:
            raise ConfigError(
                f"ia3: the keys and values of {type(model).__name__} are not known; use lora"
            )
        _need_peft("ia3")
        from peft import IA3Config

        names = [*scaled, *places.outer]
        config = IA3Config(
            target_modules=names,
            feedforward_modules=places.outer,
            fan_in_fan_out=_transposed(model, names),
        )
        return _injected(model, config, "ia3_")


def _need_peft(kind: str) -> None:
    if importlib.util.find_spec("peft") is None:
        raise MissingPackageError("peft", "peft", f"tuning by {kind}")


def _transposed(model: Any, names: list[str]) -> bool:
    """Return whether the layers store their weights like GPT-2, ``[in, out]``."""
    return all(isinstance(model.get_submodule(name), Conv1D) for name in names)


def _injected(model: Any, config: Any, prefix: str) -> list[nn.Parameter]:
    from peft import inject_adapter_in_model

    inject_adapter_in_model(config, model)
    return [p for name, p in model.named_parameters() if prefix in name]


VARIANTS = ("S", "P", "G")


class Path:
    """The state ``a`` of each pass on its way up, by thread: passes do not see each other's."""

    def __init__(self) -> None:
        self.states: dict[int, Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, without passes on their way."""
        return {"states": {}}


class Aside(AddedModule):
    """One block's step of the path: ``a_l = a_(l-1) + U gelu(D (h + a_(l-1)))``, U zero at first.

    ``h`` is what the block returns (S, G) or reads (P); ``a_l`` is added to what it returns, in G
    times a learned share from 0 to 1, one half at the start.
    """

    def __init__(self, width: int, narrow: int, variant: str, path: Path) -> None:
        super().__init__()
        self.down = nn.Linear(width, narrow)
        self.up = nn.Linear(narrow, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)
        self.gate = nn.Parameter(torch.zeros(())) if variant == "G" else None
        self.parallel = variant == "P"
        self.path = path

    def forward(self, read: Tensor, returned: Tensor) -> Tensor:
        """Return the block's states with the path's added, all ``[n, length, width]``."""
        place = threading.get_ident()
        before = self.path.states[place]
        step = self.up(functional.gelu(self.down((read if self.parallel else returned) + before)))
        after = self.path.states[place] = before + step
        share = 1.0 if self.gate is None else torch.sigmoid(self.gate)
        joined: Tensor = returned + (share * after).to(returned.dtype)
        return joined


@dataclass(frozen=True, slots=True)
@checked("iaa.")
class InsideAndAside:
    """IAA: adapters inside every block, and a path of small modules beside all of them.

    The path gives the lowest modules a way of their own to the last layer, on which gradients do
    not pass the frozen blocks. ``variant`` says how it joins them: S after a block, from what it
    returns, P beside it, from what it reads, G as S by a learned share. ``inside: false`` leaves
    the path alone. Modules have ``hidden / reduction`` dimensions. They cannot be merged. (Ma et
    al., 2022, arXiv 2208.09847, has the idea; the equations are ours.)
    """

    variant: Annotated[
        str, "Whether the path joins blocks after (S), beside (P), or by a share (G)."
    ] = "S"
    reduction: Annotated[int, Ge(1)] = 64
    inside: Annotated[bool, "Whether there are adapters inside the blocks too."] = True

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ConfigError(
                f"iaa.variant: {self.variant!r}, expected {', '.join(VARIANTS)}"
                f"{suggest(str(self.variant).upper(), VARIANTS)}"
            )

    def install(self, model: Any) -> list[nn.Parameter]:
        """Put the modules into a model's blocks and beside them; return the parameters to train."""
        trunk = model.base_model
        listed = layer_list(trunk)
        if listed is None:
            raise ConfigError(f"iaa: a {type(trunk).__name__} has no list of layers; use lora")
        parameters = Bottlenecks(self.reduction).install(model) if self.inside else []
        width, path = int(model.config.hidden_size), Path()
        narrow = max(1, width // self.reduction)
        for layer in listed[1]:
            device = next(layer.parameters()).device
            layer.aside = Aside(width, narrow, self.variant, path).to(device)
            layer.register_forward_hook(_step, with_kwargs=True)
            parameters.extend(layer.aside.parameters())
        trunk.aside_path = path
        trunk.register_forward_pre_hook(_begin)
        trunk.register_forward_hook(_end, always_call=True)
        return parameters


def _begin(trunk: Any, inputs: tuple[Any, ...]) -> None:
    if torch.is_grad_enabled() and trunk.training and recomputes(trunk):
        raise ConfigError(
            "tuning: iaa connects the blocks, which activation checkpointing computes one by one "
            "again; leave trainer.activation_checkpointing out, or use adapter"
        )
    trunk.aside_path.states[threading.get_ident()] = torch.zeros((), device=trunk.device)


def _step(layer: Any, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
    read = inputs[0] if inputs else named["hidden_states"]
    if isinstance(output, tuple):
        return layer.aside(read, output[0]), *output[1:]
    return layer.aside(read, output)


def _end(trunk: Any, inputs: tuple[Any, ...], output: Any) -> None:
    trunk.aside_path.states.pop(threading.get_ident(), None)
