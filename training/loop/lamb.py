"""LAMB: Adam's step, scaled layer by layer to the size of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

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
