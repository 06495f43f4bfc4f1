"""The vectors of three heads in one tensor, as training hands a side's vectors on."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

BESIDE = 2  # numbers beside a token's vector: its term's weight, and its term


class HeadVectors(NamedTuple):
    """What the heads make of n texts of at most L tokens.

    ``dense`` is ``[n, hidden]``, ``tokens`` ``[n, L, dim]`` (zeros are padding); ``terms`` and
    ``weights`` are ``[n, L]``: the vocabulary's numbers of the tokens, and their weights, 0 for
    special tokens.
    """

    dense: Tensor
    terms: Tensor
    weights: Tensor
    tokens: Tensor


def pack(vectors: HeadVectors) -> Tensor:
    """Return ``[n, rows + L, dim + 2]``: the dense vector in rows, then tokens.

    Rows of zeros may follow, as where texts of several lengths are joined. Numbers of terms are
    exact below 2^24.
    """
    dense, terms, weights, tokens = vectors
    width = tokens.shape[2] + BESIDE
    rows = -(-dense.shape[1] // width)
    filled = pad(dense, (0, rows * width - dense.shape[1]))
    beside = torch.stack([weights, terms.to(weights.dtype)], dim=2)
    texts = torch.cat([tokens, beside], dim=2)
    return torch.cat([filled.view(-1, rows, width), texts], dim=1)


def unpack(packed: Tensor, hidden: int) -> HeadVectors:
    """Return what ``pack`` joined, of dense vectors with ``hidden`` dimensions."""
    count, _, width = packed.shape
    rows = -(-hidden // width)
    dense = packed[:, :rows].reshape(count, rows * width)[:, :hidden]
    texts = packed[:, rows:]
    dim = width - BESIDE
    return HeadVectors(dense, texts[:, :, dim + 1].long(), texts[:, :, dim], texts[:, :, :dim])
