"""Attention inside each text of a packed batch, for training: texts of equal length together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from sluice.encoders.transformer.packed.attention import Span
from sluice.encoders.transformer.packed.training_dropout import Dropout

SCORES = 1 << 21  # bytes of attention scores at a time: they stay in the cache


def attended(
    projected: Tensor, bias: Tensor | None, runs: Sequence[Span], heads: int, dropout: Dropout
) -> Tensor:
    """Return ``[tokens, hidden]`` of queries, keys and values ``[tokens, 3 hidden]``.

    ``bias`` ``[heads, longest, longest]`` is added to the scores, and gets a gradient. (Vaswani et
    al., 2017, arXiv 1706.03762, equation 1.)
    """
    out: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        projected, bias, runs, heads, dropout
    )
    return out


class _Attention(torch.autograd.Function):
    """Softmax attention that keeps the probabilities and the dropped places, not the scores."""

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, bias: Tensor | None, runs: Sequence[Span], heads: int,
        dropout: Dropout,
    ) -> Tensor:  # fmt: skip
        out = projected.new_empty((len(projected), projected.shape[1] // 3))
        keeps = any(ctx.needs_input_grad)
        saved: list[Tensor | None] = []
        for part in _pieces(runs, heads, projected.dtype):
            query, key, value = _split(projected, part, heads, 3)
            scores = torch.bmm(query.mul_(query.shape[-1] ** -0.5), key.transpose(1, 2))
            if bias is not None:
                scores.view(part.texts, heads, part.length, part.length).add_(
                    bias[:, : part.length, : part.length]
                )
            shares = torch.softmax(scores, dim=-1)
            kept = dropout.kept(shares.shape)
            if kept is None:
                mixed = torch.bmm(shares, value)
            else:
                mixed = torch.bmm(shares * kept, value).mul_(dropout.scale)
            _put(out, mixed, part, heads)
            if keeps:
                saved += shares, kept
        ctx.save_for_backward(projected, bias, *saved)
        ctx.settings = runs, heads, dropout
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        projected, bias, *saved = ctx.saved_tensors
        runs, heads, dropout = ctx.settings
        to_projected = torch.empty_like(projected)
        to_bias = torch.zeros_like(bias) if ctx.needs_input_grad[1] else None
        size = projected.shape[1] // 3 // heads
        for place, part in enumerate(_pieces(runs, heads, projected.dtype)):
            shares, kept = saved[2 * place : 2 * place + 2]
            query, key, value = _split(projected, part, heads, 3)
            (onward,) = _split(gradient, part, heads, 1)
            to_shares = torch.bmm(onward.mul_(dropout.scale), value.transpose(1, 2))
            used = shares
            if kept is not None:
                to_shares.mul_(kept)
                used = shares * kept
            to_value = torch.bmm(used.transpose(1, 2), onward)
            to_scores = torch._softmax_backward_data(to_shares, shares, -1, shares.dtype)
            if to_bias is not None:
                shape = part.texts, heads, part.length, part.length
                to_bias[:, : part.length, : part.length] += to_scores.view(shape).sum(0)
            to_query = torch.bmm(to_scores, key).mul_(size**-0.5)
            to_key = torch.bmm(to_scores.transpose(1, 2), query).mul_(size**-0.5)
            _put(to_projected, torch.stack([to_query, to_key, to_value]), part, heads)
        return to_projected, to_bias, None, None, None


def _pieces(runs: Sequence[Span], heads: int, dtype: torch.dtype) -> Iterator[Span]:
    """Yield the runs in pieces whose scores stay in the cache."""
    for start, _, texts, length in runs:
        step = max(1, SCORES // (heads * length * length * dtype.itemsize))
        for first in range(0, texts, step):
            count = min(step, texts - first)
            at = start + first * length
            yield Span(at, at + count * length, count, length)


def _split(tokens: Tensor, part: Span, heads: int, kinds: int) -> Tensor:
    """Return a copy ``[kinds, texts * heads, length, size]`` of ``[tokens, kinds hidden]``."""
    rows = tokens[part.start : part.stop].view(part.texts, part.length, kinds, heads, -1)
    parts = torch.empty((kinds, part.texts, heads, part.length, rows.shape[-1]), dtype=tokens.dtype)
    return parts.copy_(rows.permute(2, 0, 3, 1, 4)).flatten(1, 2)


def _put(into: Tensor, parts: Tensor, part: Span, heads: int) -> None:
    """Write ``[kinds, texts * heads, length, size]`` to its tokens."""
    shape = part.texts, part.length, -1, heads, parts.shape[-1]
    into[part.start : part.stop].view(shape).copy_(
        parts.view(-1, part.texts, heads, part.length, parts.shape[-1]).permute(1, 3, 0, 2, 4)
    )
