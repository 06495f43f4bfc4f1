"""Adapts decoders to encoding: attention in both directions, padding on either side."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from sluice.encoders.foundation.errors import ConfigError

Attention = Literal["causal", "bidirectional"]
_KNOWN = ("causal", "bidirectional")


def set_attention(model: Any, attention: Attention | None) -> None:
    """Let every token of a decoder attend to all others, or only to those before it.

    None follows the model's configuration (``is_causal``, set in a saved model). The result is
    checked on two tokens, with and without padding. A sliding window stays, on both sides.
    (BehnamGhader et al., 2024, LLM2Vec.) Raises ``ConfigError`` if a model's mask cannot be removed
    or added.
    """
    if attention is not None and attention not in _KNOWN:
        raise ConfigError(f"attention: {attention!r}; known: {', '.join(_KNOWN)}")
    noted = getattr(model.config, "is_causal", None)
    if attention is None and noted is None:
        return
    causal = noted if attention is None else attention == "causal"
    if noted is None and _looks_ahead(model) == {not causal}:
        return
    model.config.is_causal = causal  # decides the mask
    for module in model.modules():
        if isinstance(getattr(module, "is_causal", None), bool):
            module.is_causal = causal  # decides without padding, when no mask is given
    if _looks_ahead(model) != {not causal}:
        raise ConfigError(
            f"attention: {type(model).__name__} cannot be made {_KNOWN[not causal]}: its mask is "
            "built differently from that of Llama, Qwen, Mistral, Gemma and GPT-2"
        )


def with_positions(model: Any, features: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a decoder's features with positions counted from each text's first real token.

    Without them, absolute positions would start at padding on the left. Features of other models
    are returned unchanged.
    """
    if "position_ids" in features or not _is_decoder(model):
        return features
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return features
    positions = (features["attention_mask"].long().cumsum(dim=1) - 1).clamp(min=0)
    return {**features, "position_ids": positions}


def cache_name(model: Any) -> str:
    """Return what a model's ``forward`` and outputs call the keys and values of earlier tokens."""
    known = inspect.signature(model.forward).parameters
    return "cache" if "cache" in known else "past_key_values"  # the name before transformers 5.2x


@contextmanager
def causal_attention(model: Any) -> Iterator[None]:
    """Run the block with every token of a decoder attending to those before it alone."""
    noted = getattr(model.config, "is_causal", None)
    if noted is not False:  # it does already
        yield
        return
    parts = [part for part in model.modules() if getattr(part, "is_causal", None) is False]
    model.config.is_causal = True
    for part in parts:
        part.is_causal = True
    try:
        yield
    finally:
        model.config.is_causal = False
        for part in parts:
            part.is_causal = False


def reads_as_decoder(model: Any) -> bool:
    """Return whether a model is a decoder, whatever its attention is set to now."""
    return _is_decoder(model)


def is_causal(model: Any) -> bool:
    """Return whether the tokens of a text see only those before them."""
    return _is_decoder(model) and _looks_ahead(model) != {True}


def _is_decoder(model: Any) -> bool:
    """Return whether a model's layers read from left to right by default."""
    noted = getattr(model.config, "is_causal", None) is not None
    return noted or any(getattr(module, "is_causal", False) is True for module in model.modules())


def _looks_ahead(model: Any) -> set[bool]:
    """Return whether the first token's state depends on the second's, with and without padding."""
    ids = torch.tensor([[0, 1, 0], [0, 2, 0]], device=model.device)
    mask = torch.tensor([[1, 1, 0]] * 2, device=model.device)
    answers = set()
    for length in (2, 3):
        with torch.no_grad():
            states = model(
                input_ids=ids[:, :length], attention_mask=mask[:, :length]
            ).last_hidden_state
        answers.add(not torch.equal(states[0, 0], states[1, 0]))
    return answers
