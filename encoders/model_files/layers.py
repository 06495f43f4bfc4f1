"""Finds a transformer's layers, collects their outputs in one pass, and cuts off the last ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from sluice.encoders.foundation.errors import ConfigError, ModelError

# Names of the norm after the last layer, by family.
_NORMS = ("final_norm", "norm", "ln_f", "final_layer_norm", "final_layernorm")


def layer_list(model: Any) -> tuple[nn.Module, nn.ModuleList] | None:
    """Return a transformer's list of layers, first to last, after the module that holds it.

    None without such a list, as in ALBERT, whose layers share one module.
    """
    count = int(model.config.num_hidden_layers)
    for module in model.modules():
        for child in module.children():
            if isinstance(child, nn.ModuleList) and len(child) == count:
                return module, child
    return None


def recomputes(model: nn.Module) -> bool:
    """Return whether a model computes parts of itself again in the backward pass, to save memory.

    Any version of transformers marks these parts so; its property has had two names.
    """
    return any(getattr(part, "gradient_checkpointing", False) for part in model.modules())


def cut_layers(model: Any, count: int) -> None:
    """Keep the first ``count`` layers of a model and note it in the config, in place.

    Raises ``ConfigError`` for a number the model does not have.
    """
    holder_and_layers = layer_list(model)
    if holder_and_layers is None:
        raise ModelError(f"layers: a {type(model).__name__} has no list of layers to cut")
    layers = holder_and_layers[1]
    if type(count) is not int or not 1 <= count <= len(layers):
        raise ConfigError(
            f"layers: {count!r}; the model has {len(layers)}, expected 1 to {len(layers)}"
        )
    del layers[count:]
    model.config.num_hidden_layers = count
    kinds = getattr(model.config, "layer_types", None)
    if kinds is not None:
        model.config.layer_types = list(kinds)[:count]


@contextlib.contextmanager
def layer_outputs(model: Any, numbers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """Collect the outputs of the layers ``numbers`` (from 1) while the block runs the model.

    If the family has a norm after the last layer, it is applied to each output, which is then what
    a model cut after that layer would return. Raises ``ConfigError`` for a layer the model lacks.
    """
    holder_and_layers = layer_list(model)
    if holder_and_layers is None:
        raise ModelError(f"a {type(model).__name__} has no list of layers to read from")
    holder, layers = holder_and_layers
    wrong = [number for number in numbers if not 1 <= number <= len(layers)]
    if wrong:
        raise ConfigError(f"layer {wrong[0]}: the model has layers 1 to {len(layers)}")
    norm = next((getattr(holder, name) for name in _NORMS if hasattr(holder, name)), None)
    outputs: dict[int, Tensor] = {}

    def keep(number: int) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            outputs[number] = output[0] if isinstance(output, tuple) else output

        return hook

    # Not output_hidden_states: its hooks stay, and a model with hooks has no packed pass.
    hooks = [layers[number - 1].register_forward_hook(keep(number)) for number in numbers]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()
    if norm is not None:
        for number in outputs:
            outputs[number] = norm(outputs[number])
