"""Gradient caching: trains on a batch of any size, encoding a few texts at a time.

Gao et al. 2021 (arXiv 2101.06983): encode without a graph, take the loss's gradient by the vectors,
then encode again chunk by chunk and hand each chunk its part of that gradient. Dropout is replayed,
so the result is the gradient of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor

from sluice.training.batches.scoring import widened_to
from sluice.training.protocol import Features

Encode = Callable[[dict[str, Features]], Mapping[str, Tensor]]


class _Chunk(NamedTuple):
    name: str
    rows: Tensor
    features: Features


def cached_backward(
    encode: Encode,
    features: Mapping[str, Features],
    size: int,
    objective: Callable[[Mapping[str, Tensor]], Tensor],
    *,
    arithmetic: Callable[[], AbstractContextManager[object]],
    share: float = 1.0,
    backward: Callable[[Tensor], None] = torch.autograd.backward,
) -> Tensor:
    """Accumulate the gradients of ``share`` times the objective; return its value, detached.

    ``encode({name: features})`` returns ``{name: vectors [n, ...]}``; ``features`` are tensors
    ``[n, length]`` padded on the right, of which ``size`` texts of like length are encoded at once.
    Token vectors ``[n, L, dim]`` of chunks with another L are filled up with zeros.
    ``objective`` turns the vectors of the whole batch into the loss. ``arithmetic`` makes the
    context (autocast) that encoding runs under; ``backward`` may scale what it is given (fp16), and
    all gradients are then scaled alike.
    """
    chunks = [chunk for name, part in features.items() for chunk in _chunks(name, part, size)]
    vectors: dict[str, Tensor] = {}
    states = []
    for chunk in chunks:
        states.append(_random_state())
        # Left each time: autocast keeps weights that it cast without a graph for the next pass.
        with torch.no_grad(), arithmetic():
            encoded = encode({chunk.name: chunk.features})[chunk.name]
        if chunk.name not in vectors:
            count = len(features[chunk.name]["input_ids"])
            vectors[chunk.name] = encoded.new_zeros((count, *encoded.shape[1:]))
        elif encoded.dim() == 3:
            longest = max(encoded.shape[1], vectors[chunk.name].shape[1])
            vectors[chunk.name] = widened_to(vectors[chunk.name], longest)
            encoded = widened_to(encoded, longest)
        vectors[chunk.name][chunk.rows] = encoded
    after = _random_state()
    leaves = {name: values.requires_grad_() for name, values in vectors.items()}
    with torch.enable_grad():
        loss = objective(leaves)
        backward(loss * share)
    for chunk, state in zip(chunks, states, strict=True):
        gradient = leaves[chunk.name].grad
        if gradient is None or not gradient[chunk.rows].any():
            continue
        _restore(state)
        with arithmetic():
            encoded = encode({chunk.name: chunk.features})[chunk.name]
        if encoded.requires_grad:  # queries without a network have no gradient
            own = gradient[chunk.rows]
            torch.autograd.backward(encoded, own[:, : encoded.shape[1]] if own.dim() == 3 else own)
    _restore(after)
    return loss.detach()


def _chunks(name: str, features: Features, size: int) -> Iterator[_Chunk]:
    """Texts of like length together, without the padding that longer ones would need."""
    lengths = features["attention_mask"].sum(dim=1)
    order = torch.argsort(lengths, stable=True, descending=True)
    for rows in torch.split(order, size):
        longest = max(1, int(lengths[rows].max()))
        yield _Chunk(name, rows, {k: values[rows][:, :longest] for k, values in features.items()})


class _RandomState(NamedTuple):
    cpu: Tensor
    cuda: list[Tensor]


def _random_state() -> _RandomState:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return _RandomState(torch.get_rng_state(), cuda)


def _restore(state: _RandomState) -> None:
    torch.set_rng_state(state.cpu)
    if state.cuda:
        torch.cuda.set_rng_state_all(state.cuda)
