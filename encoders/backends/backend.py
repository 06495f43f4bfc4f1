"""What runs a model's graph: torch itself, or ONNX Runtime or OpenVINO on an exported file."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from sluice.encoders.backends.devices import Dtype, Engine, pick_dtype
from sluice.encoders.foundation.errors import ConfigError, MissingPackageError, suggest

Output: TypeAlias = Literal["last_hidden_state", "head_states", "logits"]
ENGINES = ("torch", "onnx", "openvino")
# What the graph of each kind of encoder computes.
OUTPUTS: dict[str, Output] = {
    "dense": "last_hidden_state",
    "splade": "head_states",
    "cross_encoder": "logits",
}
_PACKAGES = {"onnx": ("onnx", "onnxruntime"), "openvino": ("onnx", "openvino")}


class Backend(Protocol):
    """A model's graph, without what comes after it: pooling, vocabulary product, activation."""

    name: str  # the engine, its arithmetic and the file: what vectors depend on

    def __call__(self, features: Mapping[str, Tensor]) -> Tensor:
        """Run padded features: ``input_ids`` and ``attention_mask`` ``[n, length]``, whole numbers.

        ``token_type_ids`` may be among them; a graph that takes them gets zeros without. Returns
        float32 on the CPU: last hidden states ``[n, length, hidden]`` (dense), the language-model
        head's states before its decoder ``[n, length, hidden]`` (SPLADE), or logits ``[n, 1]``
        (cross-encoder). What stands at padded places means nothing. Safe in threads.
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

    ``output`` is what the encoder needs of it (``OUTPUTS``), ``threads`` defaults to torch's
    number, ``file`` to ``onnx/model.onnx``. ONNX Runtime computes in float32, OpenVINO also in
    bfloat16. ``weights`` is the ``weights_hash()`` of the folder's model: a graph that was exported
    from other weights is refused. Raises ``ConfigError`` for settings that an engine does not have
    and a folder without the file, ``MissingPackageError``, and ``ModelError`` for a graph that is
    damaged or of another kind of encoder.
    """
    check_engine(engine)
    if engine == "torch":
        raise ConfigError("backend: 'torch' runs the model itself and reads no exported graph")
    chosen = pick_dtype(dtype, torch.device("cpu"))
    if engine == "onnx" and chosen is torch.bfloat16 and dtype != "auto":
        raise ConfigError(
            "dtype: 'bfloat16' is not for backend 'onnx', which computes in float32; take backend "
            "'openvino' or 'torch', or dtype 'float32'"
        )
    if threads is not None and (type(threads) is not int or threads < 1):
        raise ConfigError(f"threads: {threads!r}; expected 1 or more, or nothing for torch's")
    need_packages(engine)
    from sluice.encoders.backends.graph import read_graph

    graph = read_graph(Path(folder), output, file=file, weights=weights)
    count = threads or torch.get_num_threads()
    if engine == "onnx":
        from sluice.encoders.backends.onnx import OnnxBackend

        return OnnxBackend(graph, threads=count)
    from sluice.encoders.backends.openvino import OpenVinoBackend

    return OpenVinoBackend(graph, threads=count, half=chosen is torch.bfloat16)


def check_engine(engine: str) -> None:
    """Raise ``ConfigError`` for a back end that does not exist."""
    if engine not in ENGINES:
        raise ConfigError(
            f"backend: {engine!r}; known: {', '.join(ENGINES)}{suggest(str(engine), ENGINES)}"
        )


def need_packages(engine: str) -> None:
    """Raise ``MissingPackageError``, which has the line that installs it, for what is not there."""
    for package in _PACKAGES.get(engine, ()):
        if importlib.util.find_spec(package) is None:
            raise MissingPackageError(package, engine, f"backend {engine!r}")
