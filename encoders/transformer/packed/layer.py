"""One layer of a packed transformer: attention and feed-forward, with norms where they stand."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sluice.encoders.transformer.packed.attention import Attention, Heads
from sluice.encoders.transformer.packed.linear import Activation, PackedLinear, packed_linear
from sluice.encoders.transformer.packed.norms import Norm


class Norms(NamedTuple):
    """The norms around one half of a layer: ``after(x + inside(half(before(x))))``."""

    before: Norm | None = None
    inside: Norm | None = None
    after: Norm | None = None


class Layer(NamedTuple):
    """One transformer layer, as its model has it.

    ``projections`` make queries, keys and values, one layer for each or one for all; ``inner`` is
    one layer or, ``gated``, two, or one of twice the size: the first half's activation is
    multiplied by the second. ``kind`` tells layers apart whose attention differs.
    """

    projections: Sequence[nn.Linear]
    attended: nn.Linear  # from the heads back to the states
    inner: Sequence[nn.Linear]
    outer: nn.Linear
    activation: Activation
    attention_norms: Norms
    output_norms: Norms
    gated: bool = False
    query_norm: Norm | None = None  # of each head
    key_norm: Norm | None = None
    kind: str = ""

    @property
    def linears(self) -> list[nn.Linear]:
        """All its linear layers."""
        return [*self.projections, self.attended, *self.inner, self.outer]


class PackedLayer:
    """A layer's weights laid out for packed states ``[tokens, hidden]``.

    Products are in ``dtype``; sums and norms are in float32, as under autocast.
    """

    def __init__(self, layer: Layer, heads: Heads, dtype: torch.dtype) -> None:
        self.kind = layer.kind
        self._layer, self._heads, self._dtype = layer, heads, dtype
        self._projections = packed_linear(layer.projections, dtype)
        self._attended = packed_linear([layer.attended], dtype)
        self._gate: PackedLinear | None = None
        inner, activation = slice(None), layer.activation
        if layer.gated:
            half = sum(linear.out_features for linear in layer.inner) // 2
            self._gate = packed_linear(layer.inner, dtype, slice(half), activation=activation)
            inner, activation = slice(half, None), "none"
        self._inner = packed_linear(layer.inner, dtype, inner, activation=activation)
        self._outer = packed_linear([layer.outer], dtype)

    @functools.cached_property
    def _apart(self) -> tuple[PackedLinear, PackedLinear]:
        """The queries' projection, and that of keys and values: for one token of each text."""
        width = self._heads.queries * self._heads.size
        return (
            packed_linear(self._layer.projections, self._dtype, slice(width)),
            packed_linear(self._layer.projections, self._dtype, slice(width, None)),
        )

    def __call__(self, states: Tensor, attend: Attention) -> Tensor:
        """Return the next states ``[tokens, hidden]``."""
        projected = self._projections(self._before(states, self._layer.attention_norms))
        width = self._heads.queries * self._heads.size
        self._norm_heads(projected[:, :width], self._layer.query_norm)
        end = width + self._heads.keys * self._heads.size
        self._norm_heads(projected[:, width:end], self._layer.key_norm)
        return self._forward(states, attend(projected))

    def single(self, states: Tensor, places: Tensor, attend: Attention, *, last: bool) -> Tensor:
        """Return the next states of each text's first or last token, which stand at ``places``."""
        of_queries, of_rest = self._apart
        ready = self._before(states, self._layer.attention_norms)
        queries, rest = of_queries(ready[places]), of_rest(ready)
        width = self._heads.keys * self._heads.size
        self._norm_heads(queries, self._layer.query_norm)
        self._norm_heads(rest[:, :width], self._layer.key_norm)
        return self._forward(states[places], attend.single(queries, rest, last=last))

    def _norm_heads(self, x: Tensor, norm: Norm | None) -> None:
        """Normalise each head of ``[n, heads * size]`` in place, where the model does it."""
        if norm is not None:
            heads = torch.unflatten(x, 1, (-1, self._heads.size))
            heads.copy_(norm(heads))

    def _before(self, states: Tensor, norms: Norms) -> Tensor:
        ready = states if norms.before is None else norms.before(states)
        return ready.to(self._dtype)

    def _forward(self, states: Tensor, mixed: Tensor) -> Tensor:
        norms = self._layer.output_norms
        states = self._added(states, mixed, self._attended, self._layer.attention_norms)
        ready = self._before(states, norms)
        if self._gate is None:
            inner = self._inner(ready)
        else:
            inner = self._inner.multiplied_with(self._gate(ready), ready)
        return self._added(states, inner, self._outer, norms)

    def _added(self, states: Tensor, x: Tensor, linear: PackedLinear, norms: Norms) -> Tensor:
        """Return the sum of states and a half's result, which ``linear`` makes of ``x``."""
        if norms.inside is not None:
            total = states + norms.inside(linear(x))
        elif self._dtype is torch.float32:
            total = linear.added_to(states, x)
        else:
            total = states + linear(x)
        return total if norms.after is None else norms.after(total)
