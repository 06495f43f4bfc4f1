"""What vectors pass after the pooling: sentence-transformers' Dense, LayerNorm and Normalize."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files.layout import VectorModule, read_object
from sluice.encoders.model_files.weights.files import PICKLED, WEIGHTS, refuse_pickle

# Activations that have no settings and work on each number alone.
ACTIVATIONS: dict[str, type[nn.Module]] = {
    name: getattr(nn, name)
    for name in (
        "Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU", "Mish", "LeakyReLU", "ELU", "SELU",
        "CELU", "ReLU6", "Hardtanh", "Hardswish", "Hardsigmoid", "Softplus", "Softsign",
        "LogSigmoid", "Tanhshrink",
    )
}  # fmt: skip
_OF_TORCH = re.compile(r"torch\.nn(?:\.modules(?:\.activation|\.linear)?)?\.(\w+)")
_UNNAMED = "torch.nn.modules.activation.Tanh"  # of a Dense module that names none


class VectorLayer(nn.Module, ABC):
    """One step over vectors, after the one ``before`` it."""

    kind: ClassVar[str]  # sentence-transformers' name of the module
    before: VectorLayer | None

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number of dimensions of a vector."""

    @property
    def described(self) -> str:
        """What decides the result besides weights."""
        return " ".join(layer.own_words for layer in self.chain)

    @property
    def own_words(self) -> str:
        """What decides this layer's result besides weights."""
        return self.kind

    @property
    def chain(self) -> list[VectorLayer]:
        """The layers in the order in which vectors pass them; this one is the last."""
        return [*([] if self.before is None else self.before.chain), self]

    def config(self) -> dict[str, Any]:
        """Return the module's settings as sentence-transformers writes them."""
        return {}

    def own_state(self) -> dict[str, Tensor]:
        """Return the tensors of this layer alone, by sentence-transformers' names."""
        state = self.state_dict()
        return {k: v.detach().cpu() for k, v in state.items() if not k.startswith("before.")}

    def reads(self, vectors: Tensor) -> Tensor:
        """Return the vectors that this layer reads: those of the layer before it."""
        return vectors if self.before is None else self.before(vectors)


class Projection(VectorLayer):
    """``activation(W x + b)``, with ``residual`` plus x, over vectors or another layer.

    Each is one of sentence-transformers' Dense modules. Where a residual layer changes the number
    of dimensions, x passes a linear map without a bias. (Two residual layers: Takehi et al. 2025,
    arXiv 2510.14880.)
    """

    kind = "Dense"

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        bias: bool = True,
        activation: str = "Identity",
        residual: bool = False,
        before: VectorLayer | None = None,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ModelError(
                f"projection activation {activation!r}; known: {', '.join(ACTIVATIONS)}"
            )
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.activation_name = activation
        self.activation = ACTIVATIONS[activation]()
        self.residual: nn.Module | None = None
        if residual:
            same = inputs == outputs
            self.residual = nn.Identity() if same else nn.Linear(inputs, outputs, bias=False)
        self.before = before

    def forward(self, vectors: Tensor) -> Tensor:
        """Map ``[..., inputs]`` of the first layer to ``[..., outputs]``."""
        vectors = self.reads(vectors)
        projected: Tensor = self.activation(self.linear(vectors))
        return projected if self.residual is None else projected + self.residual(vectors)

    @property
    def outputs(self) -> int:
        """The number of dimensions of a vector."""
        return self.linear.out_features

    @property
    def own_words(self) -> str:
        """The activation, with a plus where the layer is residual."""
        return self.activation_name + ("" if self.residual is None else "+")

    def config(self) -> dict[str, Any]:
        """Return the module's settings as sentence-transformers writes them."""
        settings = {
            "in_features": self.linear.in_features,
            "out_features": self.outputs,
            "bias": self.linear.bias is not None,
            "activation_function": f"{type(self.activation).__module__}.{self.activation_name}",
        }
        # Left out where false, so that sentence-transformers before 5.7 reads the folder too.
        return settings if self.residual is None else {**settings, "use_residual": True}


class NormLayer(VectorLayer):
    """A layer norm over vectors, with its weights (Ba et al. 2016, arXiv 1607.06450)."""

    kind = "LayerNorm"

    def __init__(self, size: int, *, before: VectorLayer | None = None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.before = before

    def forward(self, vectors: Tensor) -> Tensor:
        """Return vectors ``[..., size]`` of mean 0 and variance 1, times weights plus biases."""
        normed: Tensor = self.norm(self.reads(vectors))
        return normed

    @property
    def outputs(self) -> int:
        """The number of dimensions of a vector."""
        return self.norm.normalized_shape[0]

    def config(self) -> dict[str, Any]:
        """Return the module's settings as sentence-transformers writes them."""
        return {"dimension": self.outputs}


class UnitLayer(VectorLayer):
    """Scales vectors to length 1 before further layers read them."""

    kind = "Normalize"

    def __init__(self, size: int, *, before: VectorLayer | None = None) -> None:
        super().__init__()
        self._size = size
        self.before = before

    def forward(self, vectors: Tensor) -> Tensor:
        """Return vectors ``[..., size]`` of length 1."""
        return nn.functional.normalize(self.reads(vectors), dim=-1)

    @property
    def outputs(self) -> int:
        """The number of dimensions of a vector."""
        return self._size


def read_layers(modules: Sequence[VectorModule], inputs: int) -> VectorLayer | None:
    """Read the modules' folders, in order; None without any.

    The first one reads vectors of ``inputs`` dimensions, those of the pooling.
    """
    layer: VectorLayer | None = None
    for kind, folder in modules:
        width = inputs if layer is None else layer.outputs
        if kind == "Dense":
            layer = _read_dense(folder, width, layer)
        elif kind == "LayerNorm":
            layer = _read_norm(folder, width, layer)
        else:
            layer = UnitLayer(width, before=layer)
    return layer


def _read_dense(folder: Path, width: int, before: VectorLayer | None) -> Projection:
    config = read_object(folder / "config.json")
    sizes = config.get("in_features"), config.get("out_features")
    if sizes[0] != width or type(sizes[1]) is not int or sizes[1] < 1:
        raise ModelError(
            f"{folder / 'config.json'}: in_features and out_features are {sizes}; expected "
            f"{width}, the dimensions of the vectors before it, and a number of dimensions"
        )
    state = _state(folder, Projection.kind)
    shape = list(state["linear.weight"].shape) if "linear.weight" in state else None
    if shape != [sizes[1], width]:  # before memory is allocated for it
        raise ModelError(
            f"{folder / WEIGHTS}: does not fit its config.json: linear.weight is {shape}, expected "
            f"{[sizes[1], width]}"
        )
    layer = Projection(
        width,
        sizes[1],
        bias=bool(config.get("bias", True)),
        activation=_activation(config.get("activation_function", _UNNAMED), folder),
        residual=bool(config.get("use_residual", False)),
    )
    _fill(layer, state, folder)
    layer.before = before
    return layer


def _activation(value: Any, folder: Path) -> str:
    """Return the name of an activation of torch; nothing is imported by it."""
    match = _OF_TORCH.fullmatch(str(value))
    if match is None or match[1] not in ACTIVATIONS:
        raise ModelError(
            f"{folder / 'config.json'}: activation_function is {value!r}; expected "
            f"torch.nn.modules.activation.NAME with one of {', '.join(ACTIVATIONS)}"
        )
    return match[1]


def _read_norm(folder: Path, width: int, before: VectorLayer | None) -> NormLayer:
    size = read_object(folder / "config.json").get("dimension")
    if size != width:
        raise ModelError(
            f"{folder / 'config.json'}: dimension is {size!r}; expected {width}, the dimensions of "
            "the vectors before it"
        )
    layer = NormLayer(width)
    _fill(layer, _state(folder, layer.kind), folder)
    layer.before = before
    return layer


def _state(folder: Path, kind: str) -> dict[str, Tensor]:
    """Return the tensors of a module's folder by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights = folder / WEIGHTS
    if not weights.exists():
        refuse_pickle(folder.resolve().parent, [folder / PICKLED])
        raise ModelError(
            f"{weights}: missing; the weights of a {kind} module are read from safetensors only"
        )
    try:
        state: dict[str, Tensor] = load_file(weights)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{weights}: not readable as safetensors: {error}") from error
    return state


def _fill(layer: VectorLayer, state: dict[str, Tensor], folder: Path) -> None:
    try:
        layer.load_state_dict(state)
    except RuntimeError as error:
        raise ModelError(f"{folder / WEIGHTS}: does not fit its config.json: {error}") from error


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


def kinds_of(layers: VectorLayer | None) -> list[str]:
    """Return the modules that layers are saved as, in order."""
    return [] if layers is None else [layer.kind for layer in layers.chain]


def write_layers(layers: VectorLayer | None, folders: Sequence[Path]) -> None:
    """Write the module's folder of each layer."""
    from safetensors.torch import save_file

    for layer, folder in zip([] if layers is None else layers.chain, folders, strict=True):
        state = layer.own_state()
        if layer.config():
            write_json(folder / "config.json", layer.config())
        if state:
            save_file(state, folder / WEIGHTS)
