"""Training in large batches: gradients a few texts at a time, and LAMB's step.

Gao et al. 2021 (arXiv 2101.06983): encode without a graph, take the loss's gradient by the vectors,
then encode again chunk by chunk and hand each chunk its part of that gradient. Dropout is replayed,
so the result is the gradient of the whole batch. The largest chunk keeps its graph and is not
encoded again: one graph is held in either case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from sluice.training.batches.scoring import widened_to
from sluice.training.protocol import Features

LARGEST = 10.0  # norm of weights that counts


class Lamb(torch.optim.Optimizer):
    """``w <- w - lr min(|w|, 10) / |r| r``, ``r = m / (sqrt(v) + eps) + weight_decay w``.

    m and v are the running means of gradients and of their squares, by ``betas``, without bias
    correction; the factor is 1 where either norm is 0. Norms are of whole tensors. Large batches
    keep rates that Adam would not bear: STAR was trained with a batch of 256 at 1e-4. You et al.
    2020 (arXiv 1904.00962), algorithm 2, with the bounds of the code that STAR was trained with.
    """

    EPS: ClassVar[float] = 1e-6

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = EPS,
        weight_decay: float = 0.0,
    ) -> None:
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, settings)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step; return what ``closure`` returns."""
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)
        return value

    def _move(self, weights: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weights]
        if not state:
            state["mean"] = torch.zeros_like(weights)
            state["square"] = torch.zeros_like(weights)
        (slow, slower), mean, square = group["betas"], state["mean"], state["square"]
        mean.mul_(slow).add_(gradient, alpha=1 - slow)
        square.mul_(slower).addcmul_(gradient, gradient, value=1 - slower)
        move = mean / square.sqrt().add_(group["eps"])
        if group["weight_decay"]:
            move.add_(weights, alpha=group["weight_decay"])
        size, length = weights.norm().clamp(max=LARGEST), move.norm()
        ratio = torch.where((size > 0) & (length > 0), size / length, torch.ones_like(size))
        weights.sub_(move.mul_(ratio * group["lr"]))


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
    largest = max(chunks, key=lambda chunk: chunk.features["input_ids"].numel())
    vectors: dict[str, Tensor] = {}
    states, graph = [], None
    for chunk in chunks:
        states.append(_random_state())
        # Left each time: autocast keeps weights that it cast without a graph for the next pass.
        with torch.set_grad_enabled(chunk is largest), arithmetic():
            encoded = encode({chunk.name: chunk.features})[chunk.name]
        if chunk is largest:
            graph, encoded = encoded, encoded.detach()
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
    ordered = sorted(zip(chunks, states, strict=True), key=lambda each: each[0] is not largest)
    for chunk, state in ordered:
        gradient = leaves[chunk.name].grad
        if gradient is not None and gradient[chunk.rows].any():
            if graph is None:
                _restore(state)
                with arithmetic():
                    graph = encode({chunk.name: chunk.features})[chunk.name]
            if graph.requires_grad:  # queries without a network have no gradient
                own = gradient[chunk.rows]
                torch.autograd.backward(graph, own[:, : graph.shape[1]] if own.dim() == 3 else own)
        graph = None
    _restore(after)
    return loss.detach()


def _chunks(name: str, features: Features, size: int) -> Iterator[_Chunk]:
    """Texts of like length together, without the padding that longer ones would need."""
    lengths = features["attention_mask"].sum(dim=1)
    order = torch.argsort(lengths, stable=True, descending=True)
    for rows in torch.split(order, size):
        longest = max(1, int(lengths[rows].max()))
        yield _Chunk(name, rows, {k: values[rows][:, :longest] for k, values in features.items()})


def _random_state() -> tuple[Tensor, list[Tensor]]:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all()  # of no devices, where none are


def _restore(state: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(state[0])
    torch.cuda.set_rng_state_all(state[1])
