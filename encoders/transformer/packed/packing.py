"""Where the real tokens of a padded batch lie when they are packed, and how many rows they take."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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


def evened(rows: Tensor) -> Tensor:
    """Return ``[n, size]`` with its first rows again after them, so that few ``n`` come up.

    On CPUs the library prepares each product anew for every number of rows, for longer than some of
    them take, and keeps what it has prepared. Of ``n`` the five leading bits count: at most a
    sixteenth is added.
    """
    step = 1 << max(len(rows).bit_length() - 5, 0) if rows.device.type == "cpu" else 1
    more = -len(rows) % step
    return torch.cat([rows, rows[:more]]) if more else rows
