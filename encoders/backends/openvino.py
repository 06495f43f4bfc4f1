"""Runs a graph in OpenVINO on the CPU, in float32 or bfloat16, from the same ONNX file."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sluice.encoders.backends.graph import OnnxGraph
from sluice.encoders.foundation.disk.locks import OwnLock
from sluice.encoders.foundation.errors import ModelError

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
