"""Transformers without padding: the tokens of a batch in one row, attention text by text.

Linear layers and norms see ``[tokens, hidden]`` with no padding at all; query, key and value are
one product; attention runs over texts of equal length together, which sorted batches are full of.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sluice.encoders.foundation.machine import free_memory_bytes
from sluice.encoders.transformer.packed.attention import (
    Attention,
    Heads,
    PaddedAttention,
    Sight,
    TextAttention,
)
from sluice.encoders.transformer.packed.blocks import Blocks, blocks_of
from sluice.encoders.transformer.packed.families import LayerParts, Parts, parts_of
from sluice.encoders.transformer.packed.linear import Layer, Norms, PackedLayer, norm_of

WIDE = 256  # tokens of a window that is too wide to be tried
_SMALL = 1 << 28  # bytes of weights that are copied whatever memory is left

log = logging.getLogger("sluice")


class PackedTransformer:
    """A transformer's weights laid out for packed passes in one arithmetic type.

    They are a copy: make a new one when the model has changed.
    """

    def __init__(self, blocks: Blocks, dtype: torch.dtype, parts: Parts | None = None) -> None:
        self._blocks, self._parts, self._dtype = blocks, parts, dtype
        self._layers = [PackedLayer(layer, blocks.heads, dtype) for layer in blocks.layers]
        self._bias = None if blocks.bias is None else _Longest(blocks.bias, dtype)
        self._turns: dict[str, _Longest] = {}
        if blocks.turns is not None:
            for kind in {layer.kind for layer in self._layers}:
                turns = functools.partial(blocks.turns, kind)
                self._turns[kind] = _Longest(turns, torch.float32)

    @classmethod
    def of(cls, model: Any, dtype: torch.dtype) -> PackedTransformer | None:
        """Return the packed form of a model, or None: see ``parts_of`` and ``blocks_of``.

        None also where the copy would take more than half of the memory that is left.
        """
        parts = parts_of(model)
        blocks = blocks_of(model) if parts is None else _as_blocks(parts)
        if blocks is None:
            return None
        if model.device.type == "cpu":
            return cls(blocks, dtype, parts) if _fits(blocks, dtype) else None
        return None if parts is None else cls(blocks, dtype, parts)

    @property
    def telling_lengths(self) -> list[int]:
        """Lengths of texts that show whether all is read as the model does: beyond its windows.

        Wide windows are left out, whose texts would take long.
        """
        windows = {sight.window for sight in self._blocks.sights.values()}
        tried = [window + 2 for window in windows if window is not None and window <= WIDE]
        return [*sorted(tried, reverse=True), 5, 5, 2]

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
        attend = self._attentions(lengths, ids.device, seen)
        states = self._embedded(ids, lengths, types)
        kept: list[Tensor] = []
        for left, layer in zip(range(len(self._layers), 0, -1), self._layers, strict=True):
            states = layer(states, attend[layer.kind])
            if left <= top:
                kept.insert(0, self._ended(states))
        return kept[0] if top == 1 else torch.cat(kept, dim=1)

    def single_states(
        self,
        ids: Tensor,
        lengths: Sequence[int],
        types: Tensor | None = None,
        *,
        last: bool = False,
    ) -> Tensor:
        """Return the last hidden state of each text's first or last token, ``[texts, hidden]``.

        The last layer computes no other.
        """
        attend = self._attentions(lengths, ids.device)
        states = self._embedded(ids, lengths, types)
        for layer in self._layers[:-1]:
            states = layer(states, attend[layer.kind])
        sizes = torch.tensor(lengths)
        ends = sizes.cumsum(0)
        places = (ends - 1 if last else ends - sizes).to(ids.device)
        layer = self._layers[-1]
        return self._ended(layer.single(states, places, attend[layer.kind], last=last))

    def _ended(self, states: Tensor) -> Tensor:
        norm = self._blocks.final_norm
        return states if norm is None else norm(states)

    def _embedded(self, ids: Tensor, lengths: Sequence[int], types: Tensor | None) -> Tensor:
        if self._parts is not None:
            return embedded(self._parts, ids, lengths, types).float()
        row = None if types is None else types[None]
        return self._blocks.embed(ids[None], _positions(ids, lengths)[None], row)[0].float()

    def _attentions(
        self, lengths: Sequence[int], device: torch.device, seen: Sequence[int] | None = None
    ) -> Mapping[str, Attention]:
        """Return a batch's attention by kind of layer."""
        blocks, longest = self._blocks, max(lengths)
        bias = None if self._bias is None else self._bias.of(longest)
        return {
            kind: attention(
                lengths, blocks.heads, device, seen, scale=blocks.scale, bias=bias,
                sight=blocks.sights[kind],
                turns=self._turns[kind].of(longest) if kind in self._turns else None,
            )
            for kind in {layer.kind for layer in self._layers}
        }  # fmt: skip


class _Longest:
    """A table that depends on the length of texts, kept for the longest so far."""

    def __init__(self, make: Callable[[int], Tensor], dtype: torch.dtype) -> None:
        self._make, self._dtype = make, dtype
        self._known: tuple[int, Tensor] | None = None

    def of(self, length: int) -> Tensor:
        """Return the table for texts of up to ``length`` tokens, or more."""
        known = self._known  # once: other threads write to it
        if known is None or known[0] < length:
            self._known = known = length, self._make(length).to(self._dtype)
        return known[1]


def attention(
    lengths: Sequence[int], heads: Heads, device: torch.device, seen: Sequence[int] | None = None,
    *, scale: float, bias: Tensor | None, sight: Sight, turns: Tensor | None,
) -> Attention:  # fmt: skip
    """Return what suits the device; ``seen`` tokens of each text are seen, by default all."""
    if device.type == "cpu":
        return TextAttention(lengths, heads, seen, scale=scale, bias=bias, sight=sight, turns=turns)
    return PaddedAttention(lengths, heads, device, seen, bias=bias)


def _fits(blocks: Blocks, dtype: torch.dtype) -> bool:
    """Return whether there is memory for a copy of the weights; say so if not."""
    linears = [linear for layer in blocks.layers for linear in layer.linears]
    size = dtype.itemsize * sum(
        linear.in_features * linear.out_features
        for linear in linears
        if type(linear) is nn.Linear  # codes are not copied
    )
    free = None if size < _SMALL else free_memory_bytes()
    if free is None or 2 * size <= free:
        return True
    log.info(
        "the packed pass needs a copy of the weights, %.1f GB, and %.1f GB of memory are left; "
        "the model's own pass is used instead, which is slower",
        size / 1e9,
        free / 1e9,
    )
    return False


def _as_blocks(parts: Parts) -> Blocks:
    """Return what encoding needs of a model that can also be trained packed."""
    size = parts.layers[0].query.out_features // parts.heads
    return Blocks(
        parts.embed, [_as_layer(layer) for layer in parts.layers],
        Heads(parts.heads, parts.heads, size), size**-0.5, {"": Sight()}, None, bias=parts.bias,
    )  # fmt: skip


def _as_layer(parts: LayerParts) -> Layer:
    return Layer(
        [parts.query, parts.key, parts.value], parts.attended, [parts.inner], parts.outer,
        parts.activation, Norms(after=norm_of(parts.attention_norm)),
        Norms(after=norm_of(parts.output_norm)),
    )  # fmt: skip


def embedded(parts: Parts, ids: Tensor, lengths: Sequence[int], types: Tensor | None) -> Tensor:
    """Return the embeddings ``[tokens, hidden]`` of texts laid end to end, by the model's own."""
    positions = _positions(ids, lengths)
    if parts.padding_id is not None:
        positions = _counted(ids, positions, parts.padding_id)
    rows = ids[None], positions[None], None if types is None else types[None]
    return parts.embed(*rows)[0]


def _positions(ids: Tensor, lengths: Sequence[int]) -> Tensor:
    return torch.cat([torch.arange(length) for length in lengths]).to(ids.device)


def _counted(ids: Tensor, places: Tensor, padding_id: int) -> Tensor:
    """Return RoBERTa's positions: tokens that are not padding are counted on from its id."""
    real = (ids != padding_id).long()
    total = real.cumsum(0)
    starts = (places == 0).nonzero().squeeze(-1)
    before = (total - real)[starts]
    text = (places == 0).cumsum(0) - 1
    return torch.where(real.bool(), total - before[text], 0) + padding_id
