"""Transformers without padding: the tokens of a batch in one row, attention text by text.

Linear layers and norms see ``[tokens, hidden]`` with no padding at all; query, key and value are
one product; attention runs over texts of equal length together, which sorted batches are full of.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from encoders.packed_families import LayerParts, Parts, parts_of
from encoders.packed_linear import PackedLinear

SCORES = 1 << 21  # bytes of attention scores at a time: they stay in the cache
# Float32 texts beyond this many tokens go through torch's flash attention, which is faster there.
FLASH_FROM = 160


class Span(NamedTuple):
    """Neighbouring texts of equal length: tokens ``start`` to ``stop``."""

    start: int
    stop: int
    texts: int
    length: int


def spans(lengths: Sequence[int]) -> Iterator[Span]:
    """Yield the runs of equal lengths, in order."""
    start = 0
    for length, group in itertools.groupby(lengths):
        count = sum(1 for _ in group)
        yield Span(start, start + count * length, count, length)
        start += count * length


class _Norm:
    """A layer norm in the pass's own type."""

    def __init__(self, norm: nn.LayerNorm, dtype: torch.dtype) -> None:
        self._shape, self._eps = norm.normalized_shape, norm.eps
        self._weight, self._bias = (
            None if part is None else part.detach().to(dtype) for part in (norm.weight, norm.bias)
        )

    def __call__(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self._shape, self._weight, self._bias, self._eps)


class _Layer:
    """One transformer layer over packed states."""

    def __init__(self, parts: LayerParts, heads: int, dtype: torch.dtype) -> None:
        self._parts = parts.query, parts.key, parts.value
        self._dtype = dtype
        weight = torch.cat([part.weight.detach() for part in self._parts])
        bias = None
        if parts.query.bias is not None:
            bias = torch.cat([part.bias.detach() for part in self._parts])
        self._heads = heads
        self._wide = parts.query.out_features
        self._scale = (self._wide // heads) ** -0.5
        self._projections = PackedLinear(weight, bias, dtype)
        self._attended = PackedLinear(parts.attended.weight, parts.attended.bias, dtype)
        self._attention_norm = _Norm(parts.attention_norm, torch.float32)
        self._inner = PackedLinear(
            parts.inner.weight, parts.inner.bias, dtype, activation=parts.activation
        )
        self._outer = PackedLinear(parts.outer.weight, parts.outer.bias, dtype)
        self._output_norm = _Norm(parts.output_norm, torch.float32)

    @functools.cached_property
    def _apart(self) -> tuple[PackedLinear, PackedLinear]:
        """The queries' projection, and that of keys and values: for the first tokens alone."""
        query, key, value = self._parts
        weight = torch.cat([key.weight.detach(), value.weight.detach()])
        bias = None if key.bias is None else torch.cat([key.bias.detach(), value.bias.detach()])
        return (
            PackedLinear(query.weight, query.bias, self._dtype),
            PackedLinear(weight, bias, self._dtype),
        )

    def __call__(self, states: Tensor, runs: Sequence[Span], biases: Sequence[Tensor]) -> Tensor:
        """Return the next states ``[tokens, hidden]``."""
        attended = self._attend(self._projections(states.to(self._dtype)), runs, biases)
        return self._forward(states, attended)

    def first(self, states: Tensor, runs: Sequence[Span], biases: Sequence[Tensor]) -> Tensor:
        """Return the next states of each text's first token only, ``[texts, hidden]``."""
        places = torch.cat([torch.arange(s.start, s.stop, s.length) for s in runs])
        chosen = states[places.to(states.device)]
        of_queries, of_rest = self._apart
        queries, rest = of_queries(chosen.to(self._dtype)), of_rest(states.to(self._dtype))
        attended, done = torch.empty_like(queries), 0
        for place, span in enumerate(runs):
            query = queries[done : done + span.texts].view(span.texts, 1, self._heads, -1)
            both = rest[span.start : span.stop].view(span.texts, span.length, 2, self._heads, -1)
            key, value = both.permute(2, 0, 3, 1, 4)
            mask = biases[place][:, :1] if biases else None
            out = functional.scaled_dot_product_attention(
                query.transpose(1, 2), key, value, attn_mask=mask, scale=self._scale
            )
            attended[done : done + span.texts] = out.reshape(span.texts, -1)
            done += span.texts
        return self._forward(chosen, attended)

    def _forward(self, states: Tensor, attended: Tensor) -> Tensor:
        if self._dtype is torch.float32:
            states = self._attention_norm(self._attended.added_to(states, attended))
            return self._output_norm(self._outer.added_to(states, self._inner(states)))
        # Sums and norms stay in float32, as under autocast.
        states = self._attention_norm(states + self._attended(attended))
        inner = self._inner(states.to(self._dtype))
        return self._output_norm(states + self._outer(inner))

    def _attend(self, projected: Tensor, runs: Sequence[Span], biases: Sequence[Tensor]) -> Tensor:
        out = projected.new_empty((len(projected), self._wide))
        for place, span in enumerate(runs):
            heads = projected[span.start : span.stop].view(
                span.texts, span.length, 3, self._heads, -1
            )
            into = out[span.start : span.stop].view(span.texts, span.length, self._heads, -1)
            bias = biases[place] if biases else None
            if projected.device.type != "cpu" or (
                projected.dtype is torch.float32 and span.length >= FLASH_FROM
            ):
                query, key, value = heads.permute(2, 0, 3, 1, 4)
                into.copy_(
                    functional.scaled_dot_product_attention(
                        query, key, value, attn_mask=bias, scale=self._scale
                    ).transpose(1, 2)
                )
            else:
                self._scored(heads, into, bias)
        return out

    def _scored(self, heads: Tensor, into: Tensor, bias: Tensor | None) -> None:
        """Attend by plain products, a few texts at a time."""
        count, length = heads.shape[:2]
        size = self._heads * length * length * heads.dtype.itemsize
        step = max(1, SCORES // size)
        for first in range(0, count, step):
            part = heads[first : first + step].permute(2, 0, 3, 1, 4).contiguous().flatten(1, 2)
            query, key, value = part
            scores = torch.bmm(query.mul_(self._scale), key.transpose(1, 2))
            if bias is not None:
                scores.view(-1, self._heads, length, length).add_(bias)
            mixed = torch.bmm(torch.softmax(scores, dim=-1), value)
            into[first : first + step] = mixed.view(
                -1, self._heads, length, part.shape[-1]
            ).transpose(1, 2)


class PackedTransformer:
    """A transformer's weights laid out for packed passes in one arithmetic type.

    They are a copy: make a new one when the model has changed.
    """

    def __init__(self, parts: Parts, dtype: torch.dtype) -> None:
        self._parts = parts
        self._dtype = dtype
        self._layers = [_Layer(layer, parts.heads, dtype) for layer in parts.layers]
        self._bias: Tensor | None = None  # for the longest text so far

    @classmethod
    def of(cls, model: Any, dtype: torch.dtype) -> PackedTransformer | None:
        """Return the packed form of a model, or None where there is none: see ``parts_of``."""
        parts = parts_of(model)
        return None if parts is None else cls(parts, dtype)

    def states(self, ids: Tensor, lengths: Sequence[int], types: Tensor | None = None) -> Tensor:
        """Return the last hidden states ``[tokens, hidden]`` of texts laid end to end.

        ``ids`` and ``types`` are int64 ``[tokens]`` on the model's device; every length is 1 or
        more. Texts of equal length should be neighbours.
        """
        runs = list(spans(lengths))
        states, biases = self._embedded(ids, runs, types), self._biases(runs)
        for layer in self._layers:
            states = layer(states, runs, biases)
        return states

    def first_states(
        self, ids: Tensor, lengths: Sequence[int], types: Tensor | None = None
    ) -> Tensor:
        """Return the last hidden state of each text's first token, ``[texts, hidden]``.

        The last layer computes no other.
        """
        runs = list(spans(lengths))
        states, biases = self._embedded(ids, runs, types), self._biases(runs)
        for layer in self._layers[:-1]:
            states = layer(states, runs, biases)
        return self._layers[-1].first(states, runs, biases)

    def _embedded(self, ids: Tensor, runs: Sequence[Span], types: Tensor | None) -> Tensor:
        positions = torch.cat([torch.arange(span.length).repeat(span.texts) for span in runs]).to(
            ids.device
        )
        parts = self._parts
        if parts.padding_id is not None:
            positions = _counted(ids, positions, parts.padding_id)
        rows = ids[None], positions[None], None if types is None else types[None]
        return parts.embed(*rows)[0].float()

    def _biases(self, runs: Sequence[Span]) -> list[Tensor]:
        if self._parts.bias is None:
            return []
        longest = max(span.length for span in runs)
        if self._bias is None or self._bias.shape[-1] < longest:
            self._bias = self._parts.bias(longest).to(self._dtype)
        return [self._bias[:, : span.length, : span.length] for span in runs]


def _counted(ids: Tensor, places: Tensor, padding_id: int) -> Tensor:
    """Return RoBERTa's positions: tokens that are not padding are counted on from its id."""
    real = (ids != padding_id).long()
    total = real.cumsum(0)
    starts = (places == 0).nonzero().squeeze(-1)
    before = (total - real)[starts]
    text = (places == 0).cumsum(0) - 1
    return torch.where(real.bool(), total - before[text], 0) + padding_id
