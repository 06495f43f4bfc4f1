"""Transformers without padding: the tokens of a batch in one row, attention text by text.

Linear layers and norms see ``[tokens, hidden]`` with no padding at all; query, key and value are
one product; attention runs over texts of equal length together, which sorted batches are full of.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.transformer.packed.attention import Attention, attention
from sluice.encoders.transformer.packed.families import LayerParts, Parts, parts_of
from sluice.encoders.transformer.packed.linear import PackedLinear


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

    def __init__(self, parts: LayerParts, dtype: torch.dtype) -> None:
        self._parts = parts.query, parts.key, parts.value
        self._dtype = dtype
        weight = torch.cat([part.weight.detach() for part in self._parts])
        bias = None
        if parts.query.bias is not None:
            bias = torch.cat([part.bias.detach() for part in self._parts])
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

    def __call__(self, states: Tensor, attend: Attention, bias: Tensor | None) -> Tensor:
        """Return the next states ``[tokens, hidden]``."""
        projected = self._projections(states.to(self._dtype))
        return self._forward(states, attend(projected, bias))

    def first(
        self, states: Tensor, places: Tensor, attend: Attention, bias: Tensor | None
    ) -> Tensor:
        """Return the next states of the texts' first tokens only, which stand at ``places``."""
        chosen = states[places]
        of_queries, of_rest = self._apart
        queries, rest = of_queries(chosen.to(self._dtype)), of_rest(states.to(self._dtype))
        return self._forward(chosen, attend.first(queries, rest, bias))

    def _forward(self, states: Tensor, attended: Tensor) -> Tensor:
        if self._dtype is torch.float32:
            states = self._attention_norm(self._attended.added_to(states, attended))
            return self._output_norm(self._outer.added_to(states, self._inner(states)))
        # Sums and norms stay in float32, as under autocast.
        states = self._attention_norm(states + self._attended(attended))
        inner = self._inner(states.to(self._dtype))
        return self._output_norm(states + self._outer(inner))


class PackedTransformer:
    """A transformer's weights laid out for packed passes in one arithmetic type.

    They are a copy: make a new one when the model has changed.
    """

    def __init__(self, parts: Parts, dtype: torch.dtype) -> None:
        self._parts = parts
        self._dtype = dtype
        self._layers = [_Layer(layer, dtype) for layer in parts.layers]
        self._bias: Tensor | None = None  # for the longest text so far

    @classmethod
    def of(cls, model: Any, dtype: torch.dtype) -> PackedTransformer | None:
        """Return the packed form of a model, or None where there is none: see ``parts_of``."""
        parts = parts_of(model)
        return None if parts is None else cls(parts, dtype)

    def states(
        self,
        ids: Tensor,
        lengths: Sequence[int],
        types: Tensor | None = None,
        *,
        top: int = 1,
        seen: Sequence[int] | None = None,
    ) -> Tensor:
        """Return the last hidden states ``[tokens, hidden]`` of texts laid end to end.

        Those of the ``top`` last layers stand side by side, the last one's first.
        ``ids`` and ``types`` are int64 ``[tokens]`` on the model's device; every length is 1 or
        more. Texts of equal length should be neighbours. Of each text the first ``seen`` tokens
        are attended to, by default all.
        """
        attend = attention(lengths, self._parts.heads, ids.device, seen)
        states, bias = self._embedded(ids, lengths, types), self._bias_for(max(lengths))
        kept: list[Tensor] = []
        for left, layer in zip(range(len(self._layers), 0, -1), self._layers, strict=True):
            states = layer(states, attend, bias)
            if left <= top:
                kept.insert(0, states)
        return states if top == 1 else torch.cat(kept, dim=1)

    def first_states(
        self, ids: Tensor, lengths: Sequence[int], types: Tensor | None = None
    ) -> Tensor:
        """Return the last hidden state of each text's first token, ``[texts, hidden]``.

        The last layer computes no other.
        """
        attend = attention(lengths, self._parts.heads, ids.device)
        states, bias = self._embedded(ids, lengths, types), self._bias_for(max(lengths))
        for layer in self._layers[:-1]:
            states = layer(states, attend, bias)
        ends = torch.tensor(lengths).cumsum(0)
        places = (ends - torch.tensor(lengths)).to(ids.device)
        return self._layers[-1].first(states, places, attend, bias)

    def _embedded(self, ids: Tensor, lengths: Sequence[int], types: Tensor | None) -> Tensor:
        return embedded(self._parts, ids, lengths, types).float()

    def _bias_for(self, length: int) -> Tensor | None:
        """Return what is added to the scores, for texts up to ``length``, or None."""
        if self._parts.bias is None:
            return None
        bias = self._bias  # once: other threads write to it
        if bias is None or bias.shape[-1] < length:
            self._bias = bias = self._parts.bias(length).to(self._dtype)
        return bias


def embedded(parts: Parts, ids: Tensor, lengths: Sequence[int], types: Tensor | None) -> Tensor:
    """Return the embeddings ``[tokens, hidden]`` of texts laid end to end, by the model's own."""
    positions = torch.cat([torch.arange(length) for length in lengths]).to(ids.device)
    if parts.padding_id is not None:
        positions = _counted(ids, positions, parts.padding_id)
    rows = ids[None], positions[None], None if types is None else types[None]
    return parts.embed(*rows)[0]


def _counted(ids: Tensor, places: Tensor, padding_id: int) -> Tensor:
    """Return RoBERTa's positions: tokens that are not padding are counted on from its id."""
    real = (ids != padding_id).long()
    total = real.cumsum(0)
    starts = (places == 0).nonzero().squeeze(-1)
    before = (total - real)[starts]
    text = (places == 0).cumsum(0) - 1
    return torch.where(real.bool(), total - before[text], 0) + padding_id
