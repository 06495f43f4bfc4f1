"""The hyper-head: makes the weights of q-nets of queries' states; its folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.foundation.errors import ConfigError, ModelError, suggest
from sluice.encoders.foundation.q_net import QNetShape
from sluice.encoders.model_files.layout import SIDECAR, Layout

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


HEAD = "hyper_head.safetensors"
KEY = "hyper_head"  # of the sidecar


class Noted(NamedTuple):
    """What a folder says of its q-nets."""

    hidden_layers: int
    scaling: Scaling
    product: bool

    def facts(self) -> dict[str, Any]:
        """Return the entry of ``sluice.json``."""
        return {KEY: self._asdict()}


def noted_in(layout: Layout, folder: Path) -> Noted | None:
    """Return what the folder of a Hypencoder says; None for another encoder's."""
    if "HyperHead" not in layout.modules:
        return None
    facts = layout.sidecar.get(KEY)
    values = dict(facts) if isinstance(facts, dict) else {}
    layers, scaling, product = (values.get(name) for name in Noted._fields)
    counted = isinstance(layers, int) and not isinstance(layers, bool) and layers >= 0
    if not counted or scaling not in SCALINGS or not isinstance(product, bool):
        raise ModelError(
            f"{folder / SIDECAR}: {KEY} is {facts!r}; expected hidden_layers (a number), scaling "
            f"({' or '.join(SCALINGS)}) and product (true or false)"
        )
    noted = Noted(layers, scaling, product)  # type: ignore[arg-type]
    _check_layers(noted, folder)
    return noted


def _check_layers(noted: Noted, folder: Path) -> None:
    """Raise ``ModelError`` unless the file has so many layers, before any is made."""
    from safetensors import SafetensorError, safe_open

    file = folder / HEAD
    try:
        with safe_open(file, "pt") as weights:
            stored = sum(name.endswith(".table") for name in weights.keys())  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file}: cannot be read: {error}") from error
    if stored != 2 * noted.hidden_layers + 1:
        raise ModelError(
            f"{file}: has {stored} tables, and {SIDECAR} says hidden_layers: "
            f"{noted.hidden_layers}, which has {2 * noted.hidden_layers + 1}; copy both from where "
            "the model was saved"
        )


def read_head(head: HyperHead, folder: Path) -> None:
    """Load the hyper-head's weights; ``ModelError`` for other names or sizes than its own."""
    from safetensors.torch import load_file

    file = folder / HEAD
    state, own = load_file(file), head.state_dict()
    for name in sorted({*own, *state}):
        found = list(state[name].shape) if name in state else None
        expected = list(own[name].shape) if name in own else None
        if found != expected or not state[name].is_floating_point():
            raise ModelError(
                f"{file}: {name} is {found or 'missing'}, expected "
                f"{expected or 'no such weight'} for the q-nets that {SIDECAR} describes; copy "
                "both from where the model was saved"
            )
    with torch.no_grad():
        head.load_state_dict(state)


def write_head(head: HyperHead, folder: Path) -> None:
    """Write the hyper-head's weights."""
    from safetensors.torch import save_file

    state = {name: value.detach().cpu().contiguous() for name, value in head.state_dict().items()}
    save_file(state, folder / HEAD)
