"""K-means of the states of each text's tokens, of many texts at a time, without any chance."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Centroids(NamedTuple):
    """Means ``[n, k, hidden]`` of texts' clusters, and which of them have tokens, ``[n, k]``.

    Those without are zeros.
    """

    means: Tensor
    filled: Tensor


def centroids(states: Tensor, mask: Tensor, count: int, rounds: int) -> Centroids:
    """Return the centroids of texts' token states ``[n, length, hidden]``, with gradients.

    Real tokens have mask 1, ``[n, length]``. Which token is in which cluster is taken as given: the
    gradient of a centroid goes to its tokens alike. A text of no more than ``count`` tokens has a
    centroid for each.
    """
    with torch.no_grad():
        clusters = assigned(states.detach().float(), mask, count, rounds)
    return _means(states, _members(clusters, count, states.dtype))


def assigned(states: Tensor, mask: Tensor, count: int, rounds: int) -> Tensor:
    """Return the cluster of each token, ``[n, length]``, -1 for padding.

    Lloyd's algorithm by Euclidean distance: it starts at ``count`` tokens evenly spaced over the
    text, and ends when no token moves, or after ``rounds``. A token as far from two centroids is in
    the first; a cluster that loses its tokens keeps its place. A text's clusters depend on no other
    text of the batch.
    """
    real = mask.bool()
    tokens = real.sum(dim=1, keepdim=True)  # [n, 1]
    clusters = tokens.clamp(max=count)
    numbers = torch.arange(count, device=states.device)
    used = numbers < clusters  # [n, count]
    starts = (2 * numbers + 1) * tokens // (2 * clusters).clamp(min=1)
    order = torch.argsort((~real).long(), dim=1, stable=True)  # real tokens first, in their order
    places = order.gather(1, starts.clamp(max=mask.shape[1] - 1))
    rows = torch.arange(len(states), device=states.device)[:, None]
    centres = states[rows, places]
    found = torch.full_like(mask, -1, dtype=torch.long)
    for _ in range(rounds):
        distances = centres.square().sum(2)[:, None] - 2 * states @ centres.transpose(1, 2)
        nearest = distances.masked_fill(~used[:, None], torch.inf).argmin(dim=2)
        nearest = nearest.masked_fill(~real, -1)
        if torch.equal(nearest, found):
            break
        found = nearest
        moved = _means(states, _members(found, count, states.dtype))
        centres = torch.where(moved.filled[..., None], moved.means, centres)
    return found


def _members(clusters: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return 1 where a cluster has a token, ``[n, count, length]``."""
    numbers = torch.arange(count, device=clusters.device)[:, None]
    return (clusters[:, None] == numbers).to(dtype)


def _means(states: Tensor, members: Tensor) -> Centroids:
    sizes = members.sum(dim=2, keepdim=True)
    return Centroids(members @ states / sizes.clamp(min=1), sizes.squeeze(2) > 0)
