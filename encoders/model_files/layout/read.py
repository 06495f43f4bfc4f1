"""Reads both spellings of sentence-transformers' folder layout, as one ``Layout``."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files.layout.files import (
    SETTINGS,
    SIDECAR,
    length_in,
    read_object,
    read_sidecar,
)
from sluice.encoders.model_files.layout.modules import (
    AUTOENCODER,
    OWN,
    VECTOR_MODULES,
    check_modules,
    read_modules,
    token_layout,
    transformer_folder,
)
from sluice.encoders.model_files.router import PROMPTS, is_router, network_folder

log = logging.getLogger("sluice")

# The modules by which an encoder's folder is known: its name, and its type in YAML.
_KINDS = {
    "SpladePooling": ("SPLADE encoder", "splade"), "Gaussian": ("Gaussian encoder", "gaussian"),
    "HyperHead": ("Hypencoder", "hypencoder"), "Experts": ("sparse-expert encoder", "experts"),
    "Concepts": ("concept encoder", "concepts"),
    "PseudoQueries": ("pseudo-query encoder", "pseudo_queries"),
    AUTOENCODER: ("CSR encoder", "csr"),
}  # fmt: skip

# Ours -> sentence-transformers' (legacy key, new value), in the order in which several of the
# legacy keys stand side by side.
POOLINGS = {
    "cls": ("pooling_mode_cls_token", "cls"),
    "max": ("pooling_mode_max_tokens", "max"),
    "mean": ("pooling_mode_mean_tokens", "mean"),
    "mean_sqrt": ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
    "weighted_mean": ("pooling_mode_weightedmean_tokens", "weightedmean"),
    "last": ("pooling_mode_lasttoken", "lasttoken"),
}


class VectorModule(NamedTuple):
    """A module that maps vectors: ``Dense``, ``LayerNorm`` or ``Normalize``, and its folder."""

    kind: str
    folder: Path


@dataclass(slots=True)
class Layout:
    """The contents of a model folder besides weights and tokenizer."""

    modules: tuple[str, ...] = ()  # class names in order: Transformer, Pooling, Dense, Normalize
    pooling: str | tuple[str, ...] | None = None  # several side by side
    pool_prompt: bool = True
    splade_pooling: str | None = None
    activation: str = "relu"
    layers: tuple[VectorModule, ...] = ()  # between the pooling and the last Normalize
    normalize: bool = False  # whether vectors have length 1 in the end
    gaussian: Path | None = None  # the folder of what makes variances
    max_length: int | None = None
    lengths: dict[str, int | None] = field(default_factory=dict)  # of a side, by its setting
    truncate_dim: int | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity: str | None = None
    sidecar: dict[str, Any] = field(default_factory=dict)


def read_layout(folder: Path) -> Layout:
    """Read a folder's layout; a bare transformers folder has an empty ``Layout``."""
    layout = Layout(sidecar=read_sidecar(folder))
    if is_router(folder):
        network_folder(folder)  # refuses towers
        raise ModelError(
            f"{folder}: a SPLADE folder with query weights; load it with SpladeEncoder (type: "
            "splade)"
        )
    if token_layout(folder):
        raise ModelError(
            f"{folder}: a token encoder's folder; load it with TokenEncoder (type: tokens)"
        )
    entries = read_modules(folder)
    layout.modules = tuple(kind for kind, _ in entries)
    check_modules(folder, layout.modules)
    for kind, setting in OWN.items():
        if kind in layout.modules and setting not in layout.sidecar:
            raise ModelError(
                f"{folder / SIDECAR}: has no {setting}, and modules.json names {kind}, which is "
                "nothing without it; copy sluice.json too from where the model was saved"
            )
    for kind, place in entries:
        if kind == "Pooling":
            _read_pooling(layout, place)
        elif kind == "SpladePooling":
            config = read_object(place / "config.json")
            layout.splade_pooling = str(config.get("pooling_strategy", "max"))
            layout.activation = str(config.get("activation_function", "relu"))
        elif kind in VECTOR_MODULES:
            _check_input(place)
            layout.layers += (VectorModule(kind, place),)
        elif kind == "Gaussian":
            layout.gaussian = place
    if layout.layers and layout.layers[-1].kind == "Normalize":
        layout.normalize = True
        layout.layers = layout.layers[:-1]
    own = read_object(transformer_folder(folder) / SETTINGS)
    layout.max_length = length_in(own, "max_seq_length", folder) or None
    sides = ("query_length", "document_length")
    layout.lengths = {side: length_in(own, side, folder) for side in sides}
    settings = read_object(folder / PROMPTS)
    layout.truncate_dim = length_in(settings, "truncate_dim", folder)
    prompts = settings.get("prompts") or {}
    default = settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not isinstance(default, str | None):
        raise ModelError(f"{folder / PROMPTS}: prompts is not a mapping")
    layout.prompts = {key: str(value) for key, value in prompts.items()}
    layout.default_prompt = default
    layout.similarity = settings.get("similarity_fn_name")
    _follow_similarity(layout, folder)
    return layout


def refuse_others(layout: Layout, folder: Path, own: str = "") -> None:
    """Raise ``ModelError`` for a folder with the module of another encoder than ``own``."""
    for module, (name, kind) in _KINDS.items():
        if module in layout.modules and module != own:
            raise ModelError(f"{folder}: a {name}'s folder; load it with type: {kind}")


def _follow_similarity(layout: Layout, folder: Path) -> None:
    """Scale vectors to length 1 where the folder compares them by the cosine."""
    if layout.similarity in ("euclidean", "manhattan"):
        log.warning(
            "%s: compares vectors by the %s distance; here the score is their inner product",
            folder, layout.similarity,
        )  # fmt: skip
    of_texts = {"Pooling", "StaticEmbedding"} & set(layout.modules)
    if AUTOENCODER in layout.modules:  # what is compared are its codes
        return
    if of_texts and layout.similarity == "cosine" and not layout.normalize:
        log.info(
            "%s: has no Normalize module but compares by the cosine, so vectors are scaled to "
            "length 1; normalize: false leaves them as they are", folder,
        )  # fmt: skip
        layout.normalize = True


def _check_input(place: Path) -> None:
    """Raise ``ModelError`` for a module that reads other than the texts' vectors."""
    config = read_object(place / "config.json")
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in ("sentence_embedding", None):
            raise ModelError(
                f"{place / 'config.json'}: {key} is {config[key]!r}; expected "
                "'sentence_embedding', the vectors of texts"
            )


def _read_pooling(layout: Layout, place: Path) -> None:
    config = read_object(place / "config.json")
    mode = config.get("pooling_mode")
    named = [ours for ours, (key, _) in POOLINGS.items() if config.get(key)]
    if mode is not None:
        ours = {new: ours for ours, (_, new) in POOLINGS.items()}
        modes = mode if isinstance(mode, list) else [mode]
        unknown = [each for each in modes if not isinstance(each, str) or each not in ours]
        if unknown or not modes:
            raise ModelError(
                f"{place / 'config.json'}: pooling_mode is {mode!r}; known: {', '.join(ours)}"
            )
        named = [ours[each] for each in modes]
    layout.pooling = tuple(named) if len(named) > 1 else (named or ["mean"])[0]
    layout.pool_prompt = bool(config.get("include_prompt", True))
