"""Loads and saves transformers models and tokenizers; whatever does not fit is a ModelError."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.layout import (
    SETTINGS,
    SIDECAR,
    Layout,
    is_static_folder,
    length_in,
    network_config,
    position_limit,
    read_object,
    read_sidecar,
    transformer_folder,
)
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.options import computing
from sluice.encoders.model_files.prompts import side_prompts
from sluice.encoders.model_files.remote_code import LOCAL, refuse_code
from sluice.encoders.model_files.weights.files import QUANTISED, check_weights, stored_weights
from sluice.encoders.model_files.weights.quantised import Weights, check_weights_type, quantise


class Loaded(NamedTuple):
    """A model in evaluation mode, its tokenizer, folder, and newly drawn parameters.

    Parameters are float32; matrices may be codes.
    """

    model: Any
    tokenizer: Any
    folder: Path
    fresh: list[str]


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' load reports; our own errors name what is missing or new."""
    from transformers.utils import logging as hf

    level, bars = hf.get_verbosity(), hf.is_progress_bar_enabled()
    hf.set_verbosity_error()
    hf.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf.set_verbosity(level)
        if bars:
            hf.enable_progress_bar()


@contextlib.contextmanager
def as_model_error(folder: Path, what: str) -> Iterator[None]:
    """Turn whatever transformers raises on an untrusted folder into a ``ModelError``."""
    try:
        yield
    except (ModelError, MemoryError):
        raise
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise ModelError(
                f"{folder}: needs code of its own to be loaded as {what}, and Sluice runs no code "
                "of a model folder; take a model of a type that transformers has"
            ) from error
        line = (str(error).strip() or repr(error)).splitlines()[0]
        raise ModelError(f"{folder}: cannot be loaded as {what}: {line}") from error


def is_pooler(key: str, model: Any) -> bool:
    """Return whether a parameter belongs to the pooler, which the encoders' poolings replace."""
    return "pooler" in key.split(".")


def is_head(key: str, model: Any) -> bool:
    """Return whether a parameter belongs to a task's head, not to the encoder below."""
    return is_pooler(key, model) or not key.startswith(model.base_model_prefix + ".")


def load(
    auto_class: Any,
    name: str,
    *,
    fresh: Callable[[str, Any], bool] = is_pooler,
    seed: int = 13,
    weights: Weights = "float32",
    **config: Any,
) -> Loaded:
    """Load a local folder or hub id; reads safetensors only, and runs no code from the folder.

    ``weights`` of 8 or 4 bits are made here, see ``quantised``; a file of 16 bits is then read as
    such. ``config`` overrides its configuration. Missing parameters are drawn by ``seed`` if
    ``fresh(key, model)`` allows it; other missing or mismatched ones are a ``ModelError``.
    """
    from transformers import AutoConfig

    from sluice.encoders.model_files.adapters import read_adapter

    folder = model_folder(name)
    if is_static_folder(folder):
        raise ModelError(
            f"{folder}: static embeddings, which have no network; load it with StaticEncoder "
            "(type: static)"
        )
    home = transformer_folder(folder)
    network_config(home)
    refuse_code(home)
    _check_config(home)
    check_weights(home, folder)
    rng = torch.random.fork_rng(devices=[])
    with quiet_transformers(), rng, as_model_error(home, auto_class.__name__):
        settings = AutoConfig.from_pretrained(home, **LOCAL, **config)
        auto_class = _encoder_alone(auto_class, settings)
        _check_size(auto_class, settings, home)
        torch.manual_seed(seed)
        tokenizer = _tokenizer(home, settings)
        model, report = auto_class.from_pretrained(
            home,
            **LOCAL,
            config=settings,
            use_safetensors=True,
            dtype=torch.float32 if weights == "float32" else _TYPES[stored_weights(home).half],
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # named below
            **_without_pooler(auto_class, settings),
        )
    missing = sorted(report["missing_keys"])
    refused = [key for key in missing if not fresh(key, model)]
    if refused:
        raise ModelError(
            f"{home}: the weights lack {len(refused)} parameters that config.json requires, such "
            f"as {', '.join(refused[:3])}"
        )
    for key, actual, expected in sorted(report["mismatched_keys"]):
        raise ModelError(
            f"{home}: {key} is {list(actual)} in the weights, expected {list(expected)} by "
            "config.json"
        )
    _check_loaded(model, home)
    if weights != "float32":
        quantise(model, weights)
    read_adapter(model.eval(), home)
    return Loaded(model, tokenizer, folder, missing)


def weights_type(name: str, chosen: Weights | None, backend: str | None = None) -> Weights:
    """Return the type of weights that is chosen, else the one that a model's folder notes.

    Raises ``ConfigError`` for one that there is not, and for fewer bits than 32 beside an exported
    graph.
    """
    folder = model_folder(name)
    facts = read_sidecar(folder)
    noted = facts.get("weights", "float32")
    try:
        check_weights_type(noted)
    except ConfigError as error:
        raise ModelError(f"{folder / SIDECAR}: {error}") from None
    exported = (backend or facts.get("backend", "torch")) != "torch"
    weights: Weights = ("float32" if exported else noted) if chosen is None else chosen
    check_weights_type(weights)
    if exported and weights != "float32":
        raise ConfigError(
            f"weights: {weights}: an exported graph has weights of its own; use backend: torch, or "
            "leave weights out and name a graph of 8 bits by backend_file"
        )
    return weights


def _check_config(home: Path) -> None:
    """Raise ``ModelError`` for quantised weights, or a type that this transformers lacks."""
    from transformers import CONFIG_MAPPING, __version__

    config = read_object(home / "config.json")
    how = config.get("quantization_config")
    if how is not None:
        named = how.get("quant_method") or next(iter(how), None) if isinstance(how, dict) else how
        raise ModelError(f"{home / 'config.json'}: quantization_config ({named}): {QUANTISED}")
    kind = config.get("model_type")
    if isinstance(kind, str) and kind not in CONFIG_MAPPING:
        raise ModelError(
            f"{home / 'config.json'}: model_type is {kind!r}, which transformers {__version__} "
            "does not have; a newer one may (pip install -U transformers), or take another model"
        )


def _check_size(auto_class: Any, config: Any, home: Path) -> None:
    """Raise ``ModelError`` for a configuration of a much larger model than the weights are of.

    What the weights lack would be drawn, in memory, before it could be named. The model is laid out
    without numbers only where its settings are large enough to matter.
    """
    stored = stored_weights(home)
    sizes = list(_whole_numbers(config.to_dict()))
    parts = [(key, value) for key, value in sizes if _PARTS.search(key)]
    for key, value in parts:
        if value > max(stored.tensors, MANY_PARTS):
            raise ModelError(
                f"{home / 'config.json'}: {key} is {value:,}, and the weights have "
                f"{stored.tensors:,} tensors; they do not belong together: copy both again"
            )
    largest, most = (max((value for _, value in each), default=1) for each in (sizes, parts))
    if largest**3 * most <= SMALL:
        return
    with torch.device("meta"):
        expected = sum(value.numel() for value in auto_class.from_config(config).parameters())
    if expected > 2 * stored.numbers + SPARE:
        raise ModelError(
            f"{home / 'config.json'}: describes a model of {expected:,} parameters, and the "
            f"weights are {stored.numbers:,} numbers; they do not belong together: copy both again"
        )


def _whole_numbers(settings: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers of settings, those of settings inside them too."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _whole_numbers(value)
        elif type(value) is int:
            yield str(key), value


def _check_loaded(model: Any, home: Path) -> None:
    """Raise ``ModelError`` for a model that reads no tokens, or with damaged weights."""
    if model.main_input_name != "input_ids":
        raise ModelError(
            f"{home}: a {type(model).__name__} reads {model.main_input_name}, and texts are "
            "input_ids; take a model of texts"
        )
    for name, value in model.named_parameters():
        if not bool(value.detach().sum().isfinite()):  # one pass, without a copy
            raise ModelError(
                f"{home}: {name} has numbers that are not finite, and so would every vector; the "
                "weights are damaged, or their training diverged: take an earlier checkpoint"
            )


def _encoder_alone(auto_class: Any, config: Any) -> Any:
    """Return what loads a T5's encoder without its decoder, where a plain encoder is wanted.

    (Ni et al., 2021, sentence-T5, arXiv 2108.08877, and GTR, arXiv 2112.07899.)
    """
    from transformers import AutoModel, AutoModelForTextEncoding

    halves = auto_class is AutoModel and config.model_type in ("t5", "mt5", "umt5")
    return AutoModelForTextEncoding if halves else auto_class


def _without_pooler(auto_class: Any, config: Any) -> dict[str, bool]:
    """Return the option that leaves out a plain encoder's pooler, if its class has one.

    A masked language model's checkpoint has no weights for it: it would be drawn at random.
    """
    from transformers import MODEL_MAPPING, AutoModel

    if auto_class is not AutoModel or type(config) not in MODEL_MAPPING:
        return {}
    names = inspect.signature(MODEL_MAPPING[type(config)]).parameters
    return {"add_pooling_layer": False} if "add_pooling_layer" in names else {}


def _tokenizer(home: Path, config: Any) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(home, **LOCAL)
    except Exception as error:  # each kind of tokenizer has its own
        if "trust_remote_code" in str(error):
            raise
        line = (str(error).strip() or repr(error)).splitlines()[0]
        raise ModelError(
            f"{home}: its tokenizer cannot be read ({line}); copy tokenizer.json and what lies "
            "beside it again from where the model is"
        ) from error
    files = tokenizer.vocab_files_names.values()
    if files and not any((home / file).exists() for file in files):
        raise ModelError(f"{home}: no tokenizer; expected one of {', '.join(sorted(files))}")
    if not isinstance(tokenizer.model_max_length, int | float):
        raise ModelError(f"{home}: model_max_length is {tokenizer.model_max_length!r}")
    rows = getattr(config, "vocab_size", None)
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if isinstance(rows, int) and largest >= rows:
        raise ModelError(
            f"{home}: the tokenizer has token id {largest}, the model's vocabulary is {rows}; "
            "they do not belong together"
        )
    if read_object(home / SETTINGS).get("do_lower_case"):
        _lower_case(tokenizer)
    return tokenizer


def _lower_case(tokenizer: Any) -> None:
    """Make a fast tokenizer lower-case its input, like sentence-transformers' ``do_lower_case``."""
    from tokenizers.normalizers import Lowercase, Sequence

    backend = tokenizer.backend_tokenizer
    steps = _normalizers(tokenizer)
    if not any(step["type"] == "Lowercase" or step.get("lowercase") for step in steps):
        present = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = Sequence([Lowercase(), *present])


def lowers(tokenizer: Any) -> bool:
    """Return whether texts are lower-cased first; saved in settings, as tokenizers may lose it."""
    steps = _normalizers(tokenizer)
    return bool(steps) and steps[0]["type"] == "Lowercase"


def _normalizers(tokenizer: Any) -> list[dict[str, Any]]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    state = json.loads(backend.to_str())["normalizer"] if backend is not None else None
    if state is None:
        return []
    steps: list[dict[str, Any]] = state.get("normalizers", [state])
    return steps


def save(model: Any, folder: Path) -> None:
    """Write a transformers model's configuration and safetensors, merged if it was tuned.

    What cannot be merged goes to a folder beside them, see
    ``sluice.encoders.model_files.adapters``.
    """
    from sluice.encoders.model_files.adapters import plain_state, write_adapter

    with quiet_transformers():
        model.save_pretrained(folder, state_dict=plain_state(model))
    write_adapter(model, folder)


def text_settings(loaded: Loaded, layout: Layout, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes a text encoder: its ``TextOptions``, with the folder's in place of None.

    Raises ``ConfigError`` for a length the model does not take.
    """
    model, tokenizer, folder, _ = loaded
    usual, limit = lengths_of(tokenizer, model.config, layout.max_length)
    prompts = side_prompts(layout, folder)
    settings: dict[str, Any] = {f"{side}_prompt": prompt for side, prompt in prompts.items()}
    for side in ("query_length", "document_length"):
        noted = length_in(layout.sidecar, side, folder) or layout.lengths.get(side)
        settings[side] = min(noted or usual, limit)
    settings |= {key: options[key] for key in settings if options[key] is not None}
    for side in ("query_length", "document_length"):
        if not 3 <= settings[side] <= limit:
            raise ConfigError(f"{side}: {settings[side]}; the model takes 3 to {limit} tokens")
    return {**settings, **computing(options)}


def lengths_of(tokenizer: Any, config: Any, noted: int | None = None) -> tuple[int, int]:
    """Return the length a model is used at and the longest it takes, in tokens.

    The first is ``noted`` in the folder, else the tokenizer's; the second is set by the position
    embeddings, if the model has any.
    """
    usual = int(getattr(tokenizer, "model_max_length", 512))
    usual = usual if usual < 1_000_000 else 512
    positions = getattr(config, "max_position_embeddings", None)
    limit = position_limit(positions, config.model_type, config.pad_token_id)
    longest = limit or max(usual, noted or 0)
    return min(noted or usual, longest), longest


_PARTS = re.compile(r"(layers?|experts|blocks)$")  # settings of what a model has many of
MANY_PARTS = 512  # that any model may have
SMALL = 1 << 29  # numbers; the layouts of tiny models are not worth their time
SPARE = 1 << 26  # numbers of heads that are drawn
_TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
