"""A packed transformer's layers, with packed weights (oneDNN's or torch's).

On CPUs that MKL does not tune for, oneDNN's float32 product is up to twice as fast as the one
behind ``torch.nn.functional.linear``; its bfloat16 product gains about a fifth from weights that
are laid out for it once. Activation and residual sum are done while the result is in the cache.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.model_files.weights.quantised import Codes, QuantisedLinear
from sluice.encoders.transformer.packed.attention import Attention, Heads
from sluice.encoders.transformer.packed.norms import LayerNorm, Norm, Norms

Activation = Literal["none", "gelu", "gelu_tanh", "relu", "silu"]

_POINTWISE: dict[Activation, tuple[str, str]] = {
    "none": ("none", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""), "silu": ("swish", ""),
}  # fmt: skip
FEW = 32  # rows of input for which weights that are made anew are not laid out
BYTE_ROWS = 512  # of a block around products of bytes
ROWS = 4096  # rows of input the layout is chosen for; others work too


class PackedLinear:
    """``activation(x W^T + b)`` for inference, ``x`` ``[n, in]`` in ``dtype``.

    The weights are copied: a later change of the layer they came from is not seen.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, *,
        activation: Activation = "none",
    ) -> None:  # fmt: skip
        self._onednn = onednn(weight.device.type, dtype)
        self._weight = self._laid_out(weight.detach().to(dtype, copy=True).contiguous())
        self._bias = None if bias is None else bias.detach().to(dtype, copy=True)
        self._activation: Activation = activation

    def _laid_out(self, weight: Tensor) -> Tensor:
        if self._onednn is None:
            return weight
        packed: Tensor = self._onednn._reorder_linear_weight(weight, ROWS)
        return packed

    def _product(self, x: Tensor) -> tuple[Any | None, Tensor]:
        """Return oneDNN's operators, or None, and the weights as they are laid out for them."""
        return self._onednn, self._weight

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``[n, out]``."""
        operators, weight = self._product(x)
        if operators is not None:
            kind, algorithm = _POINTWISE[self._activation]
            out: Tensor = operators._linear_pointwise(x, weight, self._bias, kind, [], algorithm)
            return out
        return _activated(functional.linear(x, weight, self._bias), self._activation)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return ``residual + x W^T + b``, of a layer without activation."""
        operators, weight = self._product(x)
        if operators is not None:
            out: Tensor = operators._linear_pointwise.binary(x, residual, weight, self._bias, "add")
            return out
        return functional.linear(x, weight, self._bias).add_(residual)

    def multiplied_with(self, gate: Tensor, x: Tensor) -> Tensor:
        """Return ``gate * (x W^T + b)``, of a layer without activation."""
        operators, weight = self._product(x)
        if operators is not None:
            out: Tensor = operators._linear_pointwise.binary(x, gate, weight, self._bias, "mul")
            return out
        return functional.linear(x, weight, self._bias).mul_(gate)


class ByteLinear(PackedLinear):
    """The same in integers of 8 bits, with rows and results in float32: see ``ByteProduct``."""

    def __init__(self, product: Any, *, activation: Activation = "none") -> None:
        self._product_of_bytes = product
        self._activation = activation

    def rows(self, chosen: slice) -> ByteLinear:
        """Return the product of some of the outputs."""
        return ByteLinear(self._product_of_bytes.rows(chosen), activation=self._activation)

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``[n, out]``."""
        return _activated(self._product_of_bytes(x.float()), self._activation)

    def added_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return ``residual + x W^T + b``, of a layer without activation."""
        return self(x).add_(residual)

    def multiplied_with(self, gate: Tensor, x: Tensor) -> Tensor:
        """Return ``gate * (x W^T + b)``, of a layer without activation."""
        return self(x).mul_(gate)


class CodedLinear(PackedLinear):
    """The same of matrices in codes, of some rows of each: weights are made for each product.

    The codes are those of the layers, not copied.
    """

    def __init__(
        self, rows: Sequence[tuple[Codes, slice]], bias: Tensor | None, dtype: torch.dtype, *,
        activation: Activation = "none",
    ) -> None:  # fmt: skip
        self._rows, self._dtype = rows, dtype
        self._onednn = onednn(rows[0][0].codes.device.type, dtype)
        self._bias = None if bias is None else bias.detach().to(dtype, copy=True)
        self._activation = activation

    def _product(self, x: Tensor) -> tuple[Any | None, Tensor]:
        parts = [codes.weights(part.start, part.stop) for codes, part in self._rows]
        whole = (parts[0] if len(parts) == 1 else torch.cat(parts)).to(self._dtype).contiguous()
        return (None, whole) if len(x) <= FEW else (self._onednn, self._laid_out(whole))


def packed_linear(
    layers: Sequence[nn.Linear], dtype: torch.dtype, rows: slice = slice(None), *,
    activation: Activation = "none",
) -> PackedLinear:  # fmt: skip
    """Return the product of layers under each other, or of some rows of the whole."""
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    bias = torch.cat(biases)[rows] if biases else None
    if not all(isinstance(layer, QuantisedLinear) for layer in layers):
        weight = torch.cat([layer.weight.detach() for layer in layers])[rows]
        if dtype is torch.int8:
            from sluice.encoders.transformer.packed.eight_bits import ByteProduct  # loads numba

            gelu = activation == "gelu"  # it is done on the way
            product = ByteProduct(weight, bias, gelu=gelu)
            return ByteLinear(product, activation="none" if gelu else activation)
        return PackedLinear(weight, bias, dtype, activation=activation)
    if dtype is torch.int8:  # their weights are made anew for each product
        dtype = torch.float32
    first, stop, _ = rows.indices(sum(layer.out_features for layer in layers))
    chosen, start = [], 0
    for layer in layers:
        part = slice(max(first - start, 0), min(stop - start, layer.out_features))
        if part.start < part.stop and isinstance(layer, QuantisedLinear):
            chosen.append((layer.matrix, part))
        start += layer.out_features
    return CodedLinear(chosen, bias, dtype, activation=activation)


def _activated(x: Tensor, activation: Activation) -> Tensor:
    if activation == "gelu":
        return functional.gelu(x)
    if activation == "gelu_tanh":
        return functional.gelu(x, approximate="tanh")
    if activation == "silu":
        return functional.silu(x)
    return functional.relu(x) if activation == "relu" else x


@functools.cache
def onednn(device: str, dtype: torch.dtype) -> Any | None:
    """Return torch's oneDNN operators if present and correct; they are not a public interface."""
    if device != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    operators = torch.ops.mkldnn
    generator = torch.Generator().manual_seed(13)
    x, weight, bias = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((7, 32), (32, 32), (32,))
    )
    close = functools.partial(torch.allclose, rtol=0.05, atol=0.2 if dtype.itemsize < 4 else 1e-4)
    try:
        packed = operators._reorder_linear_weight(weight, ROWS)
        plain = functional.linear(x, weight, bias)
        right = all(
            close(
                operators._linear_pointwise(x, packed, bias, kind, [], algorithm),
                _activated(plain, activation),
            )
            for activation, (kind, algorithm) in _POINTWISE.items()
        )
        added = operators._linear_pointwise.binary(x, x, packed, bias, "add")
        multiplied = operators._linear_pointwise.binary(x, x, packed, bias, "mul")
        right = right and close(added, plain + x) and close(multiplied, plain * x)
    except (RuntimeError, NotImplementedError, AttributeError, TypeError):
        return None
    return operators if right else None


def activation_of(module: Any) -> Activation | None:
    """Return the name of an activation module or function; None for an unknown one."""
    if module is functional.gelu:
        return "gelu"
    kind = type(module)
    if isinstance(module, nn.ReLU) or module is functional.relu:
        return "relu"
    if isinstance(module, nn.SiLU) or module is functional.silu:
        return "silu"
    if isinstance(module, nn.GELU):
        return "gelu_tanh" if module.approximate == "tanh" else "gelu"
    names: dict[str, Activation] = {
        "GELUActivation": "gelu", "GELUTanh": "gelu_tanh", "NewGELUActivation": "gelu_tanh",
        "FastGELUActivation": "gelu_tanh", "SiLUActivation": "silu",
    }  # fmt: skip
    return names.get(kind.__name__) if kind.__module__ == "transformers.activations" else None


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

    Products are in ``dtype``; sums and norms are in float32, as under autocast. Around products of
    bytes (int8) attention is in ``floats``, and the rest of the layer goes by blocks of tokens, so
    that what one product makes is coded for the next while it is in the cache.
    """

    def __init__(
        self, layer: Layer, heads: Heads, dtype: torch.dtype, floats: torch.dtype | None = None
    ) -> None:
        self.kind = layer.kind
        self._layer, self._heads = layer, heads
        self._bytes = dtype is torch.int8
        self._dtype = torch.float32 if self._bytes else dtype
        self._floats = floats or dtype
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
        if isinstance(self._projections, ByteLinear):
            return self._projections.rows(slice(width)), self._projections.rows(slice(width, None))
        return (
            packed_linear(self._layer.projections, self._dtype, slice(width)),
            packed_linear(self._layer.projections, self._dtype, slice(width, None)),
        )

    @functools.cached_property
    def _fused(self) -> bool:
        """Whether a half's sum and norm are one kernel, in place."""
        both = self._layer.attention_norms, self._layer.output_norms
        return self._dtype is torch.bfloat16 and all(
            norms.before is norms.inside is None
            and isinstance(norms.after, LayerNorm) and norms.after.adds_halves
            for norms in both
        )  # fmt: skip

    def __call__(
        self, states: Tensor, attend: Attention, ready: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the next states ``[tokens, hidden]``, and in bfloat16 where they are at hand.

        ``ready`` are such states of the layer before. What is given may be written over.
        """
        if ready is None:
            projected = self._by_blocks(self._project, states)
        else:
            projected = self._projections(ready)
        width = self._heads.queries * self._heads.size
        self._norm_heads(projected[:, :width], self._layer.query_norm)
        end = width + self._heads.keys * self._heads.size
        self._norm_heads(projected[:, width:end], self._layer.key_norm)
        mixed = attend(projected)
        if self._fused and states.device.type == "cpu":
            return states, self._add_halves(states, mixed)
        return self._by_blocks(self._forward, states, mixed), None

    def _add_halves(self, states: Tensor, mixed: Tensor) -> Tensor:
        """Make states the next ones, in place; return them in bfloat16."""
        first, second = self._layer.attention_norms.after, self._layer.output_norms.after
        assert isinstance(first, LayerNorm)
        assert isinstance(second, LayerNorm)
        ready = first.add_halves(states, self._attended(mixed))
        return second.add_halves(states, self._outer(self._within(ready)))

    def _project(self, states: Tensor) -> Tensor:
        ready = self._before(states, self._layer.attention_norms)
        return self._projections(ready).to(self._floats)

    def _by_blocks(self, compute: Callable[..., Tensor], *rows: Tensor) -> Tensor:
        """Return what rows of the same tokens make, some at a time where products are of bytes."""
        if not self._bytes or len(rows[0]) <= BYTE_ROWS:
            return compute(*rows)
        whole: Tensor | None = None
        for start in range(0, len(rows[0]), BYTE_ROWS):
            block = slice(start, start + BYTE_ROWS)
            part = compute(*(each[block] for each in rows))
            if whole is None:
                whole = part.new_empty((len(rows[0]), part.shape[1]))
            whole[block] = part
        return compute(*rows) if whole is None else whole

    def single(self, states: Tensor, places: Tensor, attend: Attention, *, last: bool) -> Tensor:
        """Return the next states of each text's first or last token, which stand at ``places``."""
        of_queries, of_rest = self._apart
        ready = self._before(states, self._layer.attention_norms)
        queries, rest = (
            part.to(self._floats) for part in (of_queries(ready[places]), of_rest(ready))
        )
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
        mixed = mixed.to(self._dtype)
        states = self._added(states, mixed, self._attended, self._layer.attention_norms)
        inner = self._within(self._before(states, norms))
        return self._added(states, inner, self._outer, norms)

    def _within(self, ready: Tensor) -> Tensor:
        if self._gate is None:
            return self._inner(ready)
        return self._inner.multiplied_with(self._gate(ready), ready)

    def _added(self, states: Tensor, x: Tensor, linear: PackedLinear, norms: Norms) -> Tensor:
        """Return the sum of states and a half's result, which ``linear`` makes of ``x``."""
        if norms.inside is not None:
            total = states + norms.inside(linear(x))
        elif self._dtype is torch.float32:
            total = linear.added_to(states, x)
        else:
            total = states + linear(x)
        return total if norms.after is None else norms.after(total)
