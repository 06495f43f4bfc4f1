"""Matryoshka losses: prefixes of the vectors, and early layers, that work alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss, normalize

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.model_files.layout import SIDECAR, read_object
from sluice.encoders.model_files.probes import note_files
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses.composed.members import Wrapping, of_vectors
from sluice.training.losses.math.reduction import refuse_idle, width_of

SMALLEST = 32  # of the default dims


@dataclass(eq=False)
class Matryoshka(Wrapping):
    """``sum_m weights_m loss(first m dimensions)``, so that any of these prefixes works alone.

    ``dims`` are the prefixes, by default h, h/2, ... down to 32 for vectors of h dimensions;
    ``weights`` are all 1. Cosines are of the prefixes: they are normalised again; of token vectors
    each one's prefix is. The encoder runs once; the trained model's ``sluice.json`` names the dims.
    """

    summary = "any loss over prefixes of the vector"
    paper = "Kusupati et al. 2022 (MRL), eq. 1"

    called: ClassVar[str] = "matryoshka"
    trains: ClassVar[tuple[str, ...]] = ("dense", "tokens")

    dims: Annotated[
        list[int] | None, "The lengths of the prefixes; left out, half as long each time."
    ] = None
    weights: Annotated[list[float] | None, "The weights of the prefixes; left out, 1 each."] = None

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
        dims = chosen_dims(self.dims, batch.queries.shape[-1], self.called)
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
    for name, further in (
        ("answered", batch.answered), ("negative_queries", batch.negative_queries),
    ):  # fmt: skip
        if further is not None:
            places, vectors = further
            changes[name] = places, vectors[:, :dim]
    if batch.teacher_vectors is not None:
        changes["teacher_vectors"] = tuple(each[:, :dim] for each in batch.teacher_vectors)
    return batch.with_vectors(batch.queries[..., :dim], batch.documents[..., :dim], **changes)


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
    note_files(folder)


@dataclass(eq=False)
class Matryoshka2D(Wrapping):
    """A loss over vectors of several layers and prefixes of them (the encoder runs once).

    ``method: v1`` (2DMSE): per step the last layer and ``layers_per_step`` earlier ones, each over
    the whole vector and ``dims_per_step`` of the shorter ``dims`` (as in ``matryoshka``), drawn by
    seed and step; null is all of them. ``last_weight loss(last) + mean_l [prior_weight loss(l) +
    kl_weight t KL(softmax(sg(last) / t) || softmax(l / t))]``, t = ``kl_temperature``, over all
    texts of the batch; the mean makes a sampled step an unbiased estimate of all layers at once.

    ``method: ese`` (Espresso): every layer l at every step, each over the whole vector and its
    first ``compression`` dimensions, with ``compression_weight (KL + MSE)`` of these against the
    rank-c projection of the whole; layers before the last weigh 1 / (1 + ln(1 + l)), averaged.
    Of ``dims`` only ``v1`` knows.
    """

    summary = "any loss over layers and prefixes (`v1`, `ese`)"
    paper = "Li et al. 2024 (2DMSE, Espresso; arXiv 2402.14776)"

    called: ClassVar[str] = "matryoshka_2d"
    trains: ClassVar[tuple[str, ...]] = ("dense",)

    method: Literal["v1", "ese"] = "v1"
    dims: Annotated[
        list[int] | None, "The lengths of the prefixes; left out, half as long each time."
    ] = None
    layers_per_step: Annotated[int | None, "Earlier layers of a step; null: all."] = 1
    dims_per_step: Annotated[int | None, "Prefixes of a step; null: all."] = 1
    last_weight: Annotated[float, "The weight of the last layer's loss."] = 1.0
    prior_weight: Annotated[float, "The weight of the earlier layers' losses."] = 1.0
    kl_weight: Annotated[float, "The weight of the earlier layers' divergence from the last."] = 1.0
    kl_temperature: Annotated[float, "Divides the logits of the divergence."] = 0.3
    compression: int = 128
    compression_weight: Annotated[
        float, "The weight of the compression term of the method ese."
    ] = 1.0

    def __post_init__(self) -> None:
        Wrapping.__post_init__(self)
        self.width: int | None = None
        self.depth: int | None = None
        check_dims(self.dims, self.called)
        if self.method not in ("v1", "ese"):
            raise ConfigError(f"{self.called}.method: {self.method!r}, expected 'v1' or 'ese'")
        if self.method == "ese" and self.dims is not None:
            raise ConfigError(f"{self.called}.dims: are for v1; ese has one prefix: compression")
        if self.method == "ese":
            because = "ese takes every layer, one prefix and no divergence; set method: v1"
            names = ["layers_per_step", "dims_per_step", "kl_weight", "kl_temperature"]
            refuse_idle(self.called, self, names, because)
        else:
            because = "v1 has no compression; set method: ese"
            refuse_idle(self.called, self, ["compression", "compression_weight"], because)
        for name in ("layers_per_step", "dims_per_step"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{self.called}.{name}: {value!r}, expected 0 or more, or null")
        for name in ("last_weight", "prior_weight", "kl_weight", "compression_weight"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(
                    f"{self.called}.{name}: {getattr(self, name)!r}, expected 0 or more"
                )
        if not 0 < self.kl_temperature < math.inf or self.compression < 1:
            raise ConfigError(
                f"{self.called}: kl_temperature {self.kl_temperature!r} and compression "
                f"{self.compression!r}, expected above 0"
            )

    def bind(self, encoder: Any, seed: int) -> None:
        """Take the encoder's number of layers, and check the dims against its vectors."""
        super().bind(encoder, seed)
        depth = hooks_of(encoder).layer_count
        if depth is None or hooks_of(encoder).embed_layers is None:
            raise ConfigError(
                f"{self.called}: needs the vectors of layers, which a {type(encoder).__name__} "
                "does not provide; train a dense encoder"
            )
        self.depth, self.width = int(depth), width_of(encoder)
        chosen_dims(self.dims, self.width, self.called)

    @property
    def layers(self) -> Callable[[int], tuple[int, ...]]:
        """The last layer and those drawn for a step, as a function of it."""
        return self.layers_at

    def layers_at(self, step: int) -> tuple[int, ...]:
        """Return the last layer and the earlier ones drawn for a step, the last first."""
        if self.depth is None or self.depth < 2:
            return ()
        earlier = self.depth - 1
        count = earlier if self.method == "ese" else _limited(self.layers_per_step, earlier)
        if not count:
            return ()
        random = np.random.default_rng([self.seed, step])
        drawn = random.choice(np.arange(1, self.depth), size=count, replace=False)
        return (self.depth, *sorted((int(layer) for layer in drawn), reverse=True))

    def prefixes(self, width: int, step: int) -> tuple[int, ...]:
        """Return the dims of a step: the whole width first."""
        if self.method == "ese":
            short = self.compression if self.compression < width else width // 2
            return (width, short) if short else (width,)
        shorter = [dim for dim in chosen_dims(self.dims, width, self.called) if dim < width]
        count = _limited(self.dims_per_step, len(shorter))
        random = np.random.default_rng([self.seed, step, 1])
        drawn = random.permutation(len(shorter))[:count].tolist()
        return (width, *(shorter[place] for place in sorted(drawn)))

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the loss over the layers that ``batch.layers`` holds, or the last one's alone."""
        of_vectors(batch, self.called)
        layers = self.layers_at(self.step)
        if len(batch.layers) != len(layers) and self.depth is not None:
            raise ConfigError(
                f"{self.called}: {len(batch.layers)} layers in the batch, expected {len(layers)}"
            )
        dims = self.prefixes(batch.queries.shape[1], self.step)
        last = self._term(batch.with_vectors(batch.queries, batch.documents, layers=()), dims)
        earlier = [
            batch.with_vectors(queries, documents, layers=(), answered=None, negative_queries=None)
            for queries, documents in batch.layers[1:]
        ]
        if not earlier:
            return self.last_weight * last
        if self.method == "ese":
            numbers = range(len(earlier), 0, -1)
            terms = [
                self.prior_weight / (1 + math.log(1 + number)) * self._term(each, dims)
                for number, each in zip(numbers, earlier, strict=True)
            ]
        else:
            terms = [
                self.prior_weight * self._term(each, dims) + self._pull(batch, each)
                for each in earlier
            ]
        return self.last_weight * last + added(terms) / len(terms)

    def _term(self, batch: VectorBatch, dims: Sequence[int]) -> Tensor:
        """Return the inner loss of one layer, summed over the prefixes."""
        value = added(self.inner.over(sliced(batch, dim)) for dim in dims)
        if self.method == "ese" and self.compression_weight and len(dims) > 1:
            texts, share = _texts(batch)
            value = value + self.compression_weight * compressed_distance(texts, dims[-1], share)
        return value

    def _pull(self, batch: VectorBatch, earlier: VectorBatch) -> Tensor:
        """Return what draws an earlier layer's vectors to the last layer's."""
        if not self.kl_weight:
            return batch.queries.new_zeros(())
        heat = self.kl_temperature
        (teacher, share), (student, _) = _texts(batch), _texts(earlier)
        return self.kl_weight * heat * _divergence(teacher.detach() / heat, student / heat, share)

    def save(self, folder: str | Path) -> None:
        """Note the dims in the model's ``sluice.json``."""
        super().save(folder)
        if self.width is not None and self.method == "ese":
            note_dims(Path(folder), self.prefixes(self.width, 0))
        elif self.width is not None:
            note_dims(Path(folder), sorted({self.width, *chosen_dims(self.dims, self.width, "")}))


def compressed_distance(texts: Tensor, dim: int, share: Tensor) -> Tensor:
    """Return KL + MSE between the first ``dim`` dimensions and the compressed whole.

    The target, without gradient, is ``X U S`` of X ``[n, d]``, with U and S of the ``dim`` largest
    singular values of softmax(X^T X / sqrt(d)); ``share`` ``[n]`` weighs the texts.
    """
    with torch.no_grad():
        target = texts @ compression_of(texts, dim)
    short = texts[:, :dim]
    total = share.sum().clamp(min=torch.finfo(share.dtype).tiny)
    squares = mse_loss(short, target, reduction="none").mean(1)
    return _divergence(target, short, share) + (squares * share).sum() / total


def compression_of(texts: Tensor, dim: int) -> Tensor:
    """Return U S ``[d, dim]`` of softmax(X^T X / sqrt(d)).

    A singular vector's sign is arbitrary: each one's largest entry is made positive.
    """
    relations = torch.softmax(texts.T @ texts / math.sqrt(texts.shape[1]), dim=1)
    left, values, _ = torch.linalg.svd(relations)
    left = left[:, :dim]
    largest = left.gather(0, left.abs().argmax(0, keepdim=True))
    signed: Tensor = left * torch.where(largest < 0, -1.0, 1.0) * values[:dim]
    return signed


def _limited(count: int | None, most: int) -> int:
    return most if count is None else min(count, most)


def _texts(batch: VectorBatch) -> tuple[Tensor, Tensor]:
    """Return the vectors of all texts ``[B + N, dim]`` and how much each weighs."""
    texts = torch.cat([batch.queries, batch.documents])
    if batch.cosine:
        texts = normalize(texts, dim=1)
    if batch.weights is None:
        return texts, torch.ones_like(texts[:, 0])
    return texts, torch.cat([batch.weights, batch.weights[batch.owners]]).to(texts)


def _divergence(target: Tensor, student: Tensor, share: Tensor) -> Tensor:
    """Return the weighted mean over rows of KL(softmax(target) || softmax(student))."""
    target_logs, student_logs = target.log_softmax(1), student.log_softmax(1)
    rows = (target_logs.exp() * (target_logs - student_logs)).sum(1)
    return (rows * share).sum() / share.sum().clamp(min=torch.finfo(share.dtype).tiny)
