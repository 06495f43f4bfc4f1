"""Transformers without padding: the tokens of a batch in one row, attention text by text.

Linear layers and norms see ``[tokens, hidden]`` with no padding at all; query, key and value are
one product; attention runs over texts of equal length together, which sorted batches are full of.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sluice.encoders.foundation.processes import free_memory_bytes
from sluice.encoders.model_files.adapters import recomputes
from sluice.encoders.model_files.weights.quantised import QuantisedLinear
from sluice.encoders.transformer.packed.attention import (
    Attention,
    Heads,
    PaddedAttention,
    Sight,
    TextAttention,
)
from sluice.encoders.transformer.packed.blocks import Blocks, blocks_of
from sluice.encoders.transformer.packed.families import LayerParts, Parts, parts_of
from sluice.encoders.transformer.packed.linear import Layer, PackedLayer
from sluice.encoders.transformer.packed.norms import Norms, norm_of
from sluice.encoders.transformer.packed.packing import Packing, evened, packing_of
from sluice.encoders.transformer.packed.training_layers import (
    Dropout,
    Layout,
    added_norm,
    attended,
    layout_of,
    linear,
    texts_of,
)

WIDE = 256  # tokens of a window that is too wide to be tried
_SMALL = 1 << 28  # bytes of weights that are copied whatever memory is left

log = logging.getLogger("sluice")


class PackedTransformer:
    """A transformer's weights laid out for packed passes in one arithmetic type.

    They are a copy: make a new one when the model has changed. Around products of bytes (int8) the
    rest is in ``floats``; the first texts say which inputs stay in float32, see ``ByteProduct``.
    """

    def __init__(
        self, blocks: Blocks, dtype: torch.dtype, parts: Parts | None = None,
        floats: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        floats = floats or dtype
        self._blocks, self._parts = blocks, parts
        self._evens = dtype is not torch.int8  # whose products go by blocks of rows
        self._layers = [PackedLayer(layer, blocks.heads, dtype, floats) for layer in blocks.layers]
        self._bias = None if blocks.bias is None else _Longest(blocks.bias, floats)
        self._turns: dict[str, _Longest] = {}
        if blocks.turns is not None:
            for kind in {layer.kind for layer in self._layers}:
                turns = functools.partial(blocks.turns, kind)
                self._turns[kind] = _Longest(turns, torch.float32)

    @classmethod
    def from_model(
        cls, model: Any, dtype: torch.dtype, floats: torch.dtype | None = None
    ) -> PackedTransformer | None:
        """Return the packed form of a model, or None: see ``parts_of`` and ``blocks_of``.

        None also where the copy would take more than half of the memory that is left.
        """
        parts = parts_of(model)
        blocks = blocks_of(model) if parts is None else _as_blocks(parts)
        if blocks is None:
            return None
        if model.device.type == "cpu":
            return cls(blocks, dtype, parts, floats) if _fits(blocks, dtype) else None
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
        ready = None
        for left, layer in zip(range(len(self._layers), 0, -1), self._layers, strict=True):
            states, ready = layer(states, attend[layer.kind], ready)
            if left <= top:  # a layer may write over what it is given
                ended = self._ended(states if left == 1 else states.clone())
                kept.insert(0, ended[: len(ids)])
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
        states, ready = self._embedded(ids, lengths, types), None
        for layer in self._layers[:-1]:
            states, ready = layer(states, attend[layer.kind], ready)
        sizes = torch.tensor(lengths)
        ends = sizes.cumsum(0)
        places = (ends - 1 if last else ends - sizes).to(ids.device)
        layer = self._layers[-1]
        return self._ended(layer.single(states, places, attend[layer.kind], last=last))

    def _ended(self, states: Tensor) -> Tensor:
        norm = self._blocks.final_norm
        return states if norm is None else norm(states)

    def _embedded(self, ids: Tensor, lengths: Sequence[int], types: Tensor | None) -> Tensor:
        """Return the embeddings ``[tokens or more, hidden]``: see ``evened``."""
        if self._parts is not None:
            states = embedded(self._parts, ids, lengths, types).float()
        else:
            row = None if types is None else types[None]
            states = self._blocks.embed(ids[None], _positions(ids, lengths)[None], row)[0].float()
        return evened(states) if self._evens else states

    def _attentions(
        self, lengths: Sequence[int], device: torch.device, seen: Sequence[int] | None = None
    ) -> Mapping[str, Attention]:
        """Return a batch's attention by kind of layer."""
        blocks, longest = self._blocks, max(lengths)
        bias = None if self._bias is None else self._bias.table(longest)
        return {
            kind: attention(
                lengths, blocks.heads, device, seen, scale=blocks.scale, bias=bias,
                sight=blocks.sights[kind],
                turns=self._turns[kind].table(longest) if kind in self._turns else None,
            )
            for kind in {layer.kind for layer in self._layers}
        }  # fmt: skip


class _Longest:
    """A table that depends on the length of texts, kept for the longest so far."""

    def __init__(self, make: Callable[[int], Tensor], dtype: torch.dtype) -> None:
        self._make, self._dtype = make, dtype
        self._known: tuple[int, Tensor] | None = None

    def table(self, length: int) -> Tensor:
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


# Tokens of one pass through the layers. Texts do not see each other, so the sum of the gradients is
# that of the batch; above it, buffers are too large for the allocator to keep, and pages are given
# back and asked for again all the time: 1.1 times as long at 8,192.
TOKENS = 4_096
_KNOWN = {"input_ids", "attention_mask", "token_type_ids"}


class TrainingPass:
    """One batch's pass through a model, in the arithmetic type of autocast where that is on."""

    def __init__(self, parts: Parts, features: dict[str, Tensor], packing: Packing) -> None:
        self._parts = parts
        self._features = features
        self.packing = packing

    @classmethod
    def from_batch(
        cls, model: Any, features: dict[str, Tensor], present: Tensor | None = None
    ) -> TrainingPass | None:
        """Return the pass of a batch, or None where only the model's own pass will do.

        ``present`` are the tokens with states, see ``packing_of``.
        That is so for models ``parts_of`` does not know, with activation checkpointing or dropout
        of another kind, on accelerators, and for batches that are padded on the left.
        """
        if features["input_ids"].device.type != "cpu" or not _KNOWN.issuperset(features):
            return None
        parts = parts_of(model)
        if parts is None or not all(map(_is_plain, parts.layers)):
            return None
        if recomputes(model):
            return None
        packing = packing_of(features["attention_mask"], present)
        return None if packing is None else cls(parts, features, packing)

    def states(self) -> Tensor:
        """Return the last hidden states ``[tokens, hidden]`` in packed order."""
        return self._last(firsts=False)

    def firsts(self) -> Tensor:
        """Return the last state of each text's first token, ``[n, hidden]``; 0 without one.

        Of the others the last layer computes keys and values alone.
        """
        states, packing = self._last(firsts=True), self.packing
        empty = states.new_zeros((packing.shape[0], states.shape[1]))
        return empty.index_copy(0, packing.rows, states)

    def _last(self, *, firsts: bool) -> Tensor:
        packing, parts = self.packing, self._parts
        ids = self._features["input_ids"].reshape(-1)[packing.places]
        types = self._features.get("token_type_ids")
        if types is not None:
            types = types.reshape(-1)[packing.places]
        states = embedded(parts, ids, packing.lengths, types)
        dtype = parts.layers[0].query.weight.dtype
        states = states if dtype is torch.float64 else states.float()
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
        with torch.autocast("cpu", enabled=False):
            bias = None if parts.bias is None else parts.bias(max(packing.lengths)).to(dtype)
            groups = list(_groups(packing.lengths))
            done, texts = [], 0
            for group, part in zip(
                groups, torch.split(states, [sum(group) for group in groups]), strict=True
            ):
                seen = packing.seen[texts : texts + len(group)]
                part, tokens = evened(part), len(part)
                added = texts_of(len(part) - tokens)
                layout = layout_of([*group, *added], [*seen, *added])
                texts += len(group)
                sizes = torch.tensor(group)
                for left, layer in zip(range(len(parts.layers), 0, -1), parts.layers, strict=True):
                    rows = sizes.cumsum(0) - sizes if firsts and left == 1 else None
                    part = _next(layer, part, layout, parts.heads, bias, dtype, rows)
                done.append(part if firsts else part[:tokens])
        return done[0] if len(done) == 1 else torch.cat(done)


def _groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield neighbouring texts' lengths, of ``TOKENS`` tokens together or of one text."""
    group: list[int] = []
    total = 0
    for length in lengths:
        if group and total + length > TOKENS:
            yield group
            group, total = [], 0
        group.append(length)
        total += length
    yield group


def _next(
    layer: LayerParts, states: Tensor, layout: Layout, heads: int, bias: Tensor | None,
    dtype: torch.dtype, rows: Tensor | None,
) -> Tensor:  # fmt: skip
    """Return the next states, those of ``rows`` alone unless it is None.

    Sums and norms stay in their own type, as under autocast.
    """
    projected = linear(states, [layer.query, layer.key, layer.value], dtype)
    mixed = attended(projected, bias, layout, heads, Dropout(layer.shares_dropout))
    if rows is not None:
        mixed, states = mixed[rows], states[rows]
    branch = linear(mixed, [layer.attended], dtype)
    states = added_norm(states, branch, Dropout(layer.attended_dropout), layer.attention_norm)
    inner = linear(states, [layer.inner], dtype)
    branch = linear(inner, [layer.outer], dtype, activation=layer.activation)
    return added_norm(states, branch, Dropout(layer.output_dropout), layer.output_norm)


def _is_plain(layer: LayerParts) -> bool:
    """Return whether a layer's dropout is the usual one, and its weights are of one type.

    Codes are not trained, and the model's own pass has their gradients.
    """
    if isinstance(layer.query, QuantisedLinear):
        return False
    dropouts = layer.shares_dropout, layer.attended_dropout, layer.output_dropout
    plain = all(part is None or type(part) is nn.Dropout for part in dropouts)
    kinds = {
        parameter.dtype
        for part in layer
        if isinstance(part, nn.Module)
        for parameter in part.parameters()
    }
    return plain and len(kinds) == 1
