"""Losses made of other losses: several together, or one around another; every hook reaches them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

import torch
from torch import Tensor, nn

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.tuning.learning import SCORED, types_that_make
from sluice.training.batches.vector_batch import Negatives, VectorBatch
from sluice.training.losses import LOSSES, USUAL
from sluice.training.losses.base import LossBase, Want, as_loss, type_name, types_trained, writes
from sluice.training.protocol import Similarity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sluice.training.protocol import Example


T = TypeVar("T")
Members = Sequence[tuple[str, LossBase]]


class Composed(LossBase, ABC):
    """Combines every hook of its members.

    Where they must agree there is one value; what one of them needs, all get; calls are forwarded
    in order. A new hook of ``LossBase`` needs its rule here, as a test demands.
    Raises ``ConfigError`` naming the members that do not go together.
    """

    @abstractmethod
    def _members(self) -> Members:
        """Return the losses it is made of, with their names."""

    def _deciding(self) -> Members:
        """Return the members that decide which documents a query is compared with."""
        return self._members()

    def _prefix(self, number: int) -> str:
        """Return the prefix of a member's tensor names in a checkpoint."""
        return f"{number}."

    @staticmethod
    def _agreed(key: str, values: Sequence[tuple[str, T]], default: T) -> T:
        for name, value in values[1:]:
            first, expected = values[0]
            if value != expected:
                raise ConfigError(
                    f"losses: {key} is {expected!r} for {first} and {value!r} for {name}; give "
                    f"both the same {key}"
                )
        return values[0][1] if values else default

    def _common_forms(self) -> tuple[str, ...]:
        every = [loss.forms for _, loss in self._members()]
        return tuple(form for form in every[0] if all(form in forms for forms in every))

    @property
    def forms(self) -> tuple[str, ...]:
        """What all members train."""
        return self._common_forms()

    @property
    def negatives(self) -> Negatives:
        """What the deciding members agree on."""
        return self._agreed("negatives", [(n, m.negatives) for n, m in self._deciding()], "own")

    @property
    def same_side(self) -> bool:
        """What the deciding members agree on."""
        return self._agreed("same_side", [(n, m.same_side) for n, m in self._deciding()], False)

    @property
    def logq(self) -> bool:
        """Whether a member's is."""
        return any(loss.logq for _, loss in self._members())

    @property
    def similarity(self) -> Literal["auto", "cosine", "dot"]:
        """What the members that name one agree on."""
        values = [(name, loss.similarity) for name, loss in self._members()]
        return self._agreed("similarity", [pair for pair in values if pair[1] != "auto"], "auto")

    @property
    def needs_teacher(self) -> bool:
        """Whether a member does."""
        return any(loss.needs_teacher for _, loss in self._members())

    @property
    def wants(self) -> frozenset[Want]:
        """What any member wants."""
        return frozenset[Want]().union(*(loss.wants for _, loss in self._members()))

    @property
    def layers(self) -> Callable[[int], tuple[int, ...]] | None:
        """That of the member that asks for layers; only one may."""
        asking = [(name, loss.layers) for name, loss in self._members() if loss.layers is not None]
        if len(asking) > 1:
            names = " and ".join(name for name, _ in asking)
            raise ConfigError(f"losses: {names} both ask for layers; only one may")
        return asking[0][1] if asking else None

    @property
    def ranks(self) -> Literal["columns", "scores"] | None:
        """``columns`` where a member reads them as a retrieved list."""
        own = {loss.ranks for _, loss in self._members()}
        return "columns" if "columns" in own else "scores" if "scores" in own else None

    @property
    def noted(self) -> str:
        """The members' name where they have the same, else the usual one."""
        names = {loss.noted for _, loss in self._members()}
        return names.pop() if len(names) == 1 else super().noted

    def own_pass(self, encoder: Any, *, seed: int, sparse: bool) -> tuple[Any, Any] | None:
        """Return the pass of the member that has one of its own; only one may."""
        passes = {n: m.own_pass(encoder, seed=seed, sparse=sparse) for n, m in self._members()}
        own = {name: made for name, made in passes.items() if made is not None}
        if len(own) > 1:
            names = " and ".join(own)
            raise ConfigError(f"losses: {names} both have a pass of their own; only one may")
        return next(iter(own.values()), None)

    def batch(self, made: Mapping[str, Tensor], inputs: Mapping[str, Any]) -> VectorBatch | None:
        """Return the layout of the member that has one of its own."""
        for _, loss in self._members():
            batch = loss.batch(made, inputs)
            if batch is not None:
                return batch
        return None

    def bind(self, encoder: Any, seed: int) -> None:
        """Bind the members, each with a seed of its own."""
        for number, (_, loss) in enumerate(self._members()):
            loss.bind(encoder, seed + number)

    def bind_examples(self, examples: Sequence[Example]) -> None:
        """Give the members the examples that training begins with."""
        for _, loss in self._members():
            loss.bind_examples(examples)

    def bind_counts(self, counts: Mapping[str, float]) -> None:
        """Give the members the number of times each document occurs in the examples in use."""
        for _, loss in self._members():
            loss.bind_counts(counts)

    def bind_teacher(self, vectors: Callable[[], NDArray[np.float32]]) -> None:
        """Give the members that learn a teacher's vectors those of the training texts."""
        for _, loss in self._members():
            if "teacher_vectors" in loss.wants:
                loss.bind_teacher(vectors)

    def parameters(self) -> Iterable[nn.Parameter]:
        """Return what the members train beside the encoder."""
        return [parameter for _, loss in self._members() for parameter in loss.parameters()]

    @property
    def learning_rate(self) -> float | None:
        """What the members that have parameters agree on."""
        own = [(name, m.learning_rate) for name, m in self._members() if list(m.parameters())]
        return self._agreed("learning_rate", own, None)

    def advance(self, step: int) -> None:
        """Advance the members by one optimiser step."""
        for _, loss in self._members():
            loss.advance(step)

    def state(self) -> dict[str, Tensor]:
        """Return the members' tensors, each name with its member's prefix."""
        return {
            self._prefix(number) + name: tensor
            for number, (_, loss) in enumerate(self._members())
            for name, tensor in loss.state().items()
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Give the members back what ``state`` returned."""
        for number, (_, loss) in enumerate(self._members()):
            prefix = self._prefix(number)
            loss.restore(
                {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
            )

    def notes(self) -> dict[str, float]:
        """Return the members' numbers for the journal."""
        return {name: value for _, loss in self._members() for name, value in loss.notes().items()}

    def save(self, folder: str | Path) -> None:
        """Let the members write what belongs beside the trained model."""
        for _, loss in self._members():
            loss.save(folder)


def refuse_alone(loss: LossBase, name: str, where: str) -> None:
    """Raise ``ConfigError`` for a loss that learns from no scores of documents, inside another."""
    if "texts_alone" in loss.wants:
        raise ConfigError(
            f"{where}: {name} learns from texts alone and cannot be combined: train with loss: "
            f"{{type: {name}}} first, then set encoder.model of the next training to its model"
        )
    if writes(loss):
        raise ConfigError(
            f"{where}: {name} trains what a {types_trained(loss)} encoder writes, which has no "
            f"vectors for other losses, and cannot be combined: train with loss: {{type: {name}}} "
            "alone"
        )
    if loss.forms == ("codes",):
        raise ConfigError(
            f"{where}: {name} reads the dense vectors below the codes, which other losses do not "
            f"know; put it around them: {{type: {name}, loss: {{type: sum, losses: [...]}}}}"
        )


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
