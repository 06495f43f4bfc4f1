"""SPLADE pooling without keeping the logits: ``pool_i log(1 + relu(h_i W^T + b))``.

Logits over the vocabulary are the largest thing in a SPLADE step: batch x length x 30,522 floats.
Max pooling needs only the maximum over positions, and its gradient reaches only the position that
held it, for the terms that are active. So the forward pass makes the logits in chunks and forgets
them, and the backward pass touches one row of ``W`` and one state per active term: exact, and the
head's backward pass becomes almost free once vectors are sparse.

The logits of a batch, ``[tokens, vocab]``, are the largest thing in SPLADE; here the logits of a
block of terms stay in the cache until they are pooled text by text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.transformer.packed.attention import Span
from sluice.encoders.transformer.packed.linear import PackedLinear
from sluice.encoders.transformer.packed.packing import evened
from sluice.encoders.transformer.packed.training_layers import product

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
        states = evened(states.to(self._dtype))
        pool = largest_of(states) if pooling == "max" else functools.partial(torch.sum, dim=1)
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
                into.copy_(pool(texts))
                row += span.texts
        # The activation is monotone: it is applied to the maximum alone.
        return pooled if pooling == "sum" else _activated(pooled, twice)


def largest_of(states: Tensor) -> Callable[[Tensor], Tensor]:
    """Return what takes the maximum over positions of logits ``[n, length, terms]`` of states.

    It is right wherever it is above 0, and elsewhere some logit of the text: floats above 0 have
    the order of their bits, and the maximum of whole numbers takes a quarter of bfloat16's time,
    half of float32's. States that are not finite are not hidden so.
    """
    if not states.isfinite().all():
        return lambda logits: logits.amax(dim=1)
    whole = torch.int16 if states.element_size() == 2 else torch.int32
    return lambda logits: logits.view(whole).amax(dim=1).view(logits.dtype)


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


CHUNK_TOKENS = 512  # logits held at a time: 512 x 30,522 floats are 63 MB
BLOCK_TOKENS = 2_048  # whose logits of a block of terms are held at a time
PAIR_CHUNK = 4_096  # active (text, term) pairs handled at a time in the backward pass


class _MaxPool(torch.autograd.Function):
    """The maximum over real positions of the logits, ``[n, vocab]``, before activation."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, mask: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype
    ) -> Tensor:
        needs_gradient = any(ctx.needs_input_grad)
        pooled = states.new_empty((len(states), len(weight)), dtype=torch.float32)
        terms, added = weight.to(dtype), bias.to(dtype)
        blocks = states.device.type == "cpu"  # which has a cache that they fit in
        width = BLOCK if blocks else len(weight)
        active = []
        for part, length in _chunks(mask, BLOCK_TOKENS if blocks else CHUNK_TOKENS):
            taken = mask[part, :length].bool()
            # Where a text has no token its first one stands again, which changes no maximum.
            first = taken.to(torch.uint8).argmax(dim=1, keepdim=True)
            own = torch.where(taken, torch.arange(length, device=mask.device), first)
            chosen = evened(states[part.unsqueeze(1), own].to(dtype).flatten(0, 1))
            pool, none = largest_of(chosen), (~taken.any(dim=1)).nonzero(as_tuple=True)
            for start in range(0, len(weight), width):
                columns = slice(start, start + width)
                logits = product(chosen, terms[columns], added[columns])
                logits = logits[: own.numel()].view(*own.shape, -1)
                top = pool(logits)
                top[none] = float("-inf")
                pooled[part, columns] = top.float()
                if needs_gradient:
                    rows, place = (top > 0).nonzero(as_tuple=True)
                    where = own[rows, _positions(logits, top, rows, place)]
                    active.append(torch.stack([part[rows], start + place, where]))
        if needs_gradient:
            ctx.save_for_backward(states, weight, torch.cat(active, dim=1))
        return pooled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, active = ctx.saved_tensors
        (gradient,) = gradients
        length = states.shape[1]
        flat = states.reshape(-1, states.shape[-1]).float()
        to_states, to_weight = torch.zeros_like(flat), torch.zeros_like(weight)
        to_bias = torch.zeros(len(weight), device=weight.device)
        for start in range(0, active.shape[1], PAIR_CHUNK):
            rows, columns, where = active[:, start : start + PAIR_CHUNK]
            share = gradient[rows, columns].float()
            place = rows * length + where
            to_states.index_add_(0, place, share.unsqueeze(1) * weight[columns].float())
            to_weight.index_add_(0, columns, share.unsqueeze(1) * flat[place])
            to_bias.index_add_(0, columns, share)
        return to_states.view_as(states).to(states.dtype), None, to_weight, to_bias, None


def _chunks(mask: Tensor, tokens: int) -> Iterator[tuple[Tensor, int]]:
    """Yield the rows of texts of similar length, and how many of their positions are in use."""
    count = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    lengths = (mask.bool() * count).amax(dim=1).clamp(min=1)
    order = torch.argsort(lengths, descending=True, stable=True)
    longest = lengths[order].tolist()
    start = 0
    while start < len(order):
        step = max(1, tokens // longest[start])
        yield order[start : start + step], longest[start]
        start += step


def _positions(logits: Tensor, top: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the position that holds the maximum for each active (text, term) pair."""
    if len(rows) > top.numel() // 20:  # many active terms: one pass over everything is cheaper
        return logits.argmax(dim=1)[rows, columns]
    parts = []
    for start in range(0, len(rows), PAIR_CHUNK):
        r, c = rows[start : start + PAIR_CHUNK], columns[start : start + PAIR_CHUNK]
        parts.append((logits[r, :, c] == top[r, c].unsqueeze(1)).to(torch.uint8).argmax(dim=1))
    return torch.cat(parts) if parts else rows


def splade_max(
    states: Tensor, mask: Tensor, weight: Tensor, bias: Tensor, *, twice: bool = False
) -> Tensor:
    """Return ``max_i log(1 + relu(states_i W^T + b))`` over real positions, float32 ``[n, vocab]``.

    ``states`` ``[n, length, hidden]``, ``mask`` ``[n, length]``, ``weight`` ``[vocab, hidden]``.
    ``twice`` applies the logarithm twice (Geng et al., 2025). The maximum is taken before the
    monotone activation, and under autocast the product runs in the autocast type. Where several
    positions tie for the maximum, the gradient goes to the first.
    """
    device = states.device.type
    dtype = torch.float32
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        pooled: Tensor = _MaxPool.apply(  # type: ignore[no-untyped-call]
            states, mask, weight, bias, dtype
        )
        activated = torch.log1p(torch.relu(pooled))
        return torch.log1p(activated) if twice else activated


def splade_sum(
    states: Tensor, mask: Tensor, weight: Tensor, bias: Tensor, *, twice: bool = False
) -> Tensor:
    """Return ``sum_i log(1 + relu(states_i W^T + b))`` over real positions (SPLADE v1)."""
    step = max(1, CHUNK_TOKENS // states.shape[1])
    parts = []
    for start in range(0, len(states), step):
        part = slice(start, start + step)
        logits = torch.nn.functional.linear(states[part], weight, bias).float()
        activated = torch.log1p(torch.relu(logits))
        activated = torch.log1p(activated) if twice else activated
        parts.append((activated * mask[part].unsqueeze(-1)).sum(dim=1))
    return torch.cat(parts)
