"""Runs a graph in ONNX Runtime on the CPU, in float32 (int8 if the file is quantised)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sluice.encoders.backends.graph import OnnxGraph
from sluice.encoders.foundation.errors import ModelError

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
