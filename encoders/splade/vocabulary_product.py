"""Multiplies states with the vocabulary for SPLADE encoding, block by block, pooling each at once.

The logits of a batch, ``[tokens, vocab]``, are the largest thing in SPLADE; here the logits of a
block of terms stay in the cache until they are pooled text by text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.transformer.packed.attention import Span
from sluice.encoders.transformer.packed.linear import PackedLinear

BLOCK = 512  # terms at a time: 8 MB of float32 logits for 4,096 tokens


class VocabularyProduct:
    """``pool_i log(1 + relu(states_i W^T + b))`` over each text's tokens, for inference.

    ``weight`` ``[vocab, hidden]`` and ``bias`` are copied into ``dtype``; make a new product when
    they change.
    """

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._size = len(weight)
        self._blocks = [
            PackedLinear(weight[start : start + BLOCK], bias[start : start + BLOCK], dtype)
            for start in range(0, len(weight), BLOCK)
        ]

    def __call__(
        self, states: Tensor, runs: Sequence[Span], *, pooling: Literal["max", "sum"], twice: bool
    ) -> Tensor:
        """Return term weights float32 ``[texts, vocab]`` of packed states ``[tokens, hidden]``.

        ``twice`` applies the logarithm twice (Geng et al., 2025).
        """
        states = states.to(self._dtype)
        pooled = torch.empty((sum(span.texts for span in runs), self._size), device=states.device)
        for place, block in enumerate(self._blocks):
            columns = slice(place * BLOCK, min((place + 1) * BLOCK, self._size))
            logits = block(states)
            if pooling == "sum":
                logits = _activated(logits.float(), twice)
            row = 0
            for span in runs:
                texts = logits[span.start : span.stop].view(span.texts, span.length, -1)
                into = pooled[row : row + span.texts, columns]
                into.copy_(texts.amax(dim=1) if pooling == "max" else texts.sum(dim=1))
                row += span.texts
        # The activation is monotone: it is applied to the maximum alone.
        return pooled if pooling == "sum" else _activated(pooled, twice)


def _activated(logits: Tensor, twice: bool) -> Tensor:
    weights = torch.log1p(logits.relu_())
    return torch.log1p(weights) if twice else weights


def last_layer(model: Any) -> nn.Linear:
    """Return the layer of a masked language model that is linear over the vocabulary."""
    decoder = model.get_output_embeddings()
    if isinstance(decoder, nn.Linear):
        return decoder
    raise ModelError(
        f"{type(model).__name__} ends in {type(decoder).__name__}; expected a masked "
        "language model whose last layer is linear over the vocabulary"
    )


def pass_through(model: Any, decoder: nn.Linear) -> None:
    """Let states pass the ``last_layer`` of a model unchanged: the pooling applies it, in blocks.

    ``ModelError`` where the head does more than that layer at its end, as MobileBERT's does.
    """
    decoder.forward = _unchanged  # type: ignore[assignment]
    one = torch.zeros((1, 1), dtype=torch.long, device=decoder.weight.device)
    try:
        width = model(input_ids=one, attention_mask=one + 1).logits.shape[-1]
    except RuntimeError:
        width = -1
    if width != decoder.in_features:
        raise ModelError(
            f"{type(model).__name__}: its head does more at its end than a linear layer "
            "over the vocabulary; SPLADE needs a BERT-like head"
        )


def _unchanged(states: Tensor) -> Tensor:
    return states
