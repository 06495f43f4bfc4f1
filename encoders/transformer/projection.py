"""New linear layers over vectors, and vectors cut to their first dimensions (Matryoshka)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from sluice.encoders.foundation.errors import ConfigError, ModelError, suggest
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.model_files.layout import VectorModule
from sluice.encoders.transformer.vector_layers import Projection, VectorLayer, read_layers

_BETWEEN = {"gelu": "GELU", "relu": "ReLU", "tanh": "Tanh"}  # of new layers, as YAML names them
_KEYS = ("dim", "layers", "hidden", "activation", "residual")


def begins_as_inputs(projection: VectorLayer) -> bool:
    """Return whether a new projection passes vectors on as they were, until it is trained."""
    layers = projection.chain
    return all(isinstance(x, Projection) and isinstance(x.residual, nn.Identity) for x in layers)


class _Spec(NamedTuple):
    """The layers of a new projection: their dimensions, and what is between them."""

    sizes: tuple[int, ...]
    activation: str
    residual: bool


def draw_projection(
    inputs: int, spec: int | Mapping[str, Any], seed: int, *, bias: bool = True
) -> Projection:
    """Return a new projection whose weights are drawn by ``seed``.

    ``spec`` is the number of dimensions, or ``dim`` with ``layers``, the ``hidden`` dimensions
    between them (by default the inputs'), their ``activation`` (``gelu``, ``relu`` or ``tanh``) and
    ``residual``. A residual layer begins as what it passes on: where ``dim`` and ``hidden`` are the
    inputs', vectors begin as they were. Without ``bias`` every layer is linear alone.
    """
    sizes, between, residual = _spec_of(inputs, spec)
    last = len(sizes) - 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made: Projection | None = None
        for number, (size, following) in enumerate(itertools.pairwise(sizes), start=1):
            activation = "Identity" if number == last else between
            layer = Projection(
                size, following, bias=bias, activation=activation, residual=residual, before=made
            )
            if residual:
                for parameter in layer.linear.parameters():
                    nn.init.zeros_(parameter)
            made = layer
    return layer


def chosen_projection(
    spec: int | Mapping[str, Any] | None, layers: Sequence[VectorModule], inputs: int, seed: int
) -> VectorLayer | None:
    """Return a new projection, see ``draw_projection``, or for None what a folder's layers are."""
    return read_layers(layers, inputs) if spec is None else draw_projection(inputs, spec, seed)


def _spec_of(inputs: int, spec: int | Mapping[str, Any]) -> _Spec:
    """Return the layers of a new projection over vectors of ``inputs`` dimensions."""
    check_projection(spec)
    if not isinstance(spec, Mapping):
        return _Spec((inputs, spec), "", residual=False)
    outputs, layers, residual = spec["dim"], spec.get("layers", 1), spec.get("residual", False)
    if layers == 1 and residual and outputs != inputs:
        raise ConfigError(
            f"projection.residual: one layer from {inputs} to {outputs} dimensions is a linear map "
            "with it as without; leave it out, or layers: 2"
        )
    between = [spec.get("hidden", inputs)] * (layers - 1)
    return _Spec((inputs, *between, outputs), _BETWEEN[spec.get("activation", "gelu")], residual)


def check_projection(spec: Any) -> None:
    """Raise ``ConfigError`` for settings of a new projection that no model could have."""
    if not isinstance(spec, Mapping):
        whole_number(spec, "projection", 1)
        return
    for key in spec:
        if key not in _KEYS:
            raise ConfigError(
                f"projection.{key}: unknown; known: {', '.join(_KEYS)}{suggest(str(key), _KEYS)}"
            )
    for key, usual in (("dim", None), ("layers", 1), ("hidden", 1)):
        whole_number(spec.get(key, usual), f"projection.{key}", 1)
    residual, named = spec.get("residual", False), spec.get("activation", "gelu")
    if type(residual) is not bool:
        raise ConfigError(f"projection.residual: {residual!r}, expected true or false")
    if not isinstance(named, str) or named not in _BETWEEN:
        raise ConfigError(f"projection.activation: {named!r}; known: {', '.join(_BETWEEN)}")
    if spec.get("layers", 1) == 1:
        for key in ("hidden", "activation"):
            if key in spec:
                raise ConfigError(
                    f"projection.{key}: is between layers; leave it out, or layers: 2"
                )
    elif residual and named == "relu":
        raise ConfigError(
            "projection.activation: relu is flat at 0, where a residual layer begins, and would "
            "stay there; use gelu or tanh"
        )


class Cut(NamedTuple):
    """Layers over vectors, or the number of dimensions to cut to without any."""

    projection: VectorLayer | None
    shortened: int | None


def cut_vectors(
    projection: VectorLayer | None, hidden: int, dim: int | None, noted: dict[str, Any]
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
    width = hidden if projection is None else projection.outputs
    width = shortened or width
    if dim is None:
        return Cut(projection, shortened)
    if type(dim) is not int or not 1 <= dim <= width:
        raise ConfigError(f"dim: {dim!r}; the model's vectors have {width}, expected 1 to {width}")
    if projection is None:
        return Cut(None, dim if dim < hidden else None)
    return Cut(_first_rows(projection, dim), None)


def as_projection(hidden: int, dim: int, before: VectorLayer | None = None) -> Projection:
    """Return the projection to the first ``dim`` dimensions, for tools that cannot cut vectors."""
    projection = Projection(hidden, dim, bias=False, before=before)
    with torch.no_grad():
        projection.linear.weight.copy_(torch.eye(dim, hidden))
    return projection


def _only_cuts(layers: VectorLayer, dim: int) -> bool:
    if not isinstance(layers, Projection) or layers.described != "Identity":
        return False
    linear = layers.linear
    if "bias" in dict(linear.named_parameters()):
        return False
    return linear.out_features == dim and torch.equal(
        linear.weight.detach().cpu(), torch.eye(dim, linear.in_features)
    )


def _first_rows(projection: VectorLayer, dim: int) -> VectorLayer:
    """Return the layers to the first dimensions; of a projection only the last loses rows."""
    if dim == projection.outputs:
        return projection
    if not isinstance(projection, Projection):  # all dimensions decide a norm
        return as_projection(projection.outputs, dim, projection)
    linear, skip = projection.linear, projection.residual
    if isinstance(skip, nn.Linear) and dim == linear.in_features:
        # A residual Dense module of as many outputs as inputs has no weights to skip by.
        return as_projection(projection.outputs, dim, projection)
    cut = Projection(
        linear.in_features,
        dim,
        bias=linear.bias is not None,
        activation=projection.activation_name,
        residual=skip is not None,
        before=projection.before,
    )
    with torch.no_grad():
        cut.linear.weight.copy_(linear.weight[:dim])
        if linear.bias is not None:
            cut.linear.bias.copy_(linear.bias[:dim])
        if isinstance(cut.residual, nn.Linear):
            whole = skip.weight if isinstance(skip, nn.Linear) else torch.eye(linear.in_features)
            cut.residual.weight.copy_(whole[:dim])
    return cut
