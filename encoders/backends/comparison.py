"""Compares the outputs of a graph with those of the model beside it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sluice.encoders.backends.backend import Backend, ChosenBackend
from sluice.encoders.backends.graph import MODEL_FILE


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
    if encoder.kind == "cross_encoder":
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
