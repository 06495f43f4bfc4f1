"""Matryoshka: a loss over several prefixes of the vectors at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.files import write_json
from sluice.encoders.model_files.layout import SIDECAR, read_object
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.composed.wrapper import Wrapping, of_vectors, width_of

SMALLEST = 32  # of the default dims


@dataclass(eq=False)
class Matryoshka(Wrapping):
    """``sum_m weights_m loss(first m dimensions)``, so that any of these prefixes works alone.

    ``dims`` are the prefixes, by default h, h/2, ... down to 32 for vectors of h dimensions;
    ``weights`` are all 1. Cosines are of the prefixes: they are normalised again. The encoder runs
    once; the trained model's ``sluice.json`` names the dims.
    """

    summary = "any loss over prefixes of the vector"
    paper = "Kusupati et al. 2022 (MRL), eq. 1"

    called: ClassVar[str] = "matryoshka"
    trains: ClassVar[tuple[str, ...]] = ("dense",)

    dims: list[int] | None = None
    weights: list[float] | None = None

    def __post_init__(self) -> None:
        Wrapping.__post_init__(self)
        self.width: int | None = None
        check_dims(self.dims, self.called)
        if self.weights is None:
            return
        if self.dims is None or len(self.weights) != len(self.dims):
            raise ConfigError(
                f"{self.called}.weights: {len(self.weights)} weights; expected one for each of dims"
            )
        if not all(0 <= weight < float("inf") for weight in self.weights):
            raise ConfigError(f"{self.called}.weights: {self.weights!r}, expected 0 or more")

    def bind(self, encoder: Any, seed: int) -> None:
        """Check the dims against the encoder's."""
        super().bind(encoder, seed)
        self.width = width_of(encoder)
        chosen_dims(self.dims, self.width, self.called)

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the weighted sum over the prefixes."""
        of_vectors(batch, self.called)
        dims = chosen_dims(self.dims, batch.queries.shape[1], self.called)
        weights = self.weights or [1.0] * len(dims)
        return added(
            weight * self.inner.over(sliced(batch, dim))
            for dim, weight in zip(dims, weights, strict=True)
        )

    def save(self, folder: str | Path) -> None:
        """Note the dims in the model's ``sluice.json``."""
        super().save(folder)
        if self.width is not None:
            note_dims(Path(folder), chosen_dims(self.dims, self.width, self.called))


def check_dims(dims: Sequence[int] | None, called: str) -> None:
    """Raise ``ConfigError`` unless dims are whole numbers above 0, none twice."""
    if dims is None:
        return
    if not dims or len(set(dims)) < len(dims) or not all(_is_size(dim) for dim in dims):
        raise ConfigError(f"{called}.dims: {dims!r}, expected different whole numbers above 0")


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def chosen_dims(dims: Sequence[int] | None, width: int, called: str) -> tuple[int, ...]:
    """Return the prefixes of vectors of ``width`` dimensions, the longest first in the default."""
    if dims is None:
        halves = [width]
        while halves[-1] // 2 >= SMALLEST:
            halves.append(halves[-1] // 2)
        return tuple(halves)
    large = [dim for dim in dims if dim > width]
    if large:
        raise ConfigError(f"{called}.dims: {large[0]}, but the encoder's vectors have {width}")
    return tuple(dims)


def sliced(batch: VectorBatch, dim: int) -> VectorBatch:
    """Return the batch over the first ``dim`` dimensions of its vectors."""
    changes: dict[str, Any] = {
        "layers": tuple((queries[:, :dim], texts[:, :dim]) for queries, texts in batch.layers)
    }
    if batch.answered is not None:
        columns, vectors = batch.answered
        changes["answered"] = columns, vectors[:, :dim]
    return batch.with_vectors(batch.queries[:, :dim], batch.documents[:, :dim], **changes)


def added(terms: Any) -> Tensor:
    """Return the sum of one or more tensors."""
    total: Tensor | None = None
    for term in terms:
        total = term if total is None else total + term
    if total is None:
        raise ConfigError("a sum of losses needs one or more")
    return total


def note_dims(folder: Path, dims: Sequence[int]) -> None:
    """Write the prefixes that a model was trained for into its ``sluice.json``."""
    path = folder / SIDECAR
    facts: Mapping[str, Any] = read_object(path)
    write_json(path, {**facts, "matryoshka_dims": sorted(dims, reverse=True)})
