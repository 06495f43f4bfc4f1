"""Runs a model's graph: chooses torch, ONNX Runtime or OpenVINO, and opens the exported file."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from sluice.encoders.backends.devices import Dtype, Engine, pick_dtype
from sluice.encoders.backends.graph import graph_path
from sluice.encoders.foundation.errors import ConfigError, MissingPackageError, suggest
from sluice.encoders.foundation.numbers import whole_number

Output: TypeAlias = Literal["last_hidden_state", "head_states", "logits"]
ENGINES = ("torch", "onnx", "openvino")
# The output of the graph of each kind of encoder.
OUTPUTS: dict[str, Output] = {
    "dense": "last_hidden_state",
    "gaussian": "last_hidden_state",
    "splade": "head_states",
    "cross_encoder": "logits",
}
_PACKAGES = {"onnx": ("onnx", "onnxruntime"), "openvino": ("onnx", "openvino")}


class Backend(Protocol):
    """A model's graph, without what comes after it: pooling, vocabulary product, activation."""

    name: str  # the engine, its arithmetic and the file, on which vectors depend
    own: bool  # whether the graph says that it was made from the weights beside it

    def __call__(self, features: Mapping[str, Tensor]) -> Tensor:
        """Run padded features: ``input_ids`` and ``attention_mask`` ``[n, length]``, integers.

        ``token_type_ids`` are optional; without them a graph that takes them gets zeros. Returns
        float32 on the CPU: last hidden states ``[n, length, hidden]`` (dense), the language-model
        head's states before its decoder ``[n, length, hidden]`` (SPLADE), or logits ``[n, 1]``
        (cross-encoder). Values at padding are undefined. Safe in threads.
        """
        ...


def open_backend(
    folder: str | Path,
    engine: Engine,
    output: Output,
    *,
    dtype: Dtype = "float32",
    threads: int | None = None,
    file: str | None = None,
    weights: str | None = None,
) -> Backend:
    """Open the exported graph of a local model folder.

    ``output`` is the one the encoder needs (``OUTPUTS``), ``threads`` defaults to torch's
    number, ``file`` to ``onnx/model.onnx``. ONNX Runtime computes in float32, OpenVINO also in
    bfloat16. ``weights`` is the ``weights_hash()`` of the folder's model: a graph exported from
    other weights is refused. Raises ``ConfigError`` for settings that an engine does not support
    and a folder without the file, ``MissingPackageError``, and ``ModelError`` for a graph that is
    damaged or of another kind of encoder.
    """
    check_engine(engine)
    if engine == "torch":
        raise ConfigError("backend: 'torch' runs the model itself and reads no exported graph")
    half = pick_dtype(dtype, torch.device("cpu")) is torch.bfloat16
    if engine == "onnx" and dtype == "bfloat16":
        raise ConfigError(
            "dtype: 'bfloat16' is not for backend 'onnx', which computes in float32; use backend "
            "'openvino' or 'torch', or dtype 'float32'"
        )
    if threads is not None:
        threads = whole_number(threads, "threads", 1)
    need_packages(engine)
    from sluice.encoders.backends.graph import read_graph

    graph = read_graph(Path(folder), output, file=file, weights=weights)
    count = threads or torch.get_num_threads()
    if engine == "onnx":
        from sluice.encoders.backends.onnx import OnnxBackend

        return OnnxBackend(graph, threads=count)
    from sluice.encoders.backends.openvino import OpenVinoBackend

    return OpenVinoBackend(graph, threads=count, half=half)


def check_engine(engine: str) -> None:
    """Raise ``ConfigError`` for a back end that does not exist."""
    if engine not in ENGINES:
        raise ConfigError(
            f"backend: {engine!r}; known: {', '.join(ENGINES)}{suggest(str(engine), ENGINES)}"
        )


def need_packages(engine: str) -> None:
    """Raise ``MissingPackageError`` for an engine whose packages are not installed."""
    for package in _PACKAGES.get(engine, ()):
        if importlib.util.find_spec(package) is None:
            raise MissingPackageError(package, engine, f"backend {engine!r}")


@dataclass(frozen=True, slots=True)
class ChosenBackend:
    """An engine on one file of a model folder.

    ``mark`` is its part in the encoder's fingerprint: None for the model's own float32 graph; the
    hash of a quantised one or of another tool's, whose vectors differ. ``weights`` are the
    ``versions`` of those that the graph was exported from, None to ignore changes.
    """

    engine: Engine
    folder: Path
    file: str
    run: Backend
    mark: str | None = None
    weights: tuple[object, ...] | None = None

    @property
    def name(self) -> str:
        """The engine, its arithmetic and the file's contents: engines differ in the last bits."""
        return self.run.name

    def save(self, folder: Path) -> dict[str, Any]:
        """Copy the graph into a model folder; return the notes for ``sluice.json``."""
        source = graph_path(self.folder, self.file)
        place = folder / self.file
        place.parent.mkdir(parents=True, exist_ok=True)
        for part in source.parent.glob(f"{source.name}*"):  # large weights are in a file beside it
            shutil.copyfile(part, place.with_name(part.name))
        return {"backend": self.engine, "backend_file": self.file}
