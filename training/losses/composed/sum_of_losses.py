"""A weighted sum of losses over one batch."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Self

import torch
from torch import Tensor

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import is_number
from sluice.training.batches.vector_batch import VectorBatch
from sluice.training.losses import LOSSES
from sluice.training.losses.base import LossBase, as_loss
from sluice.training.losses.composed.members import Composed, Members, refuse_alone
from sluice.training.protocol import Similarity


class WeightedSum(Composed):
    """``sum_k weight_k loss_k`` over one batch.

    ``losses`` are components ``{type: name, weight: 1.0, ...}``: everything but ``weight`` is the
    loss's own. The members must agree on ``negatives``, ``same_side`` and ``similarity``; a loss
    that compares a query with its ``own`` documents by a teacher's scores goes with any, since no
    other documents have a teacher's score; a cross-encoder has no others at all. Only one member
    may ask for layers. ``encoders`` are the types that all of them train.

    Raises ``ConfigError`` naming the members that do not go together.
    """

    summary = "a weighted sum of any of these: `losses: [{type: kl_div, weight: .99}, ...]`"

    def __init__(
        self, losses: Annotated[list[dict[str, Any]], "The losses, {type: ..., weight: 1.0}."]
    ) -> None:
        if not losses:
            raise ConfigError("losses: empty, expected one {type: ..., weight: ...} or more")
        members = []
        for number, spec in enumerate(losses):
            where = f"losses[{number}]"
            if not isinstance(spec, Mapping):
                raise ConfigError(f"{where}: {spec!r}, expected {{type: ..., weight: ...}}")
            own = {key: value for key, value in spec.items() if key != "weight"}
            weight = spec.get("weight", 1.0)
            if not is_number(weight):
                raise ConfigError(f"{where}.weight: {weight!r}, expected a number")
            members.append((str(spec.get("type")), float(weight), build(own, LOSSES, where=where)))
        self._take(members)

    def _take(self, members: Iterable[tuple[str, float, Any]]) -> None:
        """Hold losses with their names and weights; raises ``ConfigError`` unless they agree."""
        self.names: list[str] = []
        self.weights: list[float] = []
        self.losses: list[LossBase] = []
        kinds: list[str] = []
        for kind, weight, loss in members:
            if not 0 <= weight < math.inf:
                raise ConfigError(f"{kind}.weight: {weight!r}, expected 0 or more")
            kinds.append(kind)
            count = kinds.count(kind)
            self.names.append(kind if count == 1 else f"{kind}_{count}")
            self.weights.append(weight)
            self.losses.append(as_loss(loss, kind))
        self._parts: dict[str, Tensor] = {}
        self._check()

    def _check(self) -> None:
        """Raise ``ConfigError`` where the members do not agree."""
        for name, loss in self._members():
            refuse_alone(loss, name, "losses")
        if not self.forms:
            raise ConfigError(
                f"losses: no type of encoder is trained by all of {', '.join(self.names)}"
            )
        _ = self.negatives, self.same_side, self.similarity, self.layers

    def _members(self) -> Members:
        return list(zip(self.names, self.losses, strict=True))

    def _deciding(self) -> Members:
        if self._common_forms() == ("scores",):  # has no other documents
            return []
        # Where all cells have a teacher's score, no member is bound to its own.
        if "teacher_matrix" in self.wants:
            return [(n, loss) for n, loss in self._members() if not _sees_all_texts(loss)]
        return [member for member in self._members() if not _bound_by_teacher(member[1])]

    def bound_to(self, similarity: Similarity) -> Self:
        """Return the sum of the members with ``similarity: auto`` decided."""
        decided = similarity if self.similarity == "auto" else self.similarity
        bound = copy.copy(self)
        bound.losses = [loss.bound_to(decided) for loss in self.losses]
        bound._parts = {}
        return bound

    def __call__(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> Tensor:
        """Return the sum; raises ``ConfigError`` where a member needs vectors, see ``over``."""
        return self._sum(lambda loss: loss(scores, labels, mask, weights, teacher))

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the sum of the members' values over the batch."""
        return self._sum(lambda loss: loss.over(batch))

    def _sum(self, value_of: Callable[[LossBase], Tensor]) -> Tensor:
        values = [value_of(loss) for loss in self.losses]
        self._parts = {n: v.detach() for n, v in zip(self.names, values, strict=True)}
        terms = (weight * v for weight, v in zip(self.weights, values, strict=True))
        return functools.reduce(torch.add, terms)

    def notes(self) -> dict[str, float]:
        """Return each member's last value, unweighted, as ``loss_<type>``, and their own notes."""
        return {f"loss_{name}": float(v) for name, v in self._parts.items()} | super().notes()


def _bound_by_teacher(loss: LossBase) -> bool:
    """Whether a loss counts only cells with a teacher's score, which are of own documents."""
    return (loss.needs_teacher and loss.negatives == "own") or _sees_all_texts(loss)


def _sees_all_texts(loss: LossBase) -> bool:
    """Whether a loss reads the texts one by one, so that negatives mean nothing to it."""
    return "teacher_vectors" in loss.wants and loss.negatives == "own"
