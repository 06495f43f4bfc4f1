"""Simplex: texts drawn to fixed corners that are all equally far from each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Gt
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.tuning.learning import Form
from sluice.training.batches.targets import Negatives
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.base import LossBase
from sluice.training.losses.distillation.text_means import (
    Sides,
    mean_over_texts,
    teacher_of,
    vectors_of,
)
from sluice.training.losses.math.width import width_of
from sluice.training.protocol import Side

MOST = 50_000  # texts that clusters are made of


@dataclass(eq=False)
@checked("simplex.")
class Simplex(LossBase):
    """Mean over texts of the cross-entropy of ``softmax_k(cos(f(x), p_k) / t)`` with x's class.

    The p_k are the d + 1 corners of a regular simplex in the d dimensions of a vector. They are the
    same for every model and are not trained, so that models trained one after another, of whatever
    size, lie alike in the space and can search each other's indexes. Classes are clusters of the
    teacher's vectors, less their mean: k-means by cosine that begins at the corners, cluster k
    being corner k, for ``rounds`` rounds at most. With 0 rounds a text's class is the corner that
    the teacher's vector is nearest to, which is the class where the teacher was trained so. A
    cluster without a text stays at its corner. ``temperature`` is t.
    """

    summary = "texts drawn to the corners of a simplex, the same for models that share an index"
    paper = "Biondi et al. 2024 (Stationary Representations, arXiv 2405.02581)"

    forms: ClassVar[tuple[Form, ...]] = ("dense",)  # what it trains
    negatives: ClassVar[Negatives] = "own"
    teacher_vectors: ClassVar[bool] = True

    temperature: Annotated[float, Gt(0), "Divides the cosines."] = 0.05
    rounds: Annotated[
        int,
        Ge(0),
        "Rounds of k-means that make the classes; 0: the corner that the teacher's vector "
        "is nearest to.",
    ] = 10
    sides: Annotated[Sides, "The texts that are drawn to the corners."] = "both"

    def __post_init__(self) -> None:
        self._classes: Classes | None = None

    def bind(self, encoder: Any, seed: int) -> None:
        """Place the corners in the encoder's dimensions; classes are then the nearest of them."""
        corners = simplex(width_of(encoder) + 1)
        self._classes = Classes.of(corners, np.zeros((1, corners.shape[1]), np.float32), corners)

    def bind_teacher(self, vectors: Callable[[], NDArray[np.float32]]) -> None:
        """Find the classes in the teacher's vectors of the training texts."""
        corners = self._bound.corners.numpy()
        every = vectors()
        self._check_width(every.shape[1])
        mean, centres = clusters(every[:: -(-len(every) // MOST)], corners, self.rounds)
        self._classes = Classes.of(corners, mean, centres)

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the mean cross-entropy; a text weighs what its query weighs."""
        corners, own = self._bound.corners.to(batch.queries), vectors_of(batch)
        taught = teacher_of(batch, "simplex")
        if own["query"].shape[1] != corners.shape[1]:
            raise ConfigError(
                f"simplex: its corners have {corners.shape[1]} dimensions and these vectors "
                f"{own['query'].shape[1]}; put it beside losses of shorter vectors, in a sum"
            )

        def entropy(side: Side) -> Tensor:
            logits = normalize(own[side], dim=1) @ corners.T / self.temperature
            return cross_entropy(logits, self.classes(taught[side]), reduction="none")

        return mean_over_texts(batch, self.sides, entropy)

    def classes(self, taught: Tensor) -> Tensor:
        """Return the class ``[n]`` of texts by the teacher's vectors ``[n, dim]``."""
        self._check_width(taught.shape[1])
        centred = taught - self._bound.mean.to(taught)
        return (centred @ self._bound.centres.to(taught).T).argmax(dim=1)

    @property
    def _bound(self) -> Classes:
        if self._classes is None:
            raise ConfigError("simplex: call bind with the encoder before the first batch")
        return self._classes

    def _check_width(self, width: int) -> None:
        own = self._bound.corners.shape[1]
        if width != own:
            raise ConfigError(
                f"simplex: the encoder's vectors have {own} dimensions and the teacher's {width}; "
                f"set encoder.projection: {width}"
            )


class Classes(NamedTuple):
    """Corners ``[k, dim]``, and the mean and the centre of each corner's cluster of texts."""

    corners: Tensor
    mean: Tensor
    centres: Tensor

    @classmethod
    def of(cls, *arrays: NDArray[np.float32]) -> Classes:
        """Return them as tensors."""
        return cls(*map(torch.from_numpy, arrays))


def simplex(corners: int) -> NDArray[np.float32]:
    """Return the corners ``[k, k - 1]`` of a regular simplex on the unit sphere, in float32.

    The cosine of any two is -1 / (k - 1).
    """
    dim = corners - 1
    last = np.full((1, dim), (1 - math.sqrt(corners)) / dim)
    points = np.concatenate([np.eye(dim), last])
    points -= points.mean(axis=0)
    units: NDArray[np.float64] = points / np.linalg.norm(points, axis=1, keepdims=True)
    return units.astype(np.float32)


def clusters(
    vectors: NDArray[np.float32], start: NDArray[np.float32], rounds: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the mean ``[1, dim]`` of vectors and the centres ``[k, dim]`` of k-means by cosine.

    A text belongs to the centre with the largest cosine, after the mean is taken off; the first
    of equal ones. A centre becomes the direction of its texts' mean direction.
    """
    mean = vectors.mean(axis=0, keepdims=True, dtype=np.float64)
    units = vectors - mean
    units /= np.linalg.norm(units, axis=1, keepdims=True).clip(1e-12)
    centres, nearest = start.astype(np.float64), np.full(len(units), -1)
    for _ in range(rounds):
        before, nearest = nearest, (units @ centres.T).argmax(axis=1)
        if (before == nearest).all():
            break
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, units)
        lengths = np.linalg.norm(sums, axis=1)
        full = lengths > 0
        centres[full] = sums[full] / lengths[full, None]
    return mean.astype(np.float32), centres.astype(np.float32)
