"""Tunes by bottleneck adapters after the sublayers of every block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.model_files.adapters import AddedModule
from sluice.encoders.tuning.places import places_of

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
