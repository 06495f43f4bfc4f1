"""Linear layers over vectors, and vectors cut to their first dimensions (Matryoshka)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import ConfigError, ModelError, suggest
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.model_files.layout import read_object

_ACTIVATIONS = {
    "Identity": nn.Identity, "Tanh": nn.Tanh, "ReLU": nn.ReLU, "GELU": nn.GELU,
    "Sigmoid": nn.Sigmoid,
}  # fmt: skip
_BETWEEN = {"gelu": "GELU", "relu": "ReLU", "tanh": "Tanh"}  # of new layers, as YAML names them
_KEYS = ("dim", "layers", "hidden", "activation", "residual")


class Projection(nn.Module):
    """``activation(W x + b)``, with ``residual`` plus x, over vectors or another projection.

    Each is one of sentence-transformers' Dense modules; ``before`` is the one whose vectors it
    reads. Where a residual layer changes the number of dimensions, x passes a linear map without a
    bias. (Two residual layers: Takehi et al. 2025, arXiv 2510.14880.)
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        bias: bool = True,
        activation: str = "Identity",
        residual: bool = False,
        before: Projection | None = None,
    ) -> None:
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise ModelError(
                f"projection activation {activation!r}; known: {', '.join(_ACTIVATIONS)}"
            )
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.activation_name = activation
        self.activation = _ACTIVATIONS[activation]()
        self.residual: nn.Module | None = None
        if residual:
            same = inputs == outputs
            self.residual = nn.Identity() if same else nn.Linear(inputs, outputs, bias=False)
        self.before = before

    def forward(self, vectors: Tensor) -> Tensor:
        """Map ``[..., inputs]`` of the first projection to ``[..., outputs]``."""
        if self.before is not None:
            vectors = self.before(vectors)
        projected: Tensor = self.activation(self.linear(vectors))
        return projected if self.residual is None else projected + self.residual(vectors)

    @property
    def outputs(self) -> int:
        """The number of dimensions of a vector."""
        return self.linear.out_features

    @property
    def chain(self) -> list[Projection]:
        """The projections in the order in which vectors pass them; this one is the last."""
        return [*([] if self.before is None else self.before.chain), self]

    @property
    def described(self) -> str:
        """What decides the result besides weights."""
        return " ".join(
            part.activation_name + ("" if part.residual is None else "+") for part in self.chain
        )

    def own_state(self) -> dict[str, Tensor]:
        """Return the tensors of this layer alone, by sentence-transformers' names."""
        state = self.state_dict()
        return {k: v.detach().cpu() for k, v in state.items() if not k.startswith("before.")}


def begins_as_inputs(projection: Projection) -> bool:
    """Return whether a new projection passes vectors on as they were, until it is trained."""
    return all(isinstance(part.residual, nn.Identity) for part in projection.chain)


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


def read_projection(folders: Sequence[Path], hidden: int) -> Projection | None:
    """Read the Dense modules' folders, in order; None without any.

    The first one's input must be the ``hidden`` dimensions of the pooling.
    """
    projection: Projection | None = None
    for folder in folders:
        width = hidden if projection is None else projection.outputs
        projection = _read_layer(folder, width, projection)
    return projection


def _read_layer(folder: Path, width: int, before: Projection | None) -> Projection:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    config = read_object(folder / "config.json")
    sizes = config.get("in_features"), config.get("out_features")
    if sizes[0] != width or type(sizes[1]) is not int or sizes[1] < 1:
        raise ModelError(
            f"{folder / 'config.json'}: in_features and out_features are {sizes}; expected "
            f"{width}, the dimensions of the vectors before it, and a number of dimensions"
        )
    weights = folder / "model.safetensors"
    if not weights.exists():
        raise ModelError(f"{weights}: missing; Dense weights are read from safetensors only")
    activation = str(config.get("activation_function", "Identity")).rsplit(".", 1)[-1]
    layer = Projection(
        width,
        sizes[1],
        bias=bool(config.get("bias", True)),
        activation=activation,
        residual=bool(config.get("use_residual", False)),
    )
    try:
        layer.load_state_dict(load_file(weights))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise ModelError(f"{weights}: does not fit its config.json: {error}") from error
    layer.before = before
    return layer


def linear_projection(weights: Path, hidden: int) -> Projection:
    """Read ``linear.weight`` beside a network's own weights, where ColBERT has it."""
    from safetensors import SafetensorError, safe_open

    if not weights.exists():
        raise ModelError(f"{weights}: missing; weights are read from safetensors only")
    try:
        with safe_open(weights, framework="pt") as file:
            matrix = file.get_tensor("linear.weight")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{weights}: no linear.weight to project by: {error}") from error
    if matrix.ndim != 2 or matrix.shape[1] != hidden or not matrix.is_floating_point():
        raise ModelError(
            f"{weights}: linear.weight is {list(matrix.shape)}; expected [dimensions, {hidden}]"
        )
    projection = Projection(hidden, len(matrix), bias=False)
    with torch.no_grad():
        projection.linear.weight.copy_(matrix)
    return projection


def write_projection(projection: Projection, folders: Sequence[Path]) -> None:
    """Write the Dense module's folder of each layer."""
    from safetensors.torch import save_file

    for layer, folder in zip(projection.chain, folders, strict=True):
        module = type(layer.activation).__module__
        config = {
            "in_features": layer.linear.in_features,
            "out_features": layer.outputs,
            "bias": layer.linear.bias is not None,
            "activation_function": f"{module}.{layer.activation_name}",
        }
        # Left out where false, so that sentence-transformers before 5.7 reads the folder too.
        residual = {} if layer.residual is None else {"use_residual": True}
        write_json(folder / "config.json", {**config, **residual})
        save_file(layer.own_state(), folder / "model.safetensors")


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
    width = hidden if projection is None else projection.outputs
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
    plain = projection.described == "Identity"
    if not plain or "bias" in dict(linear.named_parameters()):
        return False
    return linear.out_features == dim and torch.equal(
        linear.weight.detach().cpu(), torch.eye(dim, linear.in_features)
    )


def _first_rows(projection: Projection, dim: int) -> Projection:
    """Return the projection to the first dimensions; only its last layer loses rows."""
    linear, skip = projection.linear, projection.residual
    if dim == projection.outputs:
        return projection
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
