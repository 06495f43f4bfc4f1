"""Computes attention inside each text of a packed batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

SCORES = 1 << 21  # bytes of attention scores at a time: they stay in the cache
LONG = 1024  # tokens from which the scores of one text alone would fill the cache and more
# Tokens of a text that look through a window together; texts of up to twice as many do at once.
BLOCK = 64


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


class Heads(NamedTuple):
    """The number of heads of the queries, that of the keys and values, and a head's ``size``.

    Neighbouring heads of queries share one of keys and values. (Ainslie et al., 2023, arXiv
    2305.13245.)
    """

    queries: int
    keys: int
    size: int


class Sight(NamedTuple):
    """Which tokens of its text a token sees: none after it, none further off than ``window``."""

    causal: bool = False
    window: int | None = None

    def reach(self, place: int, seen: int) -> tuple[int, int]:
        """Return the first token that the one at ``place`` sees, and the one after the last."""
        first, end = 0, min(seen, place + 1) if self.causal else seen
        if self.window is not None:
            first, end = max(0, place - self.window), min(end, place + self.window + 1)
        return min(first, end), end

    def hidden(self, rows: range, columns: range) -> Tensor:
        """Return what is hidden from tokens, bool ``[rows, columns]``."""
        apart = torch.arange(rows.start, rows.stop)[:, None]
        apart = apart - torch.arange(columns.start, columns.stop)
        hidden = apart < 0 if self.causal else torch.zeros_like(apart, dtype=torch.bool)
        return hidden if self.window is None else hidden | (apart.abs() > self.window)


EVERYTHING = Sight()


class Attention(Protocol):
    """Attention over one batch's texts."""

    def __call__(self, projected: Tensor) -> Tensor:
        """Return ``[tokens, queries * size]`` of queries, keys and values side by side."""
        ...

    def single(self, queries: Tensor, rest: Tensor, *, last: bool) -> Tensor:
        """Return ``[texts, queries * size]`` of texts' first or last tokens' queries alone.

        ``rest`` are the keys and values of all tokens.
        """
        ...


class TextAttention:
    """Texts of equal length together, without any padding: for CPUs.

    ``bias`` ``[heads, longest, longest]`` is added to the scores. ``turns`` ``[2, longest, size /
    2]`` are the cosines and sines that queries and keys are rotated by (Su et al., 2021, arXiv
    2104.09864, equation 34, the halves of a head being its pairs).
    """

    def __init__(
        self,
        lengths: Sequence[int],
        heads: Heads,
        seen: Sequence[int] | None = None,
        *,
        scale: float | None = None,
        bias: Tensor | None = None,
        sight: Sight = EVERYTHING,
        turns: Tensor | None = None,
    ) -> None:
        self._runs = list(spans(lengths, seen))
        self._heads = heads
        self._scale = heads.size**-0.5 if scale is None else scale
        self._bias, self._sight, self._turns = bias, sight, turns

    def __call__(self, projected: Tensor) -> Tensor:
        """Return ``[tokens, queries * size]`` of queries, keys and values side by side."""
        heads = self._heads
        sizes = heads.queries, heads.keys, heads.keys
        out = projected.new_empty((len(projected), heads.queries * heads.size))
        out[self._runs[-1].stop :] = 0  # rows of no text
        for span in self._runs:
            rows = projected[span.start : span.stop].view(span.texts, span.length, -1, heads.size)
            into = out[span.start : span.stop].view(span.texts, span.length, -1, heads.size)
            if self._sight.window is not None and span.length > self._sight.window + 1:
                attend, step = self._windowed, span.texts
            elif projected.dtype is not torch.bfloat16 or span.length >= LONG:
                attend, step = self._flash, span.texts
            else:
                scores = heads.queries * span.length * span.length * projected.element_size()
                attend, step = self._scored, max(1, SCORES // scores)
            for first in range(0, span.texts, step):
                part = rows[first : first + step]
                query, key, value = torch.split(part, list(sizes), dim=2)
                mixed = attend(
                    self._turned(query, 0), self._turned(key, 0), value.transpose(1, 2), span.seen
                )
                into[first : first + step] = mixed.transpose(1, 2)
        return out

    def single(self, queries: Tensor, rest: Tensor, *, last: bool) -> Tensor:
        """Return ``[texts, queries * size]`` of texts' first or last tokens' queries alone."""
        heads = self._heads
        out, done = torch.empty_like(queries), 0
        for span in self._runs:
            texts, place = slice(done, done + span.texts), span.length - 1 if last else 0
            query = queries[texts].view(span.texts, 1, heads.queries, heads.size)
            both = rest[span.start : span.stop].view(span.texts, span.length, -1, heads.size)
            start, stop = self._sight.reach(place, span.seen)
            key, value = torch.split(both[:, start:stop], heads.keys, dim=2)
            bias = None
            if self._bias is not None:
                bias = self._bias[:, place : place + 1, start:stop]
            mixed = self._fused(
                self._turned(query, place), self._turned(key, start), value.transpose(1, 2), bias
            )
            out[texts] = mixed.reshape(span.texts, -1)
            done += span.texts
        return out

    def _turned(self, rows: Tensor, first: int) -> Tensor:
        """Return ``[texts, heads, length, size]`` of ``[texts, length, heads, size]``.

        It is rotated, if the model does so, from the place ``first`` on.
        """
        if self._turns is None:
            return rows.transpose(1, 2)
        texts, length, heads, size = rows.shape
        turned = rows.new_empty((texts, heads, length, size))
        cosines, sines = self._turns[:, first : first + length, None]
        left, right = rows.float().chunk(2, dim=-1)
        into_left, into_right = turned.transpose(1, 2).chunk(2, dim=-1)
        if rows.dtype is torch.float32:
            torch.mul(left, cosines, out=into_left).addcmul_(right, sines, value=-1)
            torch.mul(right, cosines, out=into_right).addcmul_(left, sines)
        else:
            into_left.copy_((left * cosines).addcmul_(right, sines, value=-1))
            into_right.copy_((right * cosines).addcmul_(left, sines))
        return turned

    def _fused(
        self, query: Tensor, key: Tensor, value: Tensor, added: Tensor | None, causal: bool = False
    ) -> Tensor:
        """Attend by torch's kernel, ``[texts, heads, length, size]``."""
        if self._heads.keys < self._heads.queries:
            times = self._heads.queries // self._heads.keys
            key, value = (part.repeat_interleave(times, dim=1) for part in (key, value))
        if added is not None:  # torch's kernel takes no masks of three dimensions
            added = added.expand(1, self._heads.queries, -1, -1)
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=added, is_causal=causal, scale=self._scale
        )

    def _scored(self, query: Tensor, key: Tensor, value: Tensor, seen: int) -> Tensor:
        """Attend in bfloat16 by plain products: 1.6 times as fast as torch's kernel."""
        from sluice.encoders.transformer.packed.kernels import softmax_halves  # loads numba

        texts, heads, length, size = query.shape
        asked = texts * self._heads.keys
        key, value = key.flatten(0, 1)[:, :seen], value.flatten(0, 1)[:, :seen]
        query, scale = query.reshape(asked, -1, size), self._scale
        if self._bias is not None:  # it is added to what is scaled already
            query, scale = query * scale, 1.0
        scores = torch.bmm(query, key.transpose(1, 2))
        by_head = scores.view(texts, heads, length, seen)
        if self._bias is not None:
            by_head.add_(self._bias[:, :length, :seen])
        if self._sight.causal:
            hidden = self._sight.hidden(range(length), range(seen))
            by_head.masked_fill_(hidden, float("-inf"))
        softmax_halves(bits_of(scores).reshape(-1, seen), scale)
        mixed = torch.bmm(scores, value)
        return mixed.view(texts, heads, length, size)

    def _flash(self, query: Tensor, key: Tensor, value: Tensor, seen: int) -> Tensor:
        """Attend by torch's kernel, each token to all that it may see."""
        length = query.shape[2]
        added = None if self._bias is None else self._bias[:, :length, :seen]
        plainly = self._sight.causal and seen == length and added is None
        if self._sight.causal and not plainly:
            hidden = self._sight.hidden(range(length), range(seen))
            added = _added(added, hidden, query)
        return self._fused(query, key[:, :, :seen], value[:, :, :seen], added, causal=plainly)

    def _windowed(self, query: Tensor, key: Tensor, value: Tensor, seen: int) -> Tensor:
        """Attend through a window, a block of tokens at a time to those that one of it sees."""
        mixed = torch.zeros_like(query)  # stays so for tokens that see none
        length = query.shape[2]
        block = BLOCK if length > 2 * BLOCK else length
        for first in range(0, length, block):
            end = min(first + block, length)
            start, stop = self._sight.reach(first, seen)[0], self._sight.reach(end - 1, seen)[1]
            if start >= stop:
                continue
            hidden = self._sight.hidden(range(first, end), range(start, stop))
            bias = None if self._bias is None else self._bias[:, first:end, start:stop]
            mixed[:, :, first:end] = self._fused(
                query[:, :, first:end], key[:, :, start:stop], value[:, :, start:stop],
                _added(bias, hidden, query),
            )  # fmt: skip
        return mixed


def bits_of(halves: Tensor) -> NDArray[np.uint16]:
    """Return the bits of bfloat16 numbers, not copied."""
    bits: NDArray[np.uint16] = halves.view(torch.int16).numpy().view(np.uint16)
    return bits


def _added(bias: Tensor | None, hidden: Tensor, like: Tensor) -> Tensor:
    """Return what hides from the scores what is hidden, with a bias if there is one."""
    added = like.new_zeros(()) if bias is None else bias
    return added.masked_fill(hidden, float("-inf"))


class PaddedAttention:
    """All texts in one call, padded for the attention alone: for accelerators.

    Nothing else sees the padding; in a batch of like lengths there is little of it. Queries have as
    many heads as keys, and nothing is hidden but the padding.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        heads: Heads,
        device: torch.device,
        seen: Sequence[int] | None = None,
        *,
        bias: Tensor | None = None,
    ) -> None:
        sizes = torch.tensor(lengths)
        longest = int(sizes.max())
        places = torch.arange(longest)
        self._heads, self._bias = heads.queries, bias
        mask = places[None] < sizes[:, None]
        starts = sizes.cumsum(0) - sizes
        # Where each place of the padded batch comes from; padding repeats a text's first token.
        self._from = torch.where(mask, starts[:, None] + places, starts[:, None]).to(device)
        self._to = mask.flatten().nonzero().squeeze(-1).to(device)
        self._ends = (sizes - 1).to(device)
        visible = places[None] < torch.tensor(seen or lengths)[:, None]
        self._added = None if bool(visible.all()) else visible.to(device)[:, None, None]

    def __call__(self, projected: Tensor) -> Tensor:
        """Return ``[tokens, hidden]`` of queries, keys and values side by side."""
        texts, longest = self._from.shape
        parts = projected[self._from].view(texts, longest, 3, self._heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        bias = None if self._bias is None else self._bias[None, :, :longest, :longest]
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=self._mask(projected, bias)
        )
        return mixed.transpose(1, 2).reshape(texts * longest, -1)[self._to]

    def single(self, queries: Tensor, rest: Tensor, *, last: bool) -> Tensor:
        """Return ``[texts, hidden]`` of texts' first or last tokens' queries alone."""
        texts, longest = self._from.shape
        key, value = (
            rest[self._from].view(texts, longest, 2, self._heads, -1).permute(2, 0, 3, 1, 4)
        )
        query = queries.view(texts, self._heads, 1, -1)
        bias = None
        if self._bias is not None:
            places = self._ends if last else torch.zeros_like(self._ends)
            bias = self._bias[:, places, :longest].transpose(0, 1)[:, :, None]
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=self._mask(queries, bias)
        )
        return mixed.reshape(texts, -1)

    def _mask(self, like: Tensor, bias: Tensor | None) -> Tensor | None:
        if bias is None:
            return self._added
        bias = bias.to(like.dtype)
        return bias if self._added is None else bias.masked_fill(~self._added, float("-inf"))
