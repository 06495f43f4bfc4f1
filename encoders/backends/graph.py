"""Runs a graph in ONNX Runtime or OpenVINO on the CPU; an untrusted file is checked first."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sluice.encoders.foundation.disk.files import OwnLock, file_hash
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.model_files.layout import transformer_folder

MODEL_FILE = "onnx/model.onnx"
WEIGHTS_KEY = "sluice.weights"  # in the file's metadata: the hash of the weights it was made from
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# Other exporters' names for the same tensor.
_ALIASES = {"last_hidden_state": ("last_hidden_state", "token_embeddings")}
_RANKS = {"last_hidden_state": 3, "head_states": 3, "logits": 2}


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """A checked file, its inputs, and the output to compute.

    ``own``: it says that it was made from the weights beside it; another tool's says nothing.
    """

    path: Path
    inputs: tuple[str, ...]
    output: str
    own: bool = True

    @property
    def name(self) -> str:
        """File name and hash, which distinguish its vectors from those of another file."""
        return f"{self.path.name} {file_hash(self.path)}"

    def feed(self, features: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        """Return the inputs' arrays, int64 ``[n, length]``."""
        inputs = dict(features)
        types = inputs.get("token_type_ids")
        if "token_type_ids" not in self.inputs:
            if types is not None and bool(types.any()):
                raise ModelError(
                    f"{self.path}: takes no token_type_ids, by which the model distinguishes "
                    "its two texts; export it again with `sluice model export`"
                )
        elif types is None:
            inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
        arrays = {name: inputs[name].to("cpu", torch.int64).numpy() for name in self.inputs}
        return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def read_graph(
    folder: Path, output: str, *, file: str | None = None, weights: str | None = None
) -> OnnxGraph:
    """Check the ONNX file of a model folder and return it.

    The file and the weights it may keep beside it must lie inside the folder. Raises
    ``ConfigError`` without a file, ``ModelError`` for one that is damaged, of other weights, or
    with other inputs or outputs than ``output``.
    """
    path = graph_path(folder, file)
    model = _parsed(path)
    _check_outside_data(model, path, folder)
    noted = {entry.key: entry.value for entry in model.metadata_props}.get(WEIGHTS_KEY)
    if weights is not None and noted is not None and noted != weights:
        raise ModelError(
            f"{path}: was exported from other weights than this folder's; export the model again "
            "with `sluice model export`"
        )
    inputs = _input_names(model.graph, path)
    outputs = {value.name: value for value in model.graph.output}
    name = next((name for name in _ALIASES.get(output, (output,)) if name in outputs), None)
    if name is None:
        raise ModelError(
            f"{path}: its outputs are {', '.join(outputs)}; expected {output}: it was exported "
            "from another kind of encoder, or by another tool; export it with `sluice model export`"
        )
    rank = len(outputs[name].type.tensor_type.shape.dim)
    if rank not in (0, _RANKS[output]):  # 0: the file does not say
        raise ModelError(
            f"{path}: {name} has {rank} dimensions, expected {_RANKS[output]}; export the model "
            "again with `sluice model export`"
        )
    return OnnxGraph(path, inputs, name, noted is not None)


def graph_path(folder: Path, file: str | None) -> Path:
    """Return the path of a folder's graph; it must be inside the folder and exist."""
    relative = Path(MODEL_FILE if file is None else file)
    if relative.is_absolute() or ".." in relative.parts:
        raise ConfigError(f"file: {file!r} leads out of the model's folder; give a path inside it")
    for home in dict.fromkeys((folder, transformer_folder(folder))):
        path = home / relative
        if path.is_file():
            if not path.resolve().is_relative_to(folder.resolve()):
                raise ModelError(f"{path}: is a link that leads out of the model's folder")
            return path
    raise ConfigError(
        f"{folder}: no {relative}; write a folder with one: sluice model export {folder} OUTPUT"
    )


def _parsed(path: Path) -> Any:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model(str(path), load_external_data=False)
    except (DecodeError, OSError, ValueError) as error:
        raise ModelError(
            f"{path}: not readable as ONNX ({error}); export the model again"
        ) from error
    if not model.graph.node:  # an empty file is a valid protobuf message
        raise ModelError(f"{path}: contains no graph; export the model again")
    return model


def _check_outside_data(model: Any, path: Path, folder: Path) -> None:
    """Check that weights kept in files of their own are files of this folder.

    A path may also be an address in memory (``*/_ORT_MEM_ADDR_/*``), which OpenVINO reads.
    """
    for tensor in _tensors(model):
        for entry in tensor.external_data:
            if entry.key != "location":
                continue
            place = path.parent / entry.value
            inside = place.resolve().is_relative_to(folder.resolve())
            odd = "*" in entry.value or ".." in Path(entry.value).parts
            if odd or not inside or not place.is_file():
                raise ModelError(
                    f"{path}: {tensor.name!r} is kept in {entry.value!r}, which is not a file of "
                    "the model's folder"
                )


def _tensors(message: Any) -> Iterator[Any]:
    """Yield every tensor anywhere in a message: initialisers, attributes, subgraphs, functions."""
    if message.DESCRIPTOR.name == "TensorProto":
        yield message
        return
    for description, value in message.ListFields():
        if description.message_type is None:
            continue
        for part in value if hasattr(value, "__len__") else (value,):
            yield from _tensors(part)


def _input_names(graph: Any, path: Path) -> tuple[str, ...]:
    import onnx

    stored = {tensor.name for tensor in graph.initializer}  # old files list weights as inputs
    inputs = [value for value in graph.input if value.name not in stored]
    names = [value.name for value in inputs]
    if set(names) - set(INPUTS) or not {"input_ids", "attention_mask"} <= set(names):
        raise ModelError(
            f"{path}: its inputs are {', '.join(names)}; expected input_ids, attention_mask and "
            "optionally token_type_ids; export the model with `sluice model export`"
        )
    for value in inputs:
        if value.type.tensor_type.elem_type != onnx.TensorProto.INT64:
            raise ModelError(f"{path}: {value.name} is not of type int64; export the model again")
    return tuple(names)


_ERRORS_ONLY = 3


class OnnxBackend:
    """A ``Backend`` on ONNX Runtime's CPU provider with all graph optimisations."""

    def __init__(self, graph: OnnxGraph, *, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = _ERRORS_ONLY
        self._graph, self._threads = graph, threads
        self.own = graph.own
        self.name = f"onnx {graph.name}"  # part of what cached vectors depend on
        try:
            self._session = onnxruntime.InferenceSession(
                str(graph.path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its errors have no common class
            raise ModelError(
                f"{graph.path}: ONNX Runtime cannot open it: {_first_line(error)}"
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what opens the graph again; a session cannot be copied."""
        return partial(type(self), threads=self._threads), (self._graph,)

    def __call__(self, features: Mapping[str, Tensor]) -> Tensor:
        """Run padded features: see ``Backend``."""
        try:
            output = self._session.run([self._graph.output], self._graph.feed(features))[0]
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                f"{self._graph.path}: ONNX Runtime failed on a batch of "
                f"{tuple(features['input_ids'].shape)} tokens: {_first_line(error)}"
            ) from error
        return torch.from_numpy(output).float()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]


_TELEMETRY = "openvino_telemetry"


class OpenVinoBackend:
    """A ``Backend`` on OpenVINO's CPU plug-in, one stream; ``half`` is bfloat16."""

    def __init__(self, graph: OnnxGraph, *, threads: int, half: bool) -> None:
        openvino = import_openvino()
        self._graph = graph
        self._settings = threads, half
        # Part of what cached vectors depend on.
        self.own = graph.own
        self.name = f"openvino {graph.name} {'bfloat16' if half else 'float32'}"
        settings = {
            # By default it uses bfloat16 if the processor supports it.
            "INFERENCE_PRECISION_HINT": "bf16" if half else "f32",
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        core = openvino.Core()
        try:
            with kept_signal_stack():
                model = core.read_model(str(graph.path))
                self._request = core.compile_model(model, "CPU", settings).create_infer_request()
        except RuntimeError as error:
            raise ModelError(
                f"{graph.path}: OpenVINO cannot open it: {_last_line(error)}"
            ) from error
        self._running = OwnLock()  # a request holds the tensors of one run

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what opens the graph again; a session cannot be copied."""
        threads, half = self._settings
        return partial(type(self), threads=threads, half=half), (self._graph,)

    def __call__(self, features: Mapping[str, Tensor]) -> Tensor:
        """Run padded features: see ``Backend``."""
        feed = self._graph.feed(features)
        with self._running:
            try:
                self._request.infer(feed, share_inputs=True)
            except RuntimeError as error:
                raise ModelError(
                    f"{self._graph.path}: OpenVINO failed on a batch of "
                    f"{tuple(features['input_ids'].shape)} tokens: {_last_line(error)}"
                ) from error
            output = self._request.get_tensor(self._graph.output).data
            return torch.tensor(output, dtype=torch.float32)  # the next run overwrites it


class _SignalStack(ctypes.Structure):
    """``stack_t`` of Linux."""

    _fields_ = (("place", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def kept_signal_stack() -> Iterator[None]:
    """Give this thread the stack of its signals back that OpenVINO's CPU plug-in replaces.

    The plug-in unmaps its own when the last model is freed. Where another thread frees it, this one
    keeps the address: the next signal, a Ctrl-C say, ends the process with SIGSEGV.
    """
    if sys.platform != "linux":
        yield
        return
    set_stack, before = ctypes.CDLL(None).sigaltstack, _SignalStack()
    known = set_stack(None, ctypes.byref(before)) == 0
    try:
        yield
    finally:
        if known:
            set_stack(ctypes.byref(before), None)


def import_openvino() -> Any:
    """Import OpenVINO without its telemetry, which would report to its maker on import.

    It works without the telemetry package; this hides the package, for this import only.
    """
    if "openvino" in sys.modules or _TELEMETRY in sys.modules:
        import openvino

        return openvino
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]
    try:
        import openvino
    finally:
        del sys.modules[_TELEMETRY]
    return openvino


def _last_line(error: Exception) -> str:
    """Return the last line; those before are places in OpenVINO's source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else repr(error)
