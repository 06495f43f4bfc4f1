"""Runs a language model token by token: logits of the next token, and completions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.transformer.decoder_attention import cache_name


class NextTokens:
    """The prompts of one batch, which a transformers model continues.

    ``texts`` are the prompts' tokens and ``before`` those that every answer begins with. ``keep``
    keeps the keys and values read so far, for ``after``. A decoder reads prompts padded on the
    left, and returns logits of the last position only, if its class can.
    """

    def __init__(
        self,
        model: Any,
        texts: Sequence[Sequence[int]],
        before: Sequence[int],
        *,
        padding: int,
        device: torch.device,
        keep: bool,
    ) -> None:
        self._model = model
        self._keep = keep
        self._cache: Any = None
        self._cache_name = cache_name(model)
        self._fixed: dict[str, Any] = {}
        self._device = device
        known = inspect.signature(model.forward).parameters
        self._knows = {"position_ids", "logits_to_keep"} & set(known)
        self.encoder_decoder = bool(model.config.is_encoder_decoder)
        if self.encoder_decoder:
            ids, mask = _padded(texts, padding, left=False)
            features = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
            self._fixed["encoder_outputs"] = model.get_encoder()(**features)
            self._mask = features["attention_mask"]
            start = [first_token_of(model.config), *before]
            self._tokens = torch.tensor([start] * len(texts), device=device)
        else:
            ids, mask = _padded([[*text, *before] for text in texts], padding, left=True)
            self._tokens, self._mask = ids.to(device), mask.to(device)
        self.logits = self._passed()

    def after(self, tokens: Tensor) -> None:
        """Continue each prompt with one token, ``[n]``."""
        self._tokens = tokens[:, None]
        if not self.encoder_decoder:
            self._mask = torch.cat([self._mask, torch.ones_like(self._mask[:, :1])], dim=1)
        self.logits = self._passed()

    def _passed(self) -> Tensor:
        """Return the logits ``[n, vocabulary]`` after the tokens."""
        options = dict(self._fixed)
        if self.encoder_decoder:
            options["decoder_input_ids"] = self._tokens
        else:
            options["input_ids"] = self._tokens
            if "position_ids" in self._knows:  # padding on the left takes no position
                places = (self._mask.cumsum(dim=1) - 1).clamp_min(0)
                options["position_ids"] = places[:, -self._tokens.shape[1] :]
            if "logits_to_keep" in self._knows:  # all logits of a prompt would take gigabytes
                options["logits_to_keep"] = 1
        if self._cache is not None:
            options[self._cache_name] = self._cache
        output = self._model(attention_mask=self._mask, use_cache=self._keep, **options)
        self._cache = output.get(self._cache_name) if self._keep else None
        logits: Tensor = output.logits[:, -1]
        return logits

    def greedy(self, most: int, ends: Collection[int]) -> list[list[int]]:
        """Return the most likely tokens, at most ``most`` of them or until one of ``ends``."""
        return self._written(most, ends, lambda logits: logits.argmax(dim=-1))

    def drawn(
        self,
        most: int,
        ends: Collection[int],
        temperature: float,
        chances: Sequence[np.random.Generator],
    ) -> list[list[int]]:
        """Return tokens drawn by softmax(logits / temperature), each text's by its own chance."""

        def choose(logits: Tensor) -> Tensor:
            shares = (logits.double() / temperature).softmax(dim=-1).cumsum(dim=-1)
            uniform = torch.tensor([[chance.random()] for chance in chances]).to(shares)
            return (shares <= uniform * shares[:, -1:]).sum(dim=-1).clamp_max(shares.shape[1] - 1)

        return self._written(most, ends, choose)

    def _written(
        self, most: int, ends: Collection[int], choose: Callable[[Tensor], Tensor]
    ) -> list[list[int]]:
        written: list[list[int]] = [[] for _ in range(len(self._tokens))]
        running = set(range(len(written)))
        for left in range(most, 0, -1):
            tokens = choose(self.logits)
            for row, token in enumerate(tokens.tolist()):
                if token in ends:
                    running.discard(row)
                elif row in running:
                    written[row].append(token)
            if not running or left == 1:
                break
            self.after(tokens)
        return written


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a model's answers, from its configuration."""
    ends: set[int] = set()
    for home in (getattr(model, "generation_config", None), model.config, tokenizer):
        tokens = getattr(home, "eos_token_id", None)
        if tokens is not None:
            ends |= {int(token) for token in (tokens if isinstance(tokens, list) else [tokens])}
    return frozenset(ends)


def first_token_of(config: Any) -> int:
    """Return the token that a decoder begins with; ``ModelError`` if its config names none."""
    for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
        token = getattr(config, name, None)
        if token is not None:
            return int(token)
    raise ModelError(f"{type(config).__name__}: no decoder_start_token_id; a decoder needs one")


def _padded(texts: Sequence[Sequence[int]], padding: int, *, left: bool) -> tuple[Tensor, Tensor]:
    """Return ids and mask ``[n, longest]``."""
    longest = max(map(len, texts))
    ids = torch.full((len(texts), longest), padding)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        place = slice(longest - len(text), longest) if left else slice(0, len(text))
        ids[row, place] = torch.as_tensor(text)
        mask[row, place] = 1
    return ids, mask
