"""A linear layer after the pooling, and vectors cut to their first dimensions (Matryoshka)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.model_files.layout import read_object

_ACTIVATIONS = {
    "Identity": nn.Identity, "Tanh": nn.Tanh, "ReLU": nn.ReLU, "GELU": nn.GELU,
    "Sigmoid": nn.Sigmoid,
}  # fmt: skip


class Projection(nn.Module):
    """A linear layer and an activation over pooled vectors (sentence-transformers' Dense)."""

    def __init__(
        self, inputs: int, outputs: int, *, bias: bool = True, activation: str = "Identity"
    ) -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise ModelError(
                f"projection activation {activation!r}; known: {', '.join(_ACTIVATIONS)}"
            )
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.activation_name = activation
        self.activation = _ACTIVATIONS[activation]()

    def forward(self, vectors: Tensor) -> Tensor:
        """Map ``[n, inputs]`` to ``[n, outputs]``."""
        projected: Tensor = self.activation(self.linear(vectors))
        return projected


def draw_projection(inputs: int, outputs: int, seed: int) -> Projection:
    """Return a new projection whose weights are drawn by ``seed``."""
    outputs = whole_number(outputs, "projection", 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Projection(inputs, outputs)


def read_projection(folder: Path, hidden: int) -> Projection:
    """Read a Dense module's folder; its input must be the ``hidden`` dimensions of the pooling."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    config = read_object(folder / "config.json")
    sizes = config.get("in_features"), config.get("out_features")
    if sizes[0] != hidden or type(sizes[1]) is not int or sizes[1] < 1:
        raise ModelError(
            f"{folder / 'config.json'}: in_features and out_features are {sizes}; expected "
            f"{hidden}, the pooling's dimensions, and a number of dimensions"
        )
    weights = folder / "model.safetensors"
    if not weights.exists():
        raise ModelError(f"{weights}: missing; Dense weights are read from safetensors only")
    activation = str(config.get("activation_function", "Identity")).rsplit(".", 1)[-1]
    projection = Projection(
        hidden, sizes[1], bias=bool(config.get("bias", True)), activation=activation
    )
    try:
        projection.load_state_dict(load_file(weights))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise ModelError(f"{weights}: does not fit its config.json: {error}") from error
    return projection


def write_projection(projection: Projection, folder: Path) -> None:
    """Write the Dense module's folder."""
    from safetensors.torch import save_file

    module = type(projection.activation).__module__
    config = {
        "in_features": projection.linear.in_features,
        "out_features": projection.linear.out_features,
        "bias": projection.linear.bias is not None,
        "activation_function": f"{module}.{projection.activation_name}",
    }
    write_json(folder / "config.json", config)
    weights = {key: value.detach().cpu() for key, value in projection.state_dict().items()}
    save_file(weights, folder / "model.safetensors")


class Cut(NamedTuple):
    """A projection, or the number of dimensions to cut to without one."""

    projection: Projection | None
    shortened: int | None


def cut_vectors(
    projection: Projection | None, hidden: int, dim: int | None, noted: dict[str, Any]
) -> Cut:
    """Return how a folder's vectors are cut to ``dim`` (None: as its ``sluice.json`` says).

    A projection loses rows, as its activation works on each dimension alone. One that
    ``as_projection`` wrote is recognised. Raises ``ConfigError`` for too many dimensions.
    """
    shortened = noted.get("dim")
    if shortened is not None and (type(shortened) is not int or shortened < 1):
        raise ModelError(f"sluice.json: dim is {shortened!r}, expected a number of dimensions")
    if shortened is not None and projection is not None and _only_cuts(projection, shortened):
        projection = None
    else:
        shortened = None
    width = hidden if projection is None else projection.linear.out_features
    width = shortened or width
    if dim is None:
        return Cut(projection, shortened)
    if type(dim) is not int or not 1 <= dim <= width:
        raise ConfigError(f"dim: {dim!r}; the model's vectors have {width}, expected 1 to {width}")
    if projection is None:
        return Cut(None, dim if dim < hidden else None)
    return Cut(_first_rows(projection, dim), None)


def as_projection(hidden: int, dim: int) -> Projection:
    """Return the projection to the first ``dim`` dimensions, for tools that cannot cut vectors."""
    projection = Projection(hidden, dim, bias=False)
    with torch.no_grad():
        projection.linear.weight.copy_(torch.eye(dim, hidden))
    return projection


def _only_cuts(projection: Projection, dim: int) -> bool:
    linear = projection.linear
    if projection.activation_name != "Identity" or "bias" in dict(linear.named_parameters()):
        return False
    return linear.out_features == dim and torch.equal(
        linear.weight.detach().cpu(), torch.eye(dim, linear.in_features)
    )


def _first_rows(projection: Projection, dim: int) -> Projection:
    linear = projection.linear
    cut = Projection(
        linear.in_features,
        dim,
        bias=linear.bias is not None,
        activation=projection.activation_name,
    )
    with torch.no_grad():
        cut.linear.weight.copy_(linear.weight[:dim])
        if linear.bias is not None:
            cut.linear.bias.copy_(linear.bias[:dim])
    return cut
