"""Differentiable parts of a packed layer: linear layers, dropout, sum with norm, and attention.

On CPUs that MKL does not tune for, oneDNN's float32 product is about twice as fast as the one
behind ``torch.nn.functional.linear``, and torch's autograd never uses it. The weights stay the
module's own parameters, in their own type; ``dtype`` is that of the products, as under autocast.

``torch.nn.functional.dropout`` draws a number for every element, up to a fifth of a step's time
on a CPU; here a kernel mixes the places with two that are drawn. The result depends on torch's
random state alone, whatever the number of threads, so that a pass can be repeated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.transformer.packed.linear import Activation, onednn

ROWS = 512  # of a weight's gradient at a time: their transposes stay in the cache
_STEPS = 1 << 32  # probabilities are multiples of its inverse
EVEN = 16  # tokens: lengths of texts that attend together are multiples
SCORES = 1 << 21  # bytes of attention scores at a time: they stay in the cache


def linear(
    x: Tensor, layers: Sequence[nn.Linear], dtype: torch.dtype, *, activation: Activation = "none"
) -> Tensor:
    """Return ``[n, out]`` of ``activation(x)`` ``[n, in]`` by one layer, or several side by side.

    The product and the result are in ``dtype``; gradients go to the layers' parameters. Of the
    activation only ``x`` is kept: it is computed again in the backward pass.
    """
    weights = [layer.weight for layer in layers]
    biases = [layer.bias for layer in layers]
    out: Tensor = _Linear.apply(  # type: ignore[no-untyped-call]
        x, dtype, activation, *weights, *biases
    )
    return out


class _Linear(torch.autograd.Function):
    """``activation(x) W^T + b``, the rows of several layers' weights under each other."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dtype: torch.dtype, activation: Activation, *parameters: Tensor | None
    ) -> Tensor:
        count = len(parameters) // 2
        weights = [part for part in parameters[:count] if part is not None]
        rows = x.to(dtype)
        ctx.save_for_backward(rows, *weights)
        ctx.kinds = x.dtype, dtype, activation
        biases = [part for part in parameters[count:] if part is not None]
        bias = joined(biases, dtype) if biases else None
        return product(activated(rows, activation), joined(weights, dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        rows, *weights = ctx.saved_tensors
        kind, dtype, activation = ctx.kinds
        needed, gradient = ctx.needs_input_grad, gradient.contiguous()
        of_weights, of_biases = needed[3 : 3 + len(weights)], needed[3 + len(weights) :]
        count = len(weights)
        sizes = [len(weight) for weight in weights]
        to_rows = None
        if needed[0]:
            to_rows = row_gradient(gradient, joined(weights, dtype))
            to_rows = activation_gradient(to_rows, rows, activation).to(kind)
        to_weights: Sequence[Tensor | None] = [None] * count
        if any(of_weights):
            whole = weight_gradient(gradient, activated(rows, activation)).to(weights[0].dtype)
            to_weights = [
                part if wanted else None
                for part, wanted in zip(torch.split(whole, sizes), of_weights, strict=True)
            ]
        to_biases: Sequence[Tensor | None] = [None] * count
        if any(of_biases):
            whole = gradient.sum(0).to(weights[0].dtype)  # summed in float32, whatever its type
            to_biases = [
                part if wanted else None
                for part, wanted in zip(torch.split(whole, sizes), of_biases, strict=True)
            ]
        return to_rows, None, None, *to_weights, *to_biases


def joined(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return tensors under each other, in ``dtype``."""
    return (parts[0] if len(parts) == 1 else torch.cat(list(parts))).to(dtype)


def activated(x: Tensor, activation: Activation) -> Tensor:
    """Return the activation of ``x``, which may be none."""
    if activation == "none":
        return x
    if activation == "relu":
        return functional.relu(x)
    if activation == "silu":
        return functional.silu(x)
    return functional.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def activation_gradient(gradient: Tensor, x: Tensor, activation: Activation) -> Tensor:
    """Return the gradient by ``x`` of what has ``gradient`` by ``activation(x)``."""
    if activation == "none":
        return gradient
    if activation == "relu":
        return gradient * (x > 0)
    if activation == "silu":
        by_x: Tensor = torch.ops.aten.silu_backward(gradient, x)
        return by_x
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    out: Tensor = torch.ops.aten.gelu_backward(gradient, x, approximate=approximate)
    return out


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``x W^T + b`` without gradients, ``[n, out]`` of ``[n, in]``, all in one type."""
    operators = onednn(x.device.type, x.dtype)
    if operators is None:
        return functional.linear(x, weight, bias)
    out: Tensor = operators._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def row_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return ``gradient W`` without gradients, ``[n, in]`` of ``[n, out]`` and ``[out, in]``."""
    if gradient.dtype is torch.bfloat16:  # by oneDNN already
        return gradient @ weight
    return product(gradient, weight.t().contiguous(), None)


def weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """Return ``gradient^T x`` without gradients, ``[out, in]`` of ``[n, out]`` and ``[n, in]``."""
    # In bfloat16 torch's own product is by oneDNN already.
    operators = onednn(x.device.type, x.dtype) if x.dtype is torch.float32 else None
    if operators is None or not len(x):
        return gradient.t() @ x
    total: Tensor | None = None
    for start in range(0, len(x), ROWS):
        part = slice(start, start + ROWS)
        left, right = gradient[part].t(), x[part].t()
        if total is None:
            total = operators._linear_pointwise(left, right, None, "none", [], "")
        else:
            total = operators._linear_pointwise.binary(left, total, right, None, "add")
    return total if total is not None else gradient.t() @ x


class Dropout:
    """What a dropout module does now: ``probability`` 0 in evaluation mode, or without a module."""

    __slots__ = ("_dropped", "probability", "scale")

    def __init__(self, module: nn.Dropout | None) -> None:
        wanted = module.p if module is not None and module.training else 0.0
        self._dropped = round(wanted * _STEPS)
        self.probability = self._dropped / _STEPS
        self.scale = 1 / (1 - self.probability) if self._dropped < _STEPS else 0.0

    def kept(self, shape: torch.Size | tuple[int, ...]) -> Tensor | None:
        """Draw which elements stay, uint8 of 0 and 1; None: all of them."""
        if not self.probability:
            return None
        kept = torch.empty(shape, dtype=torch.uint8)
        if self.probability >= 1:
            return kept.zero_()
        from sluice.encoders.transformer.packed.kernels import draw_kept  # loads numba

        draw_kept(kept.view(-1).numpy(), self._dropped, *torch.randint(1 << 32, (2,)).tolist())
        return kept


def added_norm(residual: Tensor, branch: Tensor, dropout: Dropout, norm: nn.LayerNorm) -> Tensor:
    """Return ``norm(residual + dropout(branch))`` in the residual's type, ``[n, hidden]``."""
    out: Tensor = _AddedNorm.apply(  # type: ignore[no-untyped-call]
        residual, branch, norm.weight, norm.bias, norm.eps, dropout
    )
    return out


class _AddedNorm(torch.autograd.Function):
    """Dropout, sum and layer norm, of which only the sum and the mask are kept."""

    @staticmethod
    def forward(
        ctx: Any, residual: Tensor, branch: Tensor, weight: Tensor | None, bias: Tensor | None,
        eps: float, dropout: Dropout,
    ) -> Tensor:  # fmt: skip
        kept = dropout.kept(branch.shape)
        if kept is None:
            total = residual + branch
        else:
            total = torch.add(residual, branch * kept, alpha=dropout.scale)
        out, mean, deviation = torch.native_layer_norm(total, total.shape[-1:], weight, bias, eps)
        ctx.save_for_backward(total, mean, deviation, weight, bias, kept)
        ctx.branch = branch.dtype, dropout.scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        total, mean, deviation, weight, bias, kept = ctx.saved_tensors
        dtype, scale = ctx.branch
        needed = ctx.needs_input_grad
        to_total, to_weight, to_bias = torch.ops.aten.native_layer_norm_backward(
            gradient.contiguous(), total, total.shape[-1:], mean, deviation, weight, bias,
            [needed[0] or needed[1], needed[2], needed[3]],
        )  # fmt: skip
        to_branch = None
        if needed[1]:
            to_branch = to_total.to(dtype) if kept is None else (to_total * scale).to(dtype) * kept
        return (to_total if needed[0] else None), to_branch, to_weight, to_bias, None, None


class Layout(NamedTuple):
    """Where the tokens of packed texts lie while they attend: nearly equal lengths are made equal.

    Each run has ``texts`` of ``length`` rows from row ``start`` on, and the keys that are hidden
    from a text, bool ``[texts, length]`` or None. Token ``i`` is row ``places[i]``, of ``rows``;
    None: all tokens are where they were.
    """

    runs: list[Run]
    rows: int
    places: Tensor | None

    def spread(self, tokens: Tensor) -> Tensor:
        """Return ``[rows, n]`` of ``[tokens, n]``, 0 between the texts."""
        if self.places is None:
            return tokens
        return tokens.new_zeros((self.rows, tokens.shape[1])).index_copy_(0, self.places, tokens)

    def taken(self, rows: Tensor) -> Tensor:
        """Return ``[tokens, n]`` of ``[rows, n]``."""
        return rows if self.places is None else rows.index_select(0, self.places)


class Run(NamedTuple):
    """Neighbouring texts of equal length, see ``Layout``."""

    start: int
    texts: int
    length: int
    hidden: Tensor | None


def layout_of(lengths: Sequence[int], seen: Sequence[int]) -> Layout:
    """Return the layout of texts, each of whose tokens attend to its first ``seen``.

    Lengths are rounded up to multiples of ``EVEN``, so that a batch has few different ones: the
    library prepares every shape of product that it has not seen lately for half a millisecond.
    """
    runs, places, start = [], [], 0
    for length, group in itertools.groupby(range(len(lengths)), lambda i: -(-lengths[i] // EVEN)):
        length, texts = EVEN * length, list(group)
        sizes, shown = (torch.tensor([of[i] for i in texts])[:, None] for of in (lengths, seen))
        inside = torch.arange(length)
        hidden = inside >= shown
        runs.append(Run(start, len(texts), length, hidden if bool(hidden.any()) else None))
        rows = start + length * torch.arange(len(texts))[:, None] + inside
        places.append(rows[inside < sizes])
        start += length * len(texts)
    found = torch.cat(places)
    return Layout(runs, start, None if len(found) == start else found)


def texts_of(rows: int) -> list[int]:
    """Return the lengths of short texts that so many rows of no text are taken for."""
    whole, rest = divmod(rows, EVEN)
    return [EVEN] * whole + [rest] * bool(rest)


def attended(
    projected: Tensor, bias: Tensor | None, layout: Layout, heads: int, dropout: Dropout
) -> Tensor:
    """Return ``[tokens, hidden]`` of queries, keys and values ``[tokens, 3 hidden]``.

    ``bias`` ``[heads, longest, longest]`` is added to the scores, and gets a gradient. (Vaswani et
    al., 2017, arXiv 1706.03762, equation 1.)
    """
    if bias is not None:
        more = max(run.length for run in layout.runs) - bias.shape[-1]
        bias = functional.pad(bias, (0, more, 0, more))
    out: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        projected, bias, layout, heads, dropout
    )
    return out


class _Attention(torch.autograd.Function):
    """Softmax attention that keeps the probabilities and the dropped places, not the scores."""

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, bias: Tensor | None, layout: Layout, heads: int,
        dropout: Dropout,
    ) -> Tensor:  # fmt: skip
        rows = layout.spread(projected)
        out = rows.new_empty((layout.rows, rows.shape[1] // 3))
        keeps = any(ctx.needs_input_grad)
        saved: list[Tensor | None] = []
        for part in _pieces(layout.runs, heads, projected.dtype):
            query, key, value = _split(rows, part, heads, 3)
            scores = torch.bmm(query.mul_(query.shape[-1] ** -0.5), key.transpose(1, 2))
            by_text = scores.view(part.texts, heads, part.length, part.length)
            if bias is not None:
                by_text += bias[:, : part.length, : part.length]
            if part.hidden is not None:
                by_text.masked_fill_(part.hidden[:, None, None], torch.finfo(scores.dtype).min)
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
        ctx.settings = layout, heads, dropout
        return layout.taken(out)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        projected, bias, *saved = ctx.saved_tensors
        layout, heads, dropout = ctx.settings
        rows, gradient = layout.spread(projected), layout.spread(gradients[0])
        to_rows = torch.empty_like(rows)
        to_bias = torch.zeros_like(bias) if ctx.needs_input_grad[1] else None
        size = projected.shape[1] // 3 // heads
        for place, part in enumerate(_pieces(layout.runs, heads, projected.dtype)):
            shares, kept = saved[2 * place : 2 * place + 2]
            query, key, value = _split(rows, part, heads, 3)
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
            _put(to_rows, torch.stack([to_query, to_key, to_value]), part, heads)
        return layout.taken(to_rows), to_bias, None, None, None


def _pieces(runs: Sequence[Run], heads: int, dtype: torch.dtype) -> Iterator[Run]:
    """Yield the runs in pieces whose scores stay in the cache."""
    for start, texts, length, hidden in runs:
        step = max(1, SCORES // (heads * length * length * dtype.itemsize))
        for first in range(0, texts, step):
            some = None if hidden is None else hidden[first : first + step]
            yield Run(start + first * length, min(step, texts - first), length, some)


def _split(rows: Tensor, part: Run, heads: int, kinds: int) -> Tensor:
    """Return a copy ``[kinds, texts * heads, length, size]`` of ``[rows, kinds hidden]``."""
    own = rows[part.start : part.start + part.texts * part.length]
    own = own.view(part.texts, part.length, kinds, heads, -1)
    parts = torch.empty((kinds, part.texts, heads, part.length, own.shape[-1]), dtype=rows.dtype)
    return parts.copy_(own.permute(2, 0, 3, 1, 4)).flatten(1, 2)


def _put(into: Tensor, parts: Tensor, part: Run, heads: int) -> None:
    """Write ``[kinds, texts * heads, length, size]`` to its rows."""
    shape = part.texts, part.length, -1, heads, parts.shape[-1]
    into[part.start : part.start + part.texts * part.length].view(shape).copy_(
        parts.view(-1, part.texts, heads, part.length, parts.shape[-1]).permute(1, 3, 0, 2, 4)
    )
