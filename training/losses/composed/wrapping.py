"""Losses around another loss: every hook reaches the inner one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.tuning.learning import SCORED, types_that_make
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses import LOSSES, USUAL
from sluice.training.losses.base import LossBase, as_loss, type_name, types_trained
from sluice.training.losses.composed.members import Composed, Members, refuse_alone
from sluice.training.protocol import Similarity

INNER = "inner."  # before the names of the inner loss's tensors


@dataclass(eq=False)
class Wrapping(Composed):
    """A loss around ``loss``, which is ``{type: name, ...}`` as in YAML or a loss already made.

    Every hook of ``LossBase`` reaches the inner loss; a subclass that has one of its own calls this
    one too. ``step`` counts finished optimiser steps and ``seed`` is the training's: what a
    subclass draws is a function of both, so a resumed training draws the same.
    """

    called: ClassVar[str] = "wrapping"
    usual: ClassVar[Mapping[str, Any]] = USUAL  # the inner loss, left out
    trains: ClassVar[tuple[str, ...]] = SCORED  # of what the inner loss does

    loss: Annotated[Any, "The loss inside, {type: ...}."] = None

    def __post_init__(self) -> None:
        self.inner = inner_loss(self.usual if self.loss is None else self.loss, self.called)
        self._undecided = self.inner
        self.step = 0
        self.seed = 0
        name = type(self.inner).__name__
        refuse_alone(self.inner, type_name(self.inner), f"{self.called}.loss")
        if not set(self.inner.forms) & set(self.trains):
            raise ConfigError(
                f"{self.called}.loss: {name} trains {types_trained(self.inner)}; {self.called} "
                f"is for {', '.join(types_that_make(self.trains))}"
            )

    def _members(self) -> Members:
        return ((self.called, self.inner),)

    def _prefix(self, number: int) -> str:
        return INNER

    @property
    def forms(self) -> tuple[str, ...]:
        """What both losses train."""
        return tuple(form for form in super().forms if form in self.trains)

    @property
    def learning_rate(self) -> float | None:
        """The inner loss's."""
        return self.inner.learning_rate

    def bound_to(self, similarity: Similarity) -> Self:
        """Decide the inner loss's ``similarity: auto``; returns this loss itself.

        Not a copy: what training leaves in it is saved by whoever made it.
        """
        self.inner = self._undecided.bound_to(similarity)
        return self

    def bind(self, encoder: Any, seed: int) -> None:
        """Prepare to train this encoder."""
        self.seed, self.step = seed, 0
        super().bind(encoder, seed)

    def advance(self, step: int) -> None:
        """Advance after an optimiser step; ``step`` steps are done."""
        self.step = step
        super().advance(step)

    def state(self) -> dict[str, Tensor]:
        """Return the step and the inner loss's tensors."""
        return {"step": torch.tensor(self.step), **super().state()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take what ``state`` returned."""
        self.step = int(state["step"])
        super().restore(state)


def inner_loss(spec: Any, where: str) -> LossBase:
    """Return the loss that ``{type: name, ...}`` describes, or ``spec`` where it is a loss."""
    if isinstance(spec, Mapping):
        return as_loss(build(spec, LOSSES, where=f"{where}.loss"), f"{where}.loss")
    if isinstance(spec, str):  # a type's name where a component belongs
        raise ConfigError(f"{where}.loss: {spec!r}, expected {{type: name, ...}}")
    return as_loss(spec, f"{where}.loss")


def plain_inside(loss: Wrapping, why: str) -> None:
    """Raise ``ConfigError`` where the inner loss has options that know only the batch's columns."""
    for option, used in (("same_side", loss.inner.same_side), ("logq", loss.inner.logq)):
        if used:
            raise ConfigError(f"{loss.called}.loss.{option}: true, expected false: {why}")
    if "teacher_vectors" in loss.inner.wants:
        raise ConfigError(
            f"{loss.called}.loss: learns a teacher's vectors, which {loss.called} adds nothing to; "
            f"put it beside {loss.called} in a sum"
        )


def of_vectors(batch: VectorBatch, called: str) -> None:
    """Raise ``ConfigError`` where a batch's scores are not those of its vectors."""
    if batch.matrix is not None:
        raise ConfigError(
            f"{called}: needs the vectors of both sides, and the scores of this batch come from "
            "elsewhere (a cross-encoder, or another loss's matrix); put the losses the other way "
            "round, or train a bi-encoder"
        )
