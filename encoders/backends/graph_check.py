"""How far an exported graph's vectors and scores are from torch's."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sluice.encoders.backends.backend import Backend
from sluice.encoders.backends.chosen import ChosenBackend
from sluice.encoders.backends.graph import MODEL_FILE

LENGTHS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 510)  # words of the sample's texts
_WORDS = (
    "water gold river stone sluice gravel the of a search query document engine reads 1987 old "
    "records about protein folding in cells, heart disease and diabetes, compilers that inline "
    "small functions, tax law for farmers; how do I return an item? weather over the northern "
    "sea changes quickly (storms, fog), while markets fall by 3.5 percent on news from abroad"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a graph's outputs are from torch's: of vectors, term weights or logits.

    ``largest`` is the largest absolute difference of a single number, ``span`` the largest absolute
    number torch gave, ``cosine`` the smallest cosine of a text's two vectors (cross-encoders: 1).
    """

    texts: int
    largest: float
    span: float
    cosine: float

    @property
    def relative(self) -> float:
        """The largest difference as a share of the largest number; NaN where a graph gave NaN."""
        return self.largest / self.span if self.span else self.largest


def sample_texts() -> list[str]:
    """Return the fixed sample: texts of 0 to 510 words, so of every length up to a model's."""
    words = _WORDS.split()
    return [
        " ".join(words[(7 * place + at) % len(words)] for at in range(length))
        for place, length in enumerate(LENGTHS)
    ]


def through(encoder: Any, backend: Backend | None) -> Any:
    """Return the encoder over a back end; over None, it runs torch's own padded pass in float32."""
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
        expected, found = ours.score(pairs), theirs.score(pairs)
        cosine = 1.0
    else:
        expected, found = _rows(ours, texts), _rows(theirs, texts)
        cosine = float(np.min(_cosines(expected, found), initial=1.0))
    largest = float(np.abs(expected - found).max(initial=0.0))
    return Difference(len(texts), largest, float(np.abs(expected).max(initial=0.0)), cosine)


def _rows(encoder: Any, texts: Sequence[str]) -> NDArray[np.float64]:
    found = encoder.encode_documents(texts)
    rows = found if isinstance(found, np.ndarray) else found.toarray()
    exact: NDArray[np.float64] = rows.astype(np.float64)
    return exact


def _cosines(expected: NDArray[np.float64], found: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cosine of each pair of rows: 1 for two rows of zeros, 0 for one."""
    products = (expected * found).sum(axis=1)
    norms = np.linalg.norm(expected, axis=1) * np.linalg.norm(found, axis=1)
    cosines: NDArray[np.float64] = np.zeros(len(expected))
    np.divide(products, norms, out=cosines, where=norms != 0)
    cosines[~expected.any(axis=1) & ~found.any(axis=1)] = 1.0
    return cosines
