"""Saves tuned models, merged or with ``adapter/``; finds the layers of a transformer."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.disk.files import check_version, write_json
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.layout import ADAPTER, read_object
from sluice.encoders.model_files.weights.quantised import (
    Codes,
    PlainState,
    QuantisedLinear,
    block_linears,
    coded,
    weights_of,
)
from sluice.encoders.table import WAYS

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


def cut_layers(model: Any, count: int | None, *, exported: bool = False) -> None:
    """Keep the first ``count`` layers of a model and note it in the config, in place; None: all.

    Raises ``ConfigError`` for a number the model does not have, and for an exported graph's.
    """
    if count is None:
        return
    if exported:
        raise ConfigError("layers: an exported graph always runs all of them; use backend: torch")
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


WEIGHTS = "adapter.safetensors"
SETTINGS = "adapter.json"

log = logging.getLogger("sluice")


class AddedModule(nn.Module):
    """A part that tuning adds to a transformer and that cannot be merged into its weights."""


def added_modules(module: Any) -> dict[str, AddedModule]:
    """Return the added parts of a module by name."""
    return {name: m for name, m in module.named_modules() if isinstance(m, AddedModule)}


@dataclass(frozen=True, slots=True)
class Tuned:
    """How a model is tuned: ``settings`` as in YAML, and the parameters it froze.

    ``trainable`` of ``total`` parameters learn, the tuning's own and the encoder's heads included.
    """

    settings: dict[str, Any]
    trainable: int
    total: int
    frozen: tuple[nn.Parameter, ...] = ()

    @property
    def kind(self) -> str:
        """The type's name in YAML."""
        return str(self.settings["type"])

    @property
    def share(self) -> float:
        """The share of the parameters that is trained, 0 to 1."""
        return self.trainable / self.total

    @classmethod
    def count(
        cls, module: nn.Module, settings: Mapping[str, Any], frozen: tuple[nn.Parameter, ...] = ()
    ) -> Tuned:
        """Count the parameters of a module that learn now, among them all and what is coded."""
        parameters = list(module.parameters())
        matrices = {id(codes): codes.rows * codes.width for _, codes in coded(module)}
        return cls(
            dict(settings),
            sum(p.numel() for p in parameters if p.requires_grad),
            sum(p.numel() for p in parameters) + sum(matrices.values()),
            frozen,
        )


def low_rank_layers(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and layer of each linear layer that peft replaced."""
    for name, part in list(module.named_modules()):
        if hasattr(part, "base_layer") and type(part).__module__.startswith("peft."):
            yield name, part


def merged_state(module: Any) -> Mapping[str, Tensor]:
    """Return a module's state after merging, under its original names; the module is unchanged.

    What codes stand for is made when it is asked for.
    """
    state: dict[str, Tensor | Codes] = dict(module.state_dict())
    for name, codes in coded(module):
        state = {key: value for key, value in state.items() if not key.startswith(f"{name}.")}
        state[f"{name.rpartition('.')[0]}.weight"] = codes
    for name, layer in low_rank_layers(module):
        state = {key: value for key, value in state.items() if not key.startswith(f"{name}.")}
        merged = copy.deepcopy(layer)
        merge_layer(merged)
        inner = merged.get_base_layer().state_dict()
        state |= {f"{name}.{key}": value for key, value in inner.items()}
    return PlainState(state)


def merge_layer(layer: Any) -> None:
    """Merge a layer that peft replaced; codes become weights of 32 bits before."""
    if isinstance(layer.base_layer, QuantisedLinear):
        layer.base_layer = layer.base_layer.as_linear()
    with torch.no_grad():
        layer.merge()


def noted_weights(model: Any) -> dict[str, str]:
    """Return what a saved folder notes of a model's type of weights, {} of 32 bits.

    What was merged is not what codes stand for, and all is read as it is saved.
    """
    weights, added = weights_of(model), tuple(f"{name}." for name in added_modules(model))
    merged = [name for name in block_linears(model) if not name.startswith(added or ("\0",))]
    if weights == "float32" or merged or any(low_rank_layers(model)):
        return {}
    return {"weights": weights}


def tuned_of(model: Any) -> Tuned | None:
    """Return how a model is tuned, None where it is not."""
    tuned: Tuned | None = vars(model).get("tuned")
    return tuned


def plain_state(model: Any) -> dict[str, Tensor] | None:
    """Return the weights for a model's ordinary files: merged, without what cannot be merged.

    None for a model that was not tuned and has no codes.
    """
    added = added_modules(model)
    if not added and not any(low_rank_layers(model)) and not any(coded(model)):
        return None
    starts = tuple(f"{name}." for name in added)
    return {k: v for k, v in merged_state(model).items() if not k.startswith(starts or ("\0",))}


def write_adapter(model: Any, folder: Path) -> None:
    """Write the parts of a model that cannot be merged to ``folder/adapter``, and log a warning."""
    parts = added_modules(model)
    if not parts:
        return
    place = folder / ADAPTER
    place.mkdir()
    state = {
        f"{name}.{key}": value.detach().cpu().contiguous()
        for name, part in parts.items()
        for key, value in part.state_dict().items()
    }
    safetensors.torch.save_file(state, place / WEIGHTS)
    settings = {"version": 1, "tuning": model.tuned.settings}
    write_json(place / SETTINGS, settings)
    log.warning(
        "%s: its %s cannot be merged and is saved as %s/; sentence-transformers refuses the model, "
        "and other tools may read it without",
        type(model).__name__, model.tuned.kind, ADAPTER,
    )  # fmt: skip


def read_adapter(model: Any, folder: Path) -> None:
    """Put what ``write_adapter`` wrote, if anything, back into a freshly loaded model."""
    place = folder / ADAPTER
    if not place.is_dir():
        return
    facts = read_object(place / SETTINGS)
    check_version(facts.get("version", 1), 1, place / SETTINGS, ModelError)
    settings = facts.get("tuning")
    if not isinstance(settings, dict):
        raise ModelError(f"{place / SETTINGS}: no 'tuning'; expected the file Sluice wrote")
    known = {kind: each.place for kind, each in WAYS.items() if each.apart}
    try:
        state = safetensors.torch.load_file(place / WEIGHTS)
        settings = _named_now(settings, state)
        _check_size(settings, state, place)
        build(settings, known, where="tuning", allow=()).install(model)
    except (ConfigError, OSError, safetensors.SafetensorError) as error:
        raise ModelError(f"{place}: {error}") from error
    parameters = {
        f"{name}.{key}": value
        for name, part in added_modules(model).items()
        for key, value in part.state_dict().items()
    }
    shapes, expected = (
        {k: tuple(v.shape) for k, v in side.items()} for side in (state, parameters)
    )
    for key in sorted(key for key, _ in shapes.items() ^ expected.items()):
        raise ModelError(
            f"{place / WEIGHTS}: {key} is {shapes.get(key, 'missing')}, expected "
            f"{expected.get(key, 'no such tensor')}"
        )
    for key, value in state.items():
        if not value.is_floating_point():
            raise ModelError(f"{place / WEIGHTS}: {key} is {value.dtype}, expected floats")
    with torch.no_grad():
        for key, value in parameters.items():
            value.copy_(state[key])
    model.train(model.training)  # new parts are in training mode
    model.tuned = Tuned.count(model, settings)


def _named_now(settings: dict[str, Any], state: dict[str, Tensor]) -> dict[str, Any]:
    """Return settings by today's names: a prefix with gates was ``prefix`` and is another now."""
    way = WAYS.get(str(settings.get("type")))
    gated = way is not None and way.gated and any(key.endswith(".gates") for key in state)
    return {**settings, "type": way.gated} if way is not None and gated else settings


def _check_size(settings: dict[str, Any], state: dict[str, Tensor], place: Path) -> None:
    """Refuse a prefix longer than its tensors before allocating memory for it."""
    tokens = settings.get("tokens", 0)
    widest = max((size for value in state.values() for size in value.shape), default=0)
    if isinstance(tokens, int) and tokens > widest:
        raise ModelError(f"{place / SETTINGS}: tokens is {tokens}, but {WEIGHTS} holds {widest}")
