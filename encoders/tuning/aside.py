"""Tunes by adapters that are connected from the lowest block to the highest, beside the blocks."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.model_files.adapters import AddedModule
from sluice.encoders.model_files.layers import layer_list, recomputes
from sluice.encoders.tuning.bottleneck import Bottlenecks

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
