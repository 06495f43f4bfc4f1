"""Q-nets: small networks that score documents' vectors, each laid out as one flat vector."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError

NORM_EPSILON = 1e-5  # added to the variance in a layer norm, as torch does
BLOCK = 256  # documents of one product: their states stay in the cache
ROUNDING = 1e-4  # of the largest score that a q-net can have: far more than float32 loses

Floats = NDArray[np.float32]


class QNetShape(NamedTuple):
    """The sizes of a q-net over document vectors of ``dim`` dimensions.

    With ``hidden`` = L layers of ``dim`` units each, x_0 the document's vector:
    y_l = norm(relu(x_(l-1) W_l + b_l)), without gain or bias; x_l = y_l + x_(l-1), for the last
    layer x_L = y_L; the score is <x_L, w>. (Killingback, Zeng and Zamani 2025, Hypencoder, arXiv
    2502.05364.) Without hidden layers it is the inner product with w. With ``product`` the score
    has <x_0, p> added, where p is a vector of the query's own.

    Flat it is [W_1 row by row, b_1, ..., W_L, b_L, w, p].
    """

    dim: int
    hidden: int
    product: bool = False

    @property
    def width(self) -> int:
        """The number of values of a flat q-net."""
        return self.hidden * (self.dim + 1) * self.dim + self.dim * (1 + self.product)

    @classmethod
    def from_widths(cls, width: int, dim: int, what: str = "queries") -> QNetShape:
        """Return the shape that ``width`` values have for documents of ``dim`` dimensions.

        No width has two. ``DataError`` for one that has none.
        """
        layer = (dim + 1) * dim
        for product in (False, True):
            rest = width - dim * (1 + product)
            if rest >= 0 and rest % layer == 0:
                return cls(dim, rest // layer, product)
        raise DataError(
            f"{what}: {width:,} values, and no q-net for documents of {dim:,} dimensions has so "
            f"many ({dim:,} and {layer:,} for each hidden layer, or {dim:,} more); encode queries "
            "with the encoder that the documents were encoded with"
        )


class QNet:
    """One q-net, from its flat vector, which is not copied."""

    def __init__(self, flat: Floats, shape: QNetShape) -> None:
        self.shape = shape
        dim, square = shape.dim, shape.dim * shape.dim
        self._layers: list[tuple[Floats, Floats]] = []
        start = 0
        for _ in range(shape.hidden):
            bias = start + square
            self._layers.append((flat[start:bias].reshape(dim, dim), flat[bias : bias + dim]))
            start = bias + dim
        self._output = flat[start : start + dim]
        self._product = flat[start + dim : start + 2 * dim] if shape.product else None

    @property
    def margin(self) -> float:
        """How far ``quick_scores`` may be from ``scores``; 0 where they are the same.

        The states of the last layer have the length sqrt(dim), so no score but the product's part
        is beyond sqrt(dim) ||w||.
        """
        if not self._layers:
            return 0.0
        return ROUNDING * float(np.linalg.norm(self._output)) * math.sqrt(self.shape.dim)

    def scores(self, documents: Floats) -> Floats:
        """Return the scores of document vectors ``[n, dim]``, float32 ``[n]``.

        Computed in float64 and rounded once: in float32 a product of matrices gives equal rows
        other last bits in other places, so that copies of a document would not tie.
        """
        return self._scored(documents, np.dtype(np.float64))

    def quick_scores(self, documents: Floats) -> Floats:
        """Return the scores with hidden layers in float32: twice as fast, see ``margin``."""
        return self._scored(documents, np.dtype(np.float32))

    def _scored(self, documents: Floats, kind: np.dtype[Any]) -> Floats:
        layers = [(weights.astype(kind), bias) for weights, bias in self._layers]
        scores = np.empty(len(documents), np.float32)
        for start in range(0, len(documents), BLOCK):
            block = documents[start : start + BLOCK]
            states: NDArray[Any] = block.astype(kind, copy=False)
            for number, (weights, bias) in enumerate(layers, start=1):
                values = states @ weights
                values += bias
                np.maximum(values, 0, out=values)
                _normalise(values)
                if number < len(layers):
                    values += states
                states = values
            totals = _products(states, self._output)
            if self._product is not None:
                totals += _products(block, self._product)
            scores[start : start + BLOCK] = totals
        return scores


def q_net_scores(queries: Floats, documents: Floats) -> Floats:
    """Return the score of every document ``[m, dim]`` by every flat q-net ``[n, width]``.

    float32 ``[n, m]``; ``DataError`` for a width that no q-net over such documents has.
    """
    shape = QNetShape.from_widths(queries.shape[1], documents.shape[1])
    scores = np.empty((len(queries), len(documents)), np.float32)
    for line, flat in zip(scores, queries, strict=True):
        line[:] = QNet(flat, shape).scores(documents)
    return scores


def _normalise(values: NDArray[Any]) -> None:
    """Give each row mean 0 and variance 1, in place."""
    values -= values.mean(axis=1, keepdims=True)
    variance = np.einsum("ij,ij->i", values, values) / values.shape[1]
    values /= np.sqrt(variance + NORM_EPSILON, dtype=values.dtype)[:, None]


def _products(vectors: NDArray[Any], weights: Floats) -> NDArray[np.float64]:
    """Return the inner product of each row with ``weights``, in the same order for all rows."""
    products: NDArray[np.float64] = (vectors.astype(np.float64) * weights).sum(axis=1)
    return products
