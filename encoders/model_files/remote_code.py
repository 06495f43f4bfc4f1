"""Refuses what in a model folder would make transformers run code or look elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import read_model_json
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files.layout import read_object
from sluice.encoders.model_files.weights.files import (
    EXPLICIT,
    check_weights,
    has_weights,
    refuse_pickle,
)

PEFT = "adapter_config.json"
MODULE_FILES = ("modules.json", "router_config.json", "config.json")
OWN_MODULES = re.compile(r"sentence_transformers(\.\w+)+")
ACTIVATIONS = re.compile(r"torch\.nn(\.\w+)+|relu|log1p_relu|None")
LOADING = "sentence_*_config.json"
PICKLES = (".bin", ".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".joblib")
LAYERWISE = re.compile("layer_?wise|cost_?wise", re.IGNORECASE)  # in names of architectures
KERNELS = ("attn_implementation", "_attn_implementation", "experts_implementation")

# For every ``from_pretrained`` of transformers: nothing of the folder runs, nothing is fetched.
LOCAL: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}


def refuse_code(home: Path) -> None:
    """Raise ``ModelError`` for a model that needs code of its own, or parts from elsewhere."""
    from transformers import CONFIG_MAPPING

    config = read_object(home / "config.json")
    kind = config.get("model_type")
    _refuse_layerwise(home / "config.json", config)
    if "auto_map" in config and kind not in CONFIG_MAPPING:
        raise ModelError(
            f"{home / 'config.json'}: auto_map names code of the folder for the model type {kind!r}"
            ", which transformers does not have; Sluice runs no code of a model folder: take a "
            "model of a type that transformers has, or load this one yourself and give its "
            "function as an encoder"
        )
    _refuse_kernels(home / "config.json", config)
    if (home / PEFT).exists():
        raise ModelError(
            f"{home / PEFT}: an adapter beside a model, which may lie elsewhere; merge both with "
            "peft (merge_and_unload) and save the model"
        )


def _refuse_layerwise(file: Path, config: Mapping[str, Any]) -> None:
    """Refuse BGE's rerankers with a head at each upper layer: what is left scores by noise."""
    names = config.get("architectures")
    for name in names if isinstance(names, list) else ():
        if LAYERWISE.search(str(name)):
            raise ModelError(
                f"{file}: {name} scores by a head at each of its upper layers, which only code of "
                "its own reads (bge-reranker-v2-minicpm-layerwise, "
                "bge-reranker-v2.5-gemma2-lightweight); take BAAI/bge-reranker-v2-gemma or "
                "BAAI/bge-reranker-v2-m3"
            )


def _refuse_kernels(file: Path, config: Any) -> None:
    for key, value in _places(config):
        names = value.values() if isinstance(value, Mapping) else [value]
        if key in KERNELS and any("/" in str(name) for name in names):
            raise ModelError(
                f"{file}: {key} is {value!r}, a kernel that would be fetched and run; delete "
                f"{key}, and the usual one is taken"
            )


def refuse_own_modules(folder: Path) -> None:
    """Raise ``ModelError`` where a folder of sentence-transformers names classes of its own.

    Its modules may be that package's, their activations torch's. Pickled weights are refused too,
    except beside safetensors, which are taken instead.
    """
    refuse_code(folder)
    for file in sorted(folder.rglob(LOADING)):  # arguments of from_pretrained
        value = read_model_json(file)
        _refuse_kernels(file, value)
        if any(key == "use_safetensors" and not inner for key, inner in _places(value)):
            raise ModelError(f"{file}: use_safetensors is not true; delete it")
    for file in sorted(file for name in MODULE_FILES for file in folder.rglob(name)):
        value = read_model_json(file)
        if isinstance(value, Mapping) and "model_type" in value:  # a network of transformers
            refuse_code(file.parent)
            if EXPLICIT in value or has_weights(file.parent):
                check_weights(file.parent, folder)
            continue
        for name in _types(value):
            if not OWN_MODULES.fullmatch(name):
                raise ModelError(
                    f"{file}: {name!r} is not a module of sentence-transformers; Sluice runs no "
                    "code of a model folder"
                )
        for key, inner in _places(value):
            if key == "activation_function" and not ACTIVATIONS.fullmatch(str(inner)):
                raise ModelError(
                    f"{file}: {key} is {inner!r}, expected one of torch.nn; Sluice runs no code of "
                    "a model folder"
                )
    pickles = sorted(file for file in folder.rglob("*") if file.suffix in PICKLES)
    read = [file for file in pickles if not has_weights(file.parent)]
    refuse_pickle(folder, [file for file in read if file.name.startswith("pytorch_model")])
    if read:
        raise ModelError(f"{read[0]}: may be a pickle, which runs code; expected safetensors")


def _types(value: Any) -> Iterator[str]:
    """Yield the classes in modules.json (a list of modules) and a router's config (``types``)."""
    if isinstance(value, Mapping):
        types = value.get("types")
        yield from map(str, types.values() if isinstance(types, Mapping) else ())
    for entry in value if isinstance(value, list) else ():
        yield str(entry.get("type") if isinstance(entry, Mapping) else entry)


def _places(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key of nested objects with its value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key), inner
            yield from _places(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _places(inner)
