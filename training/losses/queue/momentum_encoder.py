"""The key encoder of momentum contrast: a moving average of the trained encoder."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.training.losses.queue.text_augmentation import Tokens
from sluice.training.protocol import Features, Side

ROWS = 256  # texts of one pass
COUNTS = "counts"  # of tokens, among the state's names of weights


class KeyEncoder:
    """A copy of an encoder in evaluation mode, whose weights are a moving average of the trained.

    ``counts`` are of the tokens in the texts so far, which sort them into classes of frequency.
    """

    def __init__(self, encoder: Any, tokens: Tokens) -> None:
        shared = (hooks_of(encoder).tokenizer, hooks_of(encoder).backend)
        self._trained: nn.Module = encoder.module
        self._copy = copy.deepcopy(encoder, {id(part): part for part in shared})
        self.module: nn.Module = self._copy.module
        self.module.eval()
        self.module.requires_grad_(False)
        self.tokens = tokens
        self.vocabulary = len(tokens.ordinary)
        self.counts = torch.zeros(self.vocabulary, dtype=torch.long)
        self._staged = torch.zeros_like(self.counts)

    def embed(self, features: Features, side: Side) -> Tensor:
        """Return vectors ``[n, dim]`` without gradients."""
        total = len(features["input_ids"])
        parts = []
        with torch.no_grad():
            for start in range(0, total, ROWS):
                part = {name: values[start : start + ROWS] for name, values in features.items()}
                parts.append(self._copy.embed(part, side))
        return torch.cat(parts)

    def stage(self, counts: Tensor) -> None:
        """Keep a batch's counts of tokens for the next ``follow``."""
        self._staged += counts

    @torch.no_grad()
    def follow(self, momentum: float) -> None:
        """Move to ``momentum`` times the own weights plus the rest of the trained ones."""
        self.counts += self._staged
        self._staged = torch.zeros_like(self.counts)
        trained = dict(self._trained.named_parameters())
        for name, parameter in self.module.named_parameters():
            if momentum == 0:  # exactly, whatever the sum would round to
                parameter.copy_(trained[name])
            elif momentum < 1:
                parameter.mul_(momentum).add_(trained[name].detach(), alpha=1 - momentum)
        buffers = dict(self._trained.named_buffers())
        for name, buffer in self.module.named_buffers():
            buffer.copy_(buffers[name])

    def state(self) -> dict[str, Tensor]:
        """Return weights and counts by name."""
        weights = {name: value.detach().clone() for name, value in self.module.named_parameters()}
        return {**weights, COUNTS: self.counts.clone()}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take what ``state`` returned."""
        for name, parameter in self.module.named_parameters():
            parameter.copy_(state[name])
        self.counts = state[COUNTS].cpu().clone()
        self._staged = torch.zeros_like(self.counts)


def tokens_of(encoder: Any) -> Tokens:
    """Return what augmentation needs to know of an encoder's tokens.

    Without a mask token the unknown one hides others, without this the padding.
    """
    rows = [m.num_embeddings for m in encoder.module.modules() if isinstance(m, nn.Embedding)]
    if not rows:
        raise ConfigError(
            "momentum_queue.modes: this encoder has no embeddings of tokens to augment; expected []"
        )
    ordinary = torch.ones(max(rows), dtype=torch.bool)
    # An encoder's own; of separate towers, theirs.
    parts = (encoder, *hooks_of(encoder).towers.values())
    owned = [hooks_of(part).tokenizer for part in parts]
    tokenizers = [tokenizer for tokenizer in owned if tokenizer is not None]
    special = {i for each in tokenizers for i in each.all_special_ids} if tokenizers else {0}
    ordinary[sorted(i for i in special if i < len(ordinary))] = False
    masks = {_hiding(tokenizer) for tokenizer in tokenizers} or {0}
    if len(masks) > 1:
        raise ConfigError(
            "momentum_queue.modes: the towers' tokenizers have different mask tokens; expected []"
        )
    return Tokens(masks.pop(), ordinary)


def _hiding(tokenizer: Any) -> int:
    names = ("mask_token_id", "unk_token_id", "pad_token_id")
    ids = (getattr(tokenizer, name, None) for name in names)
    return next((token for token in ids if token is not None), 0)
