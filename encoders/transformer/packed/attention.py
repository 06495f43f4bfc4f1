"""Computes attention inside each text of a packed batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

SCORES = 1 << 21  # bytes of attention scores at a time: they stay in the cache
# Float32 texts of this many tokens and more go through torch's flash attention: from about 130 to
# 256 tokens the two are level, at 512 it is 1.6 times as fast, at 66 two thirds as fast.
FLASH_FROM = 160


class Span(NamedTuple):
    """Neighbouring texts of equal length: tokens ``start`` to ``stop``.

    All tokens of a text see its first ``seen``, usually all.
    """

    start: int
    stop: int
    texts: int
    length: int
    seen: int


def spans(lengths: Sequence[int], seen: Sequence[int] | None = None) -> Iterator[Span]:
    """Yield the runs of equal lengths, and of equally many tokens ``seen``, in order."""
    start = 0
    for (length, visible), group in itertools.groupby(zip(lengths, seen or lengths, strict=True)):
        count = sum(1 for _ in group)
        yield Span(start, start + count * length, count, length, visible)
        start += count * length


class Attention(Protocol):
    """Attention over one batch's texts; ``bias`` ``[heads, longest, longest]`` adds to scores."""

    def __call__(self, projected: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``[tokens, hidden]`` of queries, keys and values ``[tokens, 3 hidden]``."""
        ...

    def first(self, queries: Tensor, rest: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``[texts, hidden]`` of the first tokens' queries and all keys and values."""
        ...


class TextAttention:
    """Texts of equal length together, without any padding: for CPUs."""

    def __init__(
        self, lengths: Sequence[int], heads: int, seen: Sequence[int] | None = None
    ) -> None:
        self._runs = list(spans(lengths, seen))
        self._heads = heads

    def __call__(self, projected: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``[tokens, hidden]`` of queries, keys and values ``[tokens, 3 hidden]``."""
        out = projected.new_empty((len(projected), projected.shape[1] // 3))
        for span in self._runs:
            shape = span.texts, span.length, -1, self._heads, projected.shape[1] // 3 // self._heads
            parts = projected[span.start : span.stop].view(shape)
            into = out[span.start : span.stop].view(shape)[:, :, 0]
            added = None if bias is None else bias[:, : span.length, : span.seen]
            if projected.dtype is torch.float32 and span.length >= FLASH_FROM:
                query, key, value = parts.permute(2, 0, 3, 1, 4)
                key, value = key[:, :, : span.seen], value[:, :, : span.seen]
                into.copy_(_fused(query, key, value, added).transpose(1, 2))
            else:
                _scored(parts, into, added, span.seen)
        return out

    def first(self, queries: Tensor, rest: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``[texts, hidden]`` of the first tokens' queries and all keys and values."""
        out, done = torch.empty_like(queries), 0
        for span in self._runs:
            texts = slice(done, done + span.texts)
            query = queries[texts].view(span.texts, self._heads, 1, -1)
            both = rest[span.start : span.stop].view(span.texts, span.length, 2, self._heads, -1)
            key, value = both[:, : span.seen].permute(2, 0, 3, 1, 4)
            added = None if bias is None else bias[:, :1, : span.seen]
            out[texts] = _fused(query, key, value, added).reshape(span.texts, -1)
            done += span.texts
        return out


class PaddedAttention:
    """All texts in one call, padded for the attention alone: for accelerators.

    Nothing else sees the padding; in a batch of like lengths there is little of it.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        heads: int,
        device: torch.device,
        seen: Sequence[int] | None = None,
    ) -> None:
        sizes = torch.tensor(lengths)
        longest = int(sizes.max())
        places = torch.arange(longest)
        self._heads = heads
        mask = places[None] < sizes[:, None]
        starts = sizes.cumsum(0) - sizes
        # Where each place of the padded batch comes from; padding repeats a text's first token.
        self._from = torch.where(mask, starts[:, None] + places, starts[:, None]).to(device)
        self._to = mask.flatten().nonzero().squeeze(-1).to(device)
        visible = places[None] < torch.tensor(seen or lengths)[:, None]
        self._added = None if bool(visible.all()) else visible.to(device)[:, None, None]

    def __call__(self, projected: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``[tokens, hidden]`` of queries, keys and values ``[tokens, 3 hidden]``."""
        texts, longest = self._from.shape
        parts = projected[self._from].view(texts, longest, 3, self._heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = _fused(query, key, value, self._mask(projected, bias)).transpose(1, 2)
        return mixed.reshape(texts * longest, -1)[self._to]

    def first(self, queries: Tensor, rest: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``[texts, hidden]`` of the first tokens' queries and all keys and values."""
        texts, longest = self._from.shape
        both = rest[self._from].view(texts, longest, 2, self._heads, -1)
        key, value = both.permute(2, 0, 3, 1, 4)
        query = queries.view(texts, self._heads, 1, -1)
        row = None if bias is None else bias[:, :1]
        return _fused(query, key, value, self._mask(queries, row)).reshape(texts, -1)

    def _mask(self, like: Tensor, bias: Tensor | None) -> Tensor | None:
        if bias is None:
            return self._added
        added = bias[..., : self._from.shape[1]][None].to(like.dtype)
        if added.shape[-2] > 1:
            added = added[..., : self._from.shape[1], :]
        if self._added is None:
            return added
        return added.masked_fill(~self._added, float("-inf"))


def attention(
    lengths: Sequence[int], heads: int, device: torch.device, seen: Sequence[int] | None = None
) -> Attention:
    """Return what suits the device; ``seen`` tokens of each text are seen, by default all."""
    if device.type == "cpu":
        return TextAttention(lengths, heads, seen)
    return PaddedAttention(lengths, heads, device, seen)


def _fused(query: Tensor, key: Tensor, value: Tensor, added: Tensor | None) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=added)


def _scored(parts: Tensor, into: Tensor, bias: Tensor | None, seen: int) -> None:
    """Attend by plain products, a few texts at a time, ``[texts, length, 3, heads, size]``."""
    texts, length, _, heads, size = parts.shape
    step = max(1, SCORES // (heads * length * length * parts.dtype.itemsize))
    for first in range(0, texts, step):
        part = slice(first, first + step)
        query, key, value = parts[part].permute(2, 0, 3, 1, 4).contiguous().flatten(1, 2)
        scores = torch.bmm(query * size**-0.5, key[:, :seen].transpose(1, 2))
        if bias is not None:
            scores.view(-1, heads, length, seen).add_(bias)
        mixed = torch.bmm(torch.softmax(scores, dim=-1), value[:, :seen])
        into[part] = mixed.view(-1, heads, length, size).transpose(1, 2)
