"""Chooses which of an encoder's parameters learn: tunes a few of them, merges, freezes layers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import increment_version

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.adapters import Tuned, added_modules, low_rank_layers
from sluice.encoders.model_files.layers import layer_list
from sluice.encoders.table import TUNINGS

log = logging.getLogger("sluice")


def tune(
    encoder: Any, settings: Mapping[str, Any], *, where: str = "tuning", seed: int = 13
) -> Tuned:
    """Leave only what ``{type: lora, ...}`` names to train in an encoder, in place; log its share.

    Types: ``lora`` (``sluice.encoders.tuning.low_rank``), ``ia3``, ``adapter``
    (``sluice.encoders.tuning.bottleneck``), ``prefix``, ``bitfit``, ``ln_tuning``. The encoder's
    vectors stay what they are until it is trained. A dense encoder's projection and a
    cross-encoder's head are trained as before, SPLADE's head is not (``bitfit``: its biases are).
    Of two towers both are tuned, a frozen one is left alone. What starts at random is drawn by
    ``seed``. Learning rates are about ten times those of a full training; none is set here.

    A saved encoder is merged (``lora``, ``ia3``) or plain (``bitfit``, ``ln_tuning``); ``adapter``
    and ``prefix`` cannot be merged: they lie in ``adapter/`` of the folder, from where
    ``from_pretrained`` takes them, and sentence-transformers does not.

    Raises ``ConfigError`` for settings that do not fit the model, or one that is tuned already;
    ``MissingPackageError`` where peft is needed and not installed.
    """
    method = build(settings, TUNINGS, where=where)
    models = [m for m in _models(encoder) if any(p.requires_grad for p in m.parameters())]
    if not models:
        raise ConfigError(f"{where}: no parameter of the encoder is trained, so none can be tuned")
    for model in models:
        if hasattr(model, "tuned"):
            raise ConfigError(
                f"{where}: the encoder carries a tuning ({model.tuned.kind}) already; merge it "
                "first (sluice.encoders.tuning.tune.merge), or start from a model without one"
            )
    chosen: set[nn.Parameter] = set(_heads(encoder))
    held = {p: p.requires_grad for p in encoder.module.parameters()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            for model in models:
                chosen.update(method.install(model))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
    for parameter in encoder.module.parameters():
        parameter.requires_grad_(parameter in chosen and held.get(parameter, True))
    frozen = tuple(p for p, trained in held.items() if trained and not p.requires_grad)
    tuned = Tuned.of(encoder.module, settings, frozen)
    for model in models:
        model.train(model.training)  # new parts are in training mode
        model.tuned = tuned
    log.info(
        "%s: %s trains %s of %s parameters (%.2f%%)",
        type(models[0]).__name__, tuned.kind, f"{tuned.trainable:,}", f"{tuned.total:,}",
        100 * tuned.share,
    )  # fmt: skip
    return tuned


def merge(encoder: Any) -> None:
    """Merge a tuned encoder's LoRA or (IA)^3 into its weights, and free what tuning froze.

    Vectors stay what they are, within rounding. ``adapter`` and ``prefix`` stay where they are. An
    encoder that is not tuned is left alone.
    """
    for model in _models(encoder):
        tuned: Tuned | None = getattr(model, "tuned", None)
        if tuned is None:
            continue
        for name, layer in low_rank_layers(model):
            with torch.no_grad():
                layer.merge()
            above, _, own = name.rpartition(".")
            setattr(model.get_submodule(above), own, layer.get_base_layer())
        for parameter in tuned.frozen:
            parameter.requires_grad_(True)
        if not added_modules(model):
            del model.tuned
        if hasattr(model, "peft_config"):
            del model.peft_config
        # peft writes past the version counters by which hashes and packed weights are cached
        increment_version(list(model.parameters()))


def _models(encoder: Any) -> list[Any]:
    """Return the transformers of an encoder: one, or that of each tower."""
    if encoder.kind == "towers":
        return [tower.model for tower in encoder.towers.values()]
    return [encoder.model]


def _heads(encoder: Any) -> list[nn.Parameter]:
    """Return the trained parameters of an encoder's heads: they are trained on, whatever is tuned.

    Those beside the transformer (a projection), and of a classifier all but the blocks below it.
    """
    kept: set[int] = set()
    for model in _models(encoder):
        below = model.base_model if encoder.kind == "cross_encoder" else model
        kept.update(id(p) for name, p in below.named_parameters() if "pooler" not in name)
    return [p for p in encoder.module.parameters() if p.requires_grad and id(p) not in kept]


@dataclass(frozen=True, slots=True)
class Biases:
    """BitFit: only biases are trained, those of a SPLADE head too (Ben Zaken et al., 2022)."""

    def install(self, model: Any) -> list[nn.Parameter]:
        """Return what is trained; nothing is added."""
        chosen = [p for name, p in model.named_parameters() if name.rpartition(".")[2] == "bias"]
        if not chosen:
            raise ConfigError(f"bitfit: {type(model).__name__} has no biases; use lora")
        return chosen


@dataclass(frozen=True, slots=True)
class Norms:
    """Only the layer norms are trained, scale and bias (Zhao et al., 2023, arXiv 2312.11420)."""

    def install(self, model: Any) -> list[nn.Parameter]:
        """Return what is trained; nothing is added."""
        norms = [m for m in model.base_model.modules() if type(m).__name__.endswith("Norm")]
        chosen = [parameter for norm in norms for parameter in norm.parameters()]
        if not chosen:
            raise ConfigError(f"ln_tuning: {type(model).__name__} has no layer norms; use lora")
        return chosen


def freeze(encoder: Any, *, layers: int = 0, embeddings: bool = False) -> list[str]:
    """Freeze the lowest ``layers`` of an encoder, with ``embeddings`` also its embeddings.

    Returns the names of the parameters, as ``encoder.module`` names them, that no longer need a
    gradient. A vocabulary product that is tied to the word embeddings is frozen with them. Of
    separate towers it freezes both. Raises ``ConfigError`` for more layers than there are.
    """
    if type(layers) is not int or layers < 0:
        raise ConfigError(f"freeze.layers: {layers!r}; expected a whole number, 0 or more")
    for network in _networks(encoder):
        found = layer_list(network.base_model)
        if found is None:
            count = network.config.num_hidden_layers
            raise ModelError(
                f"{type(network).__name__}: has no list of {count} layers to freeze from"
            )
        stack = found[1]
        if layers > len(stack):
            raise ConfigError(
                f"freeze.layers: {layers}; {type(network).__name__} has {len(stack)} layers"
            )
        for layer in stack[:layers]:
            layer.requires_grad_(False)
        if embeddings:
            _embeddings(network).requires_grad_(False)
    return [name for name, p in encoder.module.named_parameters() if not p.requires_grad]


def _embeddings(network: Any) -> nn.Module:
    """Return all that comes before the first layer: of words, positions and segments."""
    whole = getattr(network.base_model, "embeddings", None)
    found: nn.Module = whole if isinstance(whole, nn.Module) else network.get_input_embeddings()
    return found


def _networks(encoder: Any) -> list[Any]:
    towers = getattr(encoder, "towers", None)
    return [encoder.model] if towers is None else [tower.model for tower in towers.values()]
