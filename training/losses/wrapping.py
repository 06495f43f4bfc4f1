"""What losses around another loss share: making it, and passing the Trainer's questions on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from encoders.build import build
from encoders.errors import ConfigError
from training.batch import Negatives
from training.losses import LOSSES
from training.protocol import Similarity
from training.vector_batch import VectorBatch

INNER = "inner."  # before the names of the inner loss's tensors


@dataclass(eq=False)
class Wrapping:
    """A loss around ``loss``, which is ``{type: name, ...}`` as in YAML or a loss already made.

    Every optional hook of ``training.protocol.Loss`` reaches the inner loss; a subclass that has
    one of its own calls this one too. ``step`` counts finished optimiser steps and ``seed`` is the
    training's: what a subclass draws is a function of both, so a resumed training draws the same.
    """

    called: ClassVar[str] = "wrapping"
    usual: ClassVar[Mapping[str, Any]] = {"type": "info_nce"}  # the inner loss, left out
    trains: ClassVar[tuple[str, ...]] = ()  # encoder types; none: what the inner loss trains

    loss: Any = None

    def __post_init__(self) -> None:
        self.inner = inner_loss(self.usual if self.loss is None else self.loss, self.called)
        self._undecided = self.inner
        self.step = 0
        self.seed = 0
        inner = getattr(self.inner, "encoders", None)
        if self.trains and inner is not None and not set(inner) & set(self.trains):
            raise ConfigError(
                f"{self.called}.loss: {type(self.inner).__name__} trains {', '.join(inner)}; "
                f"{self.called} is for {', '.join(self.trains)}"
            )

    @property
    def encoders(self) -> tuple[str, ...]:
        """The encoder types that both losses train; without this attribute: all."""
        inner: tuple[str, ...] | None = getattr(self.inner, "encoders", None)
        if inner is None and not self.trains:
            raise AttributeError("encoders")
        if inner is None or not self.trains:
            return inner or self.trains
        return tuple(kind for kind in inner if kind in self.trains)

    @property
    def negatives(self) -> Negatives:
        """The inner loss's."""
        found: Negatives = getattr(self.inner, "negatives", "all")
        return found

    @property
    def same_side(self) -> bool:
        """The inner loss's."""
        return bool(getattr(self.inner, "same_side", False))

    @property
    def similarity(self) -> Any:
        """The inner loss's; without this attribute: the encoder's own."""
        return self.inner.similarity

    def bound_to(self, similarity: Similarity) -> Any:
        """Decide the inner loss's ``similarity: auto``; returns this loss itself.

        Not a copy: what training leaves in it is saved by whoever made it.
        """
        if hasattr(self._undecided, "bound_to"):
            self.inner = self._undecided.bound_to(similarity)
        return self

    @property
    def needs_teacher(self) -> bool:
        """The inner loss's."""
        return bool(getattr(self.inner, "needs_teacher", False))

    @property
    def wants_answered(self) -> bool:
        """The inner loss's."""
        return bool(getattr(self.inner, "wants_answered", False))

    @property
    def texts(self) -> bool:
        """The inner loss's."""
        return bool(getattr(self.inner, "texts", False))

    @property
    def learning_rate(self) -> float | None:
        """The inner loss's."""
        found: float | None = getattr(self.inner, "learning_rate", None)
        return found

    @property
    def layers(self) -> Callable[[int], tuple[int, ...]]:
        """The inner loss's function of the step; without this attribute: no layers."""
        found: Callable[[int], tuple[int, ...]] = self.inner.layers
        return found

    def bind(self, encoder: Any, seed: int) -> None:
        """Begin a training of this encoder."""
        self.seed, self.step = seed, 0
        if hasattr(self.inner, "bind"):
            self.inner.bind(encoder, seed)

    def bind_counts(self, counts: Mapping[str, float]) -> None:
        """Tell the inner loss how often each document occurs among the training pairs."""
        if hasattr(self.inner, "bind_counts"):
            self.inner.bind_counts(counts)

    def parameters(self) -> Iterable[nn.Parameter]:
        """Return the inner loss's parameters."""
        return list(self.inner.parameters()) if hasattr(self.inner, "parameters") else []

    def state(self) -> dict[str, Tensor]:
        """Return the step and the inner loss's tensors."""
        inner = self.inner.state() if hasattr(self.inner, "state") else {}
        return {"step": torch.tensor(self.step), **{INNER + k: v for k, v in inner.items()}}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take what ``state`` returned."""
        self.step = int(state["step"])
        if hasattr(self.inner, "restore"):
            self.inner.restore(
                {k.removeprefix(INNER): v for k, v in state.items() if k.startswith(INNER)}
            )

    def advance(self, step: int) -> None:
        """Go on after an optimiser step; ``step`` have been done."""
        self.step = step
        if hasattr(self.inner, "advance"):
            self.inner.advance(step)

    def notes(self) -> dict[str, float]:
        """Return the inner loss's numbers for the journal."""
        return dict(self.inner.notes()) if hasattr(self.inner, "notes") else {}

    def save(self, folder: str | Path) -> None:
        """Write what the inner loss keeps beside the trained model."""
        if hasattr(self.inner, "save"):
            self.inner.save(folder)


def inner_loss(spec: Any, where: str) -> Any:
    """Return the loss that ``{type: name, ...}`` describes, or ``spec`` where it is a loss."""
    if isinstance(spec, Mapping):
        return build(spec, LOSSES, where=f"{where}.loss")
    if callable(spec) or hasattr(spec, "over"):
        return spec
    raise ConfigError(f"{where}.loss: {spec!r}, expected {{type: name, ...}}")


def plain_inside(loss: Wrapping, why: str) -> None:
    """Raise ``ConfigError`` where the inner loss has options that know only the batch's columns."""
    for option in ("same_side", "logq"):
        if getattr(loss.inner, option, False):
            raise ConfigError(f"{loss.called}.loss.{option}: true, expected false: {why}")


def of_vectors(batch: VectorBatch, called: str) -> None:
    """Raise ``ConfigError`` where a batch's scores are not those of its vectors."""
    if batch.matrix is not None:
        raise ConfigError(
            f"{called}: needs the vectors of both sides, and the scores of this batch come from "
            "elsewhere (a cross-encoder, or another loss's matrix); put the losses the other way "
            "round, or train a bi-encoder"
        )


def width_of(encoder: Any) -> int:
    """Return how many dimensions an encoder's vectors have."""
    known = getattr(encoder, "dim", None)
    if isinstance(known, int):
        return known
    device = next(encoder.module.parameters()).device
    features = {k: v.to(device) for k, v in encoder.tokenize(["width"], "query").items()}
    with torch.no_grad(), torch.random.fork_rng():
        return int(encoder.embed(features, "query").shape[1])
