"""Chooses torch, ONNX Runtime or OpenVINO for a model, the device and the type it runs with."""

from __future__ import annotations

import copy
import functools
import importlib.util
import logging
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sluice.encoders.backends.graph import MODEL_FILE, graph_path
from sluice.encoders.foundation.disk.files import file_hash
from sluice.encoders.foundation.errors import ConfigError, MissingPackageError, suggest
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.model_files.identity import versions
from sluice.encoders.model_files.options import Dtype, Engine
from sluice.encoders.table import KNOWN

log = logging.getLogger("sluice")


def pick_device(device: str) -> torch.device:
    """Return the device of a name; ``auto`` is CUDA, else MPS, else the CPU."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).cpu()  # fails if torch or the machine has no such device
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        line = str(error).partition("\n")[0]
        raise ConfigError(
            f"device: {device!r} cannot be used here ({line}); leave device out, or write cpu"
        ) from error
    return chosen


def check_dtype(dtype: str) -> None:
    """Raise ``ConfigError`` for an arithmetic type that does not exist."""
    if dtype not in get_args(Dtype):
        raise ConfigError(f"dtype: {dtype!r}; expected 'float32', 'bfloat16', 'int8' or 'auto'")


@functools.cache
def has_bfloat16(device: str) -> bool:
    """Return whether a type of device has instructions for bfloat16 and does not imitate it."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    if device != "cpu":
        return False
    if platform.machine().lower() in ("x86_64", "amd64", "i686"):
        return bool(torch.cpu._is_avx512_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@functools.cache
def say_used(wish: str, used: torch.dtype) -> None:
    """Say, once for each wish and why it is not met, that another arithmetic is used."""
    log.warning("%s; %s is used", wish, str(used).removeprefix("torch."))


Output: TypeAlias = Literal["last_hidden_state", "head_states", "logits"]
ENGINES = ("torch", "onnx", "openvino")
# The output of the graph of each kind of encoder.
OUTPUTS: dict[str, Output] = {name: each.graph for name, each in KNOWN.items() if each.graph}
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
    check_dtype(dtype)
    if dtype == "int8":
        raise ConfigError(
            f"dtype: 'int8' is for backend 'torch', not {engine!r}; a graph is quantised when "
            "it is exported (sluice model export --quantise)"
        )
    half = dtype != "float32" and has_bfloat16("cpu")
    if dtype == "bfloat16" and not half:
        say_used("dtype: bfloat16: this processor has no instructions for it", torch.float32)
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
        from sluice.encoders.backends.graph import OnnxBackend

        return OnnxBackend(graph, threads=count)
    from sluice.encoders.backends.graph import OpenVinoBackend

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


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a graph's outputs are from torch's: of vectors, term weights or logits.

    ``largest`` is the largest absolute difference of a single number, ``span`` torch's largest
    absolute number, ``cosine`` the smallest cosine of a text's two vectors (cross-encoders: 1).
    """

    texts: int
    largest: float
    span: float
    cosine: float

    @property
    def relative(self) -> float:
        """The largest difference as a share of the largest number; NaN if the graph's is."""
        return self.largest / self.span if self.span else self.largest


def through(encoder: Any, backend: Backend | None) -> Any:
    """Return the encoder on a back end; None is torch's own padded pass in float32."""
    twin = copy.copy(encoder)  # the parameters are shared
    twin.dtype = torch.float32
    twin.packed = False
    twin.backend = backend and ChosenBackend("onnx", Path(), MODEL_FILE, backend)
    return twin


def compared(encoder: Any, backend: Backend, texts: Sequence[str]) -> Difference:
    """Encode texts as documents by torch and by a back end; a cross-encoder scores pairs."""
    ours, theirs = through(encoder, None), through(encoder, backend)
    if OUTPUTS[encoder.kind] == "logits":
        pairs = list(zip(texts, reversed(texts), strict=True))
        expected, actual = ours.score(pairs), theirs.score(pairs)
        cosine = 1.0
    else:
        expected, actual = _rows(ours, texts), _rows(theirs, texts)
        cosine = float(np.min(_cosines(expected, actual), initial=1.0))
    largest = float(np.abs(expected - actual).max(initial=0.0))
    return Difference(len(texts), largest, float(np.abs(expected).max(initial=0.0)), cosine)


def _rows(encoder: Any, texts: Sequence[str]) -> NDArray[np.float64]:
    vectors = encoder.encode_documents(texts)
    rows = vectors if isinstance(vectors, np.ndarray) else vectors.toarray()
    exact: NDArray[np.float64] = rows.astype(np.float64)
    return exact


def _cosines(expected: NDArray[np.float64], actual: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cosine of each pair of rows: 1 for two rows of zeros, 0 for one."""
    products = (expected * actual).sum(axis=1)
    norms = np.linalg.norm(expected, axis=1) * np.linalg.norm(actual, axis=1)
    cosines: NDArray[np.float64] = np.zeros(len(expected))
    np.divide(products, norms, out=cosines, where=norms != 0)
    cosines[~expected.any(axis=1) & ~actual.any(axis=1)] = 1.0
    return cosines


# How far another tool's graph may be from the weights beside it without a warning.
NEAR, FAR = 0.99, 0.05  # the smallest cosine; of scores, the share of the largest
PROBES = ("what is a sluice", "The gold lies at the bottom of the river.", "x")


class BackedModel(Protocol):
    """A model that a back end can run, as ``choose_backend`` sees it."""

    kind: str
    module: nn.Module
    backend: ChosenBackend | None

    def weights_hash(self) -> str:
        """Return a hash of the weights that the graph must have been exported from."""
        ...


def choose_backend(
    encoder: BackedModel, folder: Path, options: Mapping[str, Any], noted: Mapping[str, Any]
) -> None:
    """Set an encoder's back end: that of its ``GraphOptions``, or as the folder notes, or torch."""
    engine, file = options["backend"], options["backend_file"]
    if engine is None and file is not None:
        raise ConfigError(f"backend_file: {file!r} needs backend: onnx or openvino")
    chosen: Any = noted.get("backend", "torch") if engine is None else engine
    check_engine(chosen)
    if chosen == "torch":
        if file is not None:
            raise ConfigError(f"backend_file: {file!r} is for backend onnx or openvino")
        return
    placed = file or noted.get("backend_file") or MODEL_FILE
    run = open_backend(
        folder,
        chosen,
        OUTPUTS[encoder.kind],
        dtype=options["dtype"],
        file=placed,
        weights=encoder.weights_hash(),
    )
    path = graph_path(folder, placed)
    mark = None if placed == MODEL_FILE and run.own else file_hash(path)
    if not run.own:
        _compare(encoder, run, path)
    weights = versions(encoder.module.parameters())
    encoder.backend = ChosenBackend(chosen, folder, placed, run, mark, weights)


def _compare(encoder: BackedModel, run: Backend, path: Path) -> None:
    """Log a warning if a graph that does not name its weights differs from the model's."""
    difference = compared(encoder, run, PROBES)
    scores = OUTPUTS[encoder.kind] == "logits"
    if difference.relative <= FAR if scores else difference.cosine >= NEAR:
        return
    what = "scores differ" if scores else "vectors differ"
    amount = (
        f"by up to {difference.largest:.2g} of {difference.span:.2g}"
        if scores
        else f"to a cosine of {difference.cosine:.3f}"
    )
    log.warning(
        "%s: does not say which weights it was made from, and its %s from the model's own %s on %s "
        "texts; those of a quantised graph do, else it is another model's: export the model again "
        "with `sluice model export`", path, what, amount, difference.texts,
    )  # fmt: skip
