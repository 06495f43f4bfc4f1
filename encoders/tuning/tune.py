"""Chooses which of an encoder's parameters learn: tunes a few of them, merges, freezes layers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import increment_version

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.model_files.adapters import (
    Tuned,
    added_modules,
    layer_list,
    low_rank_layers,
    merge_layer,
    tuned_of,
)
from sluice.encoders.table import TUNINGS
from sluice.encoders.tuning.learning import learning_of, refused_tuning

log = logging.getLogger("sluice")


def tune(
    encoder: Any, settings: Mapping[str, Any], *, where: str = "tuning", seed: int = 13
) -> Tuned:
    """Train only the parameters that ``{type: lora, ...}`` chooses, in place; log their share.

    Types: ``lora``, ``adapter`` and ``iaa`` (``sluice.encoders.tuning.adapters``), ``ia3``,
    ``prefix``, ``gated_prefix``, ``bitfit``, ``ln_tuning``, ``experts``. The vectors do not change
    until the encoder is trained, but with ``prefix`` they do. A dense encoder's projection and a
    cross-encoder's head are trained as before, SPLADE's head is not (``bitfit``: its biases are).
    Both towers are tuned, but not a frozen one. New parameters are drawn by ``seed``. Learning
    rates are about ten times those of training all parameters; none is set here.

    A saved encoder is merged (``lora``, ``ia3``) or plain (``bitfit``, ``ln_tuning``, ``experts``);
    the others cannot be merged: they are saved in ``adapter/`` of the folder, which
    ``from_pretrained`` reads and sentence-transformers does not.

    Raises ``ConfigError`` for settings that do not fit the model, or a model that is already tuned;
    ``MissingPackageError`` if peft is needed and not installed.
    """
    method = build(settings, TUNINGS, where=where)
    models = [m for m in networks(encoder) if any(p.requires_grad for p in m.parameters())]
    if not models:
        raise ConfigError(
            f"{where}: no parameter of the encoder is trainable, so none can be tuned"
        )
    if why := refused_tuning(encoder.kind, settings["type"]):
        raise ConfigError(f"{where}.type: {why}")
    for model in models:
        if (before := tuned_of(model)) is not None:
            raise ConfigError(
                f"{where}: the encoder is already tuned ({before.kind}); merge it "
                "first (sluice.encoders.tuning.tune.merge), or start from an untuned model"
            )
    chosen: set[nn.Parameter] = set(_heads(encoder))
    trainable = {p: p.requires_grad for p in encoder.module.parameters()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            for model in models:
                chosen.update(method.install(model))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
    for parameter in encoder.module.parameters():
        parameter.requires_grad_(parameter in chosen and trainable.get(parameter, True))
    frozen = tuple(p for p, trained in trainable.items() if trained and not p.requires_grad)
    tuned = Tuned.count(encoder.module, settings, frozen)
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

    Vectors stay the same, within rounding. What cannot be merged stays beside the weights. An
    encoder that is not tuned stays as it is.
    """
    for model in networks(encoder):
        tuned = tuned_of(model)
        if tuned is None:
            continue
        for name, layer in low_rank_layers(model):
            merge_layer(layer)
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


def networks(encoder: Any) -> list[Any]:
    """Return the transformers of an encoder: one, or that of each tower."""
    towers = hooks_of(encoder).towers
    return [tower.model for tower in towers.values()] if towers else [encoder.model]


def _heads(encoder: Any) -> list[nn.Parameter]:
    """Return the parameters of an encoder's heads, which stay trainable under any tuning.

    Those beside the transformer (a projection), and in a classifier all but the blocks below it.
    """
    body, learning = set[int](), learning_of(encoder.kind)
    for model in networks(encoder):
        classifies = "scores" in learning.learns and not learning.no_head
        below = model.base_model if classifies else model
        body.update(id(p) for name, p in below.named_parameters() if "pooler" not in name)
    return [p for p in encoder.module.parameters() if p.requires_grad and id(p) not in body]


@dataclass(frozen=True, slots=True)
class Biases:
    """BitFit: only biases are trained, also in a SPLADE head (Ben Zaken et al., 2022)."""

    def install(self, model: Any) -> list[nn.Parameter]:
        """Return the parameters to train; nothing is added."""
        chosen = [p for name, p in model.named_parameters() if name.rpartition(".")[2] == "bias"]
        if not chosen:
            raise ConfigError(f"bitfit: {type(model).__name__} has no biases; use lora")
        return chosen


@dataclass(frozen=True, slots=True)
class Norms:
    """Only the layer norms are trained, scale and bias (Zhao et al., 2023, arXiv 2312.11420)."""

    def install(self, model: Any) -> list[nn.Parameter]:
        """Return the parameters to train; nothing is added."""
        norms = [m for m in model.base_model.modules() if type(m).__name__.endswith("Norm")]
        chosen = [parameter for norm in norms for parameter in norm.parameters()]
        if not chosen:
            raise ConfigError(f"ln_tuning: {type(model).__name__} has no layer norms; use lora")
        return chosen


def freeze(encoder: Any, *, layers: int = 0, embeddings: bool = False) -> list[str]:
    """Freeze the lowest ``layers`` of an encoder, with ``embeddings`` also its embeddings.

    Returns the names of the frozen parameters in ``encoder.module``. A vocabulary product that is
    tied to the word embeddings is frozen with them. Separate towers are both frozen. Raises
    ``ConfigError`` for more layers than there are.
    """
    whole_number(layers, "freeze.layers", 0)
    for network in networks(encoder):
        holder_and_layers = layer_list(network.base_model)
        if holder_and_layers is None:
            count = network.config.num_hidden_layers
            raise ModelError(
                f"{type(network).__name__}: has no list of {count} layers to freeze from"
            )
        stack = holder_and_layers[1]
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
    """Return the embeddings of words, positions and segments."""
    own = getattr(network.base_model, "embeddings", None)
    embeddings: nn.Module = own if isinstance(own, nn.Module) else network.get_input_embeddings()
    return embeddings
