"""The layers of a transformer: their outputs in one pass, and models cut after the first few."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from sluice.encoders.foundation.errors import ConfigError, ModelError

# What families call the norm behind their last layer.
_NORMS = ("final_norm", "norm", "ln_f", "final_layer_norm", "final_layernorm")


def layer_list(model: Any) -> tuple[nn.Module, nn.ModuleList] | None:
    """Return a transformer's layers, the first first, and the module that holds their list.

    None where there is no such list, as in ALBERT, whose layers are one.
    """
    count = int(model.config.num_hidden_layers)
    for module in model.modules():
        for child in module.children():
            if isinstance(child, nn.ModuleList) and len(child) == count:
                return module, child
    return None


def cut_layers(model: Any, count: int) -> None:
    """Keep the first ``count`` layers of a model, in place; its config says so too.

    Raises ``ConfigError`` for a number the model does not have.
    """
    found = layer_list(model)
    if found is None:
        raise ModelError(f"layers: a {type(model).__name__} has no list of layers to cut")
    layers = found[1]
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= len(layers):
        raise ConfigError(f"layers: {count!r}; the model has 1 to {len(layers)}")
    del layers[count:]
    model.config.num_hidden_layers = count
    kinds = getattr(model.config, "layer_types", None)
    if kinds is not None:
        model.config.layer_types = list(kinds)[:count]


@contextlib.contextmanager
def layer_outputs(model: Any, numbers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """Collect what the layers ``numbers`` (from 1) put out while the block runs the model.

    Where the family normalises behind the last layer, the outputs are normalised the same way, so
    that each is what a model cut after that layer ends in. Raises ``ConfigError`` for a layer the
    model does not have.
    """
    found = layer_list(model)
    if found is None:
        raise ModelError(f"a {type(model).__name__} has no list of layers to look into")
    holder, layers = found
    wrong = [number for number in numbers if not 1 <= number <= len(layers)]
    if wrong:
        raise ConfigError(f"layer {wrong[0]}: the model has 1 to {len(layers)}")
    norm = next((getattr(holder, name) for name in _NORMS if hasattr(holder, name)), None)
    outputs: dict[int, Tensor] = {}

    def keep(number: int) -> Any:
        def hook(module: nn.Module, given: Any, output: Any) -> None:
            outputs[number] = output[0] if isinstance(output, tuple) else output

        return hook

    # Not output_hidden_states, whose hooks stay: a model with hooks has no packed pass.
    hooks = [layers[number - 1].register_forward_hook(keep(number)) for number in numbers]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()
    if norm is not None:
        for number in outputs:
            outputs[number] = norm(outputs[number])
