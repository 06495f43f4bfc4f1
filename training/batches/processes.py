"""Training in several processes: shares of a batch, and gathering the vectors of all.

Every process knows the whole batch (the sampler is a function of seed and epoch), encodes its own
share of it, gathers the vectors of all, and computes the loss of the whole batch. Gradients flow
through the own share only, scaled so that the average that distributed training takes over
processes is the gradient of one process with the whole batch.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sluice.training.batches.scoring import widened_to

Value = TypeVar("Value")

PATIENCE = timedelta(days=2)


def world() -> int:
    """Return the number of training processes, 1 without ``torchrun``."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return this process's number, from 0."""
    return dist.get_rank() if world() > 1 else 0


def start() -> None:
    """Join the other processes that ``torchrun`` started, if it did."""
    import os

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from accelerate import PartialState

        # The others wait at a barrier while process 0 mines, which may take hours.
        PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)


@contextlib.contextmanager
def first_process() -> Iterator[None]:
    """Let process 0 run the block before the others, which then find what it left on disk."""
    if rank() > 0:
        dist.barrier()
    try:
        yield
    finally:
        if world() > 1 and rank() == 0:
            dist.barrier()


def wait() -> None:
    """Wait until every process is here."""
    if world() > 1:
        dist.barrier()


def from_first(value: Value) -> Value:
    """Return the value that process 0 has."""
    if world() == 1:
        return value
    values: list[Any] = [value]
    dist.broadcast_object_list(values, src=0)
    first: Value = values[0]
    return first


def shares(count: int, parts: int) -> list[slice]:
    """Return slices that deal ``count`` items out to ``parts`` processes, as even as can be."""
    least, more = divmod(count, parts)
    ends = [0]
    for part in range(parts):
        ends.append(ends[-1] + least + (part < more))
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


class _Scaled(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def gathered(own: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return every process's rows, in process order; ``sizes`` says how many rows each has.

    Gradients reach the own rows only, times the number of processes (see the module). Token
    vectors ``[n, L, dim]`` are filled up with zeros to the largest L of all processes.
    """
    if world() == 1:
        return own
    if own.dim() == 3:
        longest = torch.tensor(own.shape[1], device=own.device)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        own = widened_to(own, int(longest))
    most = max(sizes)
    padded = own.new_zeros((most, *own.shape[1:]))
    padded[: len(own)] = own.detach()
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    cut = [part[:size] for part, size in zip(parts, sizes, strict=True)]
    cut[rank()] = _Scaled.apply(own, float(world()))  # type: ignore[no-untyped-call]
    return torch.cat(cut)


def average_gradients(module: nn.Module) -> None:
    """Replace every gradient by its mean over the processes (what a distributed wrapper does)."""
    if world() == 1:
        return
    trained = [p for p in module.parameters() if p.requires_grad]
    for parameter in trained:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    flat = torch.cat([p.grad.reshape(-1) for p in trained if p.grad is not None])
    dist.all_reduce(flat)
    flat /= world()
    place = 0
    for parameter in trained:
        size = parameter.numel()
        parameter.grad = flat[place : place + size].view_as(parameter).clone()
        place += size
