"""Tuned models on disk: what can be merged is, what cannot lies in ``adapter/`` beside the rest."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.added_module import added_modules
from sluice.encoders.model_files.layout import ADAPTER, read_object
from sluice.encoders.table import TUNINGS

WEIGHTS = "adapter.safetensors"
SETTINGS = "adapter.json"
KINDS = ("adapter", "prefix")  # what cannot be merged

log = logging.getLogger("sluice")


@dataclass(frozen=True, slots=True)
class Tuned:
    """How a model was tuned: ``settings`` as in YAML, how much of it is trained, what was frozen.

    ``trainable`` of ``total`` parameters, the tuning's own and the encoder's heads included.
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
    def of(
        cls, module: nn.Module, settings: Mapping[str, Any], frozen: tuple[nn.Parameter, ...] = ()
    ) -> Tuned:
        """Count what a module trains as it is now."""
        parameters = list(module.parameters())
        return cls(
            dict(settings),
            sum(p.numel() for p in parameters if p.requires_grad),
            sum(p.numel() for p in parameters),
            frozen,
        )


def low_rank_layers(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and layer of what peft put in the place of linear layers."""
    for name, part in list(module.named_modules()):
        if hasattr(part, "base_layer") and type(part).__module__.startswith("peft."):
            yield name, part


def merged_state(module: Any) -> dict[str, Tensor]:
    """Return a module's state as it is after merging, under its own names; nothing is changed."""
    state: dict[str, Tensor] = dict(module.state_dict())
    for name, layer in low_rank_layers(module):
        state = {key: value for key, value in state.items() if not key.startswith(f"{name}.")}
        merged = copy.deepcopy(layer)
        with torch.no_grad():
            merged.merge()
        inner = merged.get_base_layer().state_dict()
        state |= {f"{name}.{key}": value for key, value in inner.items()}
    return state


def plain_state(model: Any) -> dict[str, Tensor] | None:
    """Return what a model's ordinary files hold: merged, without what cannot be.

    None for a model that was not tuned.
    """
    added = added_modules(model)
    if not added and not any(low_rank_layers(model)):
        return None
    starts = tuple(f"{name}." for name in added)
    return {k: v for k, v in merged_state(model).items() if not k.startswith(starts or ("\0",))}


def write_adapter(model: Any, folder: Path) -> None:
    """Write the parts of a model that cannot be merged into ``folder/adapter``; log that once."""
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
    (place / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    log.warning(
        "%s: its %s cannot be merged and is saved as %s/; other tools, sentence-transformers among "
        "them, read the model without it",
        type(model).__name__, model.tuned.kind, ADAPTER,
    )  # fmt: skip


def read_adapter(model: Any, folder: Path) -> None:
    """Put what ``write_adapter`` wrote back into a freshly loaded model, if there is any."""
    place = folder / ADAPTER
    if not place.is_dir():
        return
    settings = read_object(place / SETTINGS).get("tuning")
    if not isinstance(settings, dict):
        raise ModelError(f"{place / SETTINGS}: no 'tuning'; expected what Sluice wrote there")
    known = {kind: TUNINGS[kind] for kind in KINDS}
    try:
        state = safetensors.torch.load_file(place / WEIGHTS)
        _check_size(settings, state, place)
        build(settings, known, where="tuning", allow=()).install(model)
    except (ConfigError, OSError, safetensors.SafetensorError) as error:
        raise ModelError(f"{place}: {error}") from error
    wanted = {
        f"{name}.{key}": value
        for name, part in added_modules(model).items()
        for key, value in part.state_dict().items()
    }
    shapes, expected = ({k: tuple(v.shape) for k, v in side.items()} for side in (state, wanted))
    for key in sorted(key for key, _ in shapes.items() ^ expected.items()):
        raise ModelError(
            f"{place / WEIGHTS}: {key} is {shapes.get(key, 'missing')}, expected "
            f"{expected.get(key, 'no such tensor')}"
        )
    for key, value in state.items():
        if not value.is_floating_point():
            raise ModelError(f"{place / WEIGHTS}: {key} is {value.dtype}, expected floats")
    with torch.no_grad():
        for key, value in wanted.items():
            value.copy_(state[key])
    model.train(model.training)  # new parts are in training mode
    model.tuned = Tuned.of(model, settings)


def _check_size(settings: dict[str, Any], state: dict[str, Tensor], place: Path) -> None:
    """Refuse a prefix longer than its tensors before memory is taken for it."""
    tokens = settings.get("tokens", 0)
    widest = max((size for value in state.values() for size in value.shape), default=0)
    if isinstance(tokens, int) and tokens > widest:
        raise ModelError(f"{place / SETTINGS}: tokens {tokens}, and {WEIGHTS} holds {widest}")
