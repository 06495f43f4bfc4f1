"""The hyper-head: makes the weights of q-nets from the states of queries' tokens."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.q_net import QNetShape

Scaling: TypeAlias = Literal["formula", "repository"]
SCALINGS: tuple[Scaling, ...] = get_args(Scaling)
TABLE_DEVIATION = 10.0  # of the learnt attention queries, drawn


def checked_scaling(name: str) -> Scaling:
    """Return ``name`` if it is known."""
    for known in SCALINGS:
        if name == known:
            return known
    raise ConfigError(
        f"scaling: {name!r}, expected formula or repository{suggest(str(name), SCALINGS)}"
    )


class HyperHead(nn.Module):
    """Makes flat q-nets of ``shape`` from token states ``[n, length, states]``.

    Each matrix and each bias of the q-net is what a table of learnt queries Q gathers of the
    states H: with K = H W_K + b_K and V = H W_V + b_V, the attention A = softmax(Q K' / s) V, and
    the result (norm(relu(A)) U + c + B)', where the norm has neither gain nor bias and B is the
    part that all queries share (Killingback, Zeng and Zamani 2025, Hypencoder, arXiv 2502.05364).
    s is the root of the width of K with ``scaling: formula``; the authors' code (``repository``)
    takes the root of the q-net layer's number of outputs for a matrix and 1 for a bias.

    Drawn as the authors do, with the q-net's own width in place of 768: at the start a q-net hardly
    depends on the query but for its biases. With ``shape.product`` its output layer starts at
    zeros, so that the score starts as the inner product alone.
    """

    def __init__(self, states: int, shape: QNetShape, scaling: Scaling = "formula") -> None:
        super().__init__()
        self.shape, self.scaling = shape, checked_scaling(scaling)
        dim = shape.dim
        repository = scaling == "repository"
        weights = [
            _Generator(states, dim, outputs, divisor=outputs if repository else dim)
            for outputs in [*[dim] * shape.hidden, 1]
        ]
        with torch.no_grad():
            for made in weights:
                made.draw_small()
            if shape.product:
                nn.init.zeros_(weights[-1].base)
                nn.init.zeros_(weights[-1].update.weight)
        self.weights = nn.ModuleList(weights)
        self.biases = nn.ModuleList(
            _Generator(states, dim, 1, divisor=1 if repository else dim)
            for _ in range(shape.hidden)
        )

    def forward(self, states: Tensor, mask: Tensor, own: Tensor | None = None) -> Tensor:
        """Return flat q-nets ``[n, width]`` of states ``[n, length, states]``, float32.

        ``mask`` ``[n, length]`` says which are tokens; ``own`` ``[n, dim]`` are the queries' own
        vectors, for ``shape.product``.
        """
        with torch.autocast(states.device.type, enabled=False):
            states, seen = states.float(), mask.bool()
            parts: list[Tensor] = []
            for matrix, bias in zip(self.weights, self.biases, strict=False):
                parts.append(matrix(states, seen).transpose(1, 2).flatten(1))
                parts.append(bias(states, seen).flatten(1))
            parts.append(self.weights[-1](states, seen).flatten(1))
            if own is not None:
                parts.append(own.float())
            return torch.cat(parts, dim=1)


class _Generator(nn.Module):
    """Makes one matrix ``[n, outputs, inputs]`` of token states ``[n, length, states]``."""

    def __init__(self, states: int, inputs: int, outputs: int, *, divisor: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(outputs, inputs) * TABLE_DEVIATION)
        self.key, self.value = nn.Linear(states, inputs), nn.Linear(states, inputs)
        self.update = nn.Linear(inputs, inputs)
        self.base = nn.Parameter(torch.zeros(outputs, inputs))
        self.scale = 1 / math.sqrt(divisor)

    def draw_small(self) -> None:
        """Draw a matrix of the q-net: what all queries share, and next to nothing of their own."""
        inputs = self.base.shape[1]
        nn.init.normal_(self.base, std=math.sqrt(2 / inputs))
        nn.init.normal_(self.update.weight, std=1 / inputs**2)
        for layer in (self.update, self.key, self.value):
            nn.init.zeros_(layer.bias)

    def forward(self, states: Tensor, seen: Tensor) -> Tensor:
        logits = (self.table @ self.key(states).transpose(1, 2)) * self.scale  # [n, out, length]
        # not -inf: a text without tokens would have no number as its weights
        logits = logits.masked_fill(~seen[:, None], torch.finfo(logits.dtype).min)
        gathered = functional.relu(logits.softmax(dim=2) @ self.value(states))
        made: Tensor = self.update(functional.layer_norm(gathered, gathered.shape[2:])) + self.base
        return made
