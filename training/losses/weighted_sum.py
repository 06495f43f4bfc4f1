"""A weighted sum of losses, which asks of the Trainer all that its members ask."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from encoders.build import build
from encoders.errors import ConfigError
from indexing.whole import is_number
from training.batch import Negatives
from training.losses import LOSSES
from training.vector_batch import VectorBatch, loss_of


class WeightedSum:
    """``sum_k weight_k loss_k`` over one batch.

    ``losses`` are components ``{type: name, weight: 1.0, ...}``: everything but ``weight`` is the
    loss's own. The members must agree on ``negatives``, ``same_side`` and ``similarity``; a loss
    that holds a query against its ``own`` documents as a teacher scored them goes with any, since
    no others have a teacher's score; a cross-encoder has no others at all. One member may ask for
    layers. ``encoders``, there where a member names any, are the types that all of them train.

    Raises ``ConfigError`` naming the members that do not go together.
    """

    encoders: tuple[str, ...]

    def __init__(self, losses: list[dict[str, Any]]) -> None:
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
        self.losses: list[Any] = []
        kinds: list[str] = []
        for kind, weight, loss in members:
            if not 0 <= weight < math.inf:
                raise ConfigError(f"{kind}.weight: {weight!r}, expected 0 or more")
            kinds.append(kind)
            count = kinds.count(kind)
            self.names.append(kind if count == 1 else f"{kind}_{count}")
            self.weights.append(weight)
            self.losses.append(loss)
        self._restrict()
        pairs_only = getattr(self, "encoders", ()) == ("cross_encoder",)  # has no other documents
        deciding = [] if pairs_only else [m for m in self._named() if not _bound_by_teacher(m[1])]
        self.negatives: Negatives = self._agreed(
            "negatives", [(n, getattr(m, "negatives", "all")) for n, m in deciding], "own"
        )
        self.same_side: bool = self._agreed(
            "same_side", [(n, getattr(m, "same_side", False)) for n, m in deciding], False
        )
        chosen = [(n, getattr(m, "similarity", "auto")) for n, m in self._named()]
        self.similarity: Literal["auto", "cosine", "dot"] = self._agreed(
            "similarity", [(n, value) for n, value in chosen if value != "auto"], "auto"
        )
        layered = [n for n, m in self._named() if _has(m, "layers")]
        if len(layered) > 1:
            raise ConfigError(f"losses: {' and '.join(layered)} both ask for layers; one may")
        self._parts: dict[str, Tensor] = {}

    def _named(self) -> list[tuple[str, Any]]:
        return list(zip(self.names, self.losses, strict=True))

    @staticmethod
    def _agreed(key: str, values: list[tuple[str, Any]], default: Any) -> Any:
        for name, value in values[1:]:
            first, expected = values[0]
            if value != expected:
                raise ConfigError(
                    f"losses: {key} is {expected!r} for {first} and {value!r} for {name}; give "
                    f"both the same {key}"
                )
        return values[0][1] if values else default

    def _restrict(self) -> None:
        kinds: list[str] | None = None
        for loss in self.losses:
            own = getattr(loss, "encoders", None)
            if own is not None:
                kinds = [kind for kind in (own if kinds is None else kinds) if kind in own]
        if kinds is not None:
            if not kinds:
                raise ConfigError(
                    f"losses: {', '.join(self.names)} have no encoder that all of them train"
                )
            self.encoders = tuple(kinds)

    def bound_to(self, similarity: Literal["cosine", "dot"]) -> WeightedSum:
        """Return the sum of the members with ``similarity: auto`` decided."""
        decided = similarity if self.similarity == "auto" else self.similarity
        bound = copy.copy(self)
        bound.losses = [
            loss.bound_to(decided) if _has(loss, "bound_to") else loss for loss in self.losses
        ]
        bound.similarity = decided
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
        for name, loss in self._named():
            if not callable(loss):
                raise ConfigError(f"{name}: needs the vectors of the batch, not only its scores")
        return self._sum(lambda loss: loss(scores, labels, mask, weights, teacher))

    def over(self, batch: VectorBatch) -> Tensor:
        """Return the sum of the members' values over the batch."""
        return self._sum(lambda loss: loss_of(loss, batch))

    def _sum(self, value_of: Callable[[Any], Tensor]) -> Tensor:
        values = [value_of(loss) for loss in self.losses]
        self._parts = {n: v.detach() for n, v in zip(self.names, values, strict=True)}
        terms = (weight * v for weight, v in zip(self.weights, values, strict=True))
        return functools.reduce(torch.add, terms)

    @property
    def needs_teacher(self) -> bool:
        """Whether a member does."""
        return self._any("needs_teacher")

    @property
    def wants_answered(self) -> bool:
        """Whether a member does."""
        return self._any("wants_answered")

    @property
    def texts(self) -> bool:
        """Whether a member wants a cross-encoder's vectors of the texts apart."""
        return self._any("texts")

    def _any(self, hook: str) -> bool:
        return any(bool(getattr(loss, hook, False)) for loss in self.losses)

    @property
    def layers(self) -> Callable[[int], tuple[int, ...]]:
        """The member's function of the step; without this attribute: no layers."""
        for loss in self.losses:
            if _has(loss, "layers"):
                found: Callable[[int], tuple[int, ...]] = loss.layers
                return found
        raise AttributeError("layers")

    def bind(self, encoder: Any, seed: int) -> None:
        """Bind the members that have state of their own, each with a seed of its own."""
        for number, loss in enumerate(self.losses):
            if _has(loss, "bind"):
                loss.bind(encoder, seed + number)

    def bind_counts(self, counts: Mapping[str, float]) -> None:
        """Tell the members how often each document occurs among the training pairs."""
        for loss in self.losses:
            if _has(loss, "bind_counts"):
                loss.bind_counts(counts)

    def parameters(self) -> list[nn.Parameter]:
        """Return what the members train beside the encoder."""
        return [p for loss in self.losses if _has(loss, "parameters") for p in loss.parameters()]

    @property
    def learning_rate(self) -> float | None:
        """The rate of ``parameters``; raises ``ConfigError`` where members ask for several."""
        rates = [
            (name, getattr(loss, "learning_rate", None))
            for name, loss in self._named()
            if _has(loss, "parameters") and list(loss.parameters())
        ]
        rate: float | None = self._agreed("learning_rate", rates, None)
        return rate

    def state(self) -> dict[str, Tensor]:
        """Return the members' tensors, named by the member's number and the member's own name."""
        return {
            f"{number}.{name}": tensor
            for number, loss in enumerate(self.losses)
            if _has(loss, "state")
            for name, tensor in loss.state().items()
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Give the members back what ``state`` returned."""
        for number, loss in enumerate(self.losses):
            if _has(loss, "restore"):
                prefix = f"{number}."
                own = {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
                loss.restore(own)

    def advance(self, step: int) -> None:
        """Tell the members that an optimiser step is done."""
        for loss in self.losses:
            if _has(loss, "advance"):
                loss.advance(step)

    def notes(self) -> dict[str, float]:
        """Return each member's last value, unweighted, as ``loss_<type>``, and their own notes."""
        said = {f"loss_{name}": float(v) for name, v in self._parts.items()}
        for loss in self.losses:
            if _has(loss, "notes"):
                said |= loss.notes()
        return said

    def save(self, folder: Path) -> None:
        """Let the members write what belongs beside the trained model."""
        for loss in self.losses:
            if _has(loss, "save"):
                loss.save(folder)


def _has(loss: Any, hook: str) -> bool:
    return callable(getattr(loss, hook, None))


def _bound_by_teacher(loss: Any) -> bool:
    """Whether a loss counts only cells with a teacher's score, which are of own documents."""
    return bool(getattr(loss, "needs_teacher", False)) and getattr(loss, "negatives", "") == "own"
