"""Training without padding: a transformer's forward pass over packed tokens, with gradients.

What ``sluice.encoders.transformer.packed.model`` is to encoding: linear layers and norms see the
real tokens alone, attention runs over texts of equal length together, and products go where they
are fast. The parameters are the model's own, so optimisers, distributed wrappers and checkpoints
see what they always see; values and gradients are those of the padded pass within rounding. Dropout
has the model's probabilities and is a function of torch's random state, drawn in another order than
the padded pass draws it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sluice.encoders.model_files.layers import recomputes
from sluice.encoders.model_files.weights.quantised import QuantisedLinear
from sluice.encoders.transformer.packed.attention import Span, spans
from sluice.encoders.transformer.packed.families import LayerParts, Parts, parts_of
from sluice.encoders.transformer.packed.model import embedded
from sluice.encoders.transformer.packed.training_layers import Dropout, added_norm, attended, linear

# Tokens of one pass through the layers. Texts do not see each other, so the sum of the gradients is
# that of the batch; above it, buffers are too large for the allocator to keep, and pages are given
# back and asked for again all the time: 1.1 times as long at 8,192.
TOKENS = 4_096
_KNOWN = {"input_ids", "attention_mask", "token_type_ids"}


class Packing(NamedTuple):
    """Where the real tokens of a padded batch ``[n, length]`` lie, the longest text first.

    ``places`` int64 ``[tokens]`` count through the padded batch; ``rows`` int64 ``[texts]`` are the
    texts in packed order, of ``lengths``, each with so many tokens ``seen``; texts without tokens
    are in none of them.
    """

    places: Tensor
    rows: Tensor
    lengths: list[int]
    seen: list[int]
    shape: tuple[int, int]

    def padded(self, states: Tensor) -> Tensor:
        """Return ``[n, length, hidden]`` of packed ``[tokens, hidden]``, 0 at the padding."""
        texts, length = self.shape
        into = states.new_zeros((texts * length, states.shape[1]))
        return into.index_copy(0, self.places, states).view(texts, length, -1)

    def firsts(self, states: Tensor) -> Tensor:
        """Return ``[n, hidden]`` of packed ``[tokens, hidden]``: each text's first token, or 0."""
        sizes = torch.tensor(self.lengths)
        chosen = states[sizes.cumsum(0) - sizes]
        return states.new_zeros((self.shape[0], states.shape[1])).index_copy(0, self.rows, chosen)


def packing_of(mask: Tensor, present: Tensor | None = None) -> Packing | None:
    """Return how a batch packs by its ``attention_mask``; None unless padded on the right only.

    None also for a batch without any token. ``present`` are the tokens that have states, by
    default those of ``mask``, which all of them attend to.
    """
    present = mask if present is None else present
    sizes, seen = present.sum(dim=1), mask.sum(dim=1)
    places = torch.arange(mask.shape[1])[None]
    real = places < sizes[:, None]
    fits = torch.equal(real, present.bool()) and torch.equal(places < seen[:, None], mask.bool())
    if not fits or not int(seen.sum()) or bool((seen > sizes).any()):
        return None
    order = torch.argsort(sizes * (mask.shape[1] + 1) + seen, stable=True, descending=True)
    rows = order[sizes[order] > 0]
    inside = real[rows]
    places = (rows[:, None] * mask.shape[1] + torch.arange(mask.shape[1])[None])[inside]
    shape = mask.shape[0], mask.shape[1]
    return Packing(places, rows, sizes[rows].tolist(), seen[rows].tolist(), shape)


class TrainingPass:
    """One batch's pass through a model, in the arithmetic type of autocast where that is on."""

    def __init__(self, parts: Parts, features: dict[str, Tensor], packing: Packing) -> None:
        self._parts = parts
        self._features = features
        self.packing = packing

    @classmethod
    def of(
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
                runs = list(spans(group, packing.seen[texts : texts + len(group)]))
                texts += len(group)
                for layer in parts.layers:
                    part = _next(layer, part, runs, parts.heads, bias, dtype)
                done.append(part)
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
    layer: LayerParts, states: Tensor, runs: list[Span], heads: int, bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Return the next states; sums and norms stay in their own type, as under autocast."""
    projected = linear(states, [layer.query, layer.key, layer.value], dtype)
    mixed = attended(projected, bias, runs, heads, Dropout(layer.shares_dropout))
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
