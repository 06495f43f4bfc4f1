"""Sparsity regularisers for SPLADE-style encoders, and the ramp of their weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from encoders.errors import ConfigError, suggest

if TYPE_CHECKING:
    from torch import Tensor


def flops(vectors: Tensor) -> Tensor:
    """Return ``sum_j (mean_b |w_bj|)^2`` of vectors ``[B, vocab]`` (Paria et al. 2020, eq. 4).

    It estimates the multiplications of a search and prefers terms used evenly.
    """
    return vectors.abs().mean(0).square().sum()


def l1(vectors: Tensor) -> Tensor:
    """Return ``mean_b sum_j |w_bj|`` of vectors ``[B, vocab]``."""
    return vectors.abs().sum(1).mean()


def active_terms(vectors: Tensor) -> Tensor:
    """Return the mean number of non-zero terms of a vector (L0): a report, it has no gradient."""
    return (vectors != 0).sum(1).float().mean()


REGULARISERS: dict[str, Callable[[Tensor], Tensor]] = {"flops": flops, "l1": l1}


def ramp(step: int, steps: float) -> float:
    """Return the schedule ``(t / T)^2``, 1 from T on; without a ramp (T <= 0) always 1."""
    return 1.0 if steps <= 0 else min(step / steps, 1.0) ** 2


@dataclass(frozen=True, slots=True)
class Penalty:
    """One side's regulariser: its type and the weight it reaches when the ramp ends."""

    type: Literal["flops", "l1"]
    weight: float


@dataclass(frozen=True, slots=True)
class Sparsity:
    """The regularisers of both sides and their ramp: a share of all steps (<= 1), or steps."""

    query: Penalty | None = None
    document: Penalty | None = None
    ramp: float = 0.33

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Sparsity:
        """Read the YAML section ``sparsity``; ``ConfigError`` names a wrong key or value."""
        known = ("query", "document", "ramp")
        for key in config:
            if key not in known:
                raise ConfigError(
                    f"sparsity.{key}: sparsity takes {', '.join(known)}{suggest(key, known)}"
                )
        share = config.get("ramp", 0.33)
        if isinstance(share, bool) or not isinstance(share, (int, float)) or share < 0:
            raise ConfigError(f"sparsity.ramp: {share!r}, expected a share of the steps or steps")
        if share > 1 and share != int(share):
            raise ConfigError(f"sparsity.ramp: {share!r}, above 1 it counts steps: a whole number")
        return cls(
            query=_penalty(config.get("query"), "sparsity.query"),
            document=_penalty(config.get("document"), "sparsity.document"),
            ramp=float(share),
        )


def _penalty(config: Any, where: str) -> Penalty | None:
    if config is None:
        return None
    if not isinstance(config, Mapping) or set(config) != {"type", "weight"}:
        raise ConfigError(f"{where}: {config!r}, expected {{type: flops | l1, weight: number}}")
    if config["type"] not in REGULARISERS:
        raise ConfigError(
            f"{where}.type: unknown type {config['type']!r}; known: {', '.join(REGULARISERS)}"
            f"{suggest(str(config['type']), REGULARISERS)}"
        )
    weight = config["weight"]
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or weight < 0:
        raise ConfigError(f"{where}.weight: {weight!r}, expected a number of 0 or above")
    return Penalty(config["type"], float(weight))


class Regulariser:
    """The penalty at a step of training, counted in optimiser steps whatever the accumulation.

    ``step`` and ``total`` are its whole state: saved with every checkpoint, restored on resuming.
    """

    def __init__(self, sparsity: Sparsity) -> None:
        self.sparsity = sparsity
        self.step = 0
        self.total = 0

    def begin(self, total: int) -> None:
        """Say how many optimiser steps the training has."""
        self.total = total

    def advance(self) -> None:
        """Count one optimiser step."""
        self.step += 1

    @property
    def strength(self) -> float:
        """The share of the full weights that holds now, between 0 and 1."""
        share = self.sparsity.ramp
        return ramp(self.step, share * self.total if share <= 1 else share)

    def __call__(self, queries: Tensor, documents: Tensor) -> dict[str, Tensor]:
        """Return the weighted penalty of each side that has one.

        ``documents`` holds positives and negatives of the batch in one matrix.
        """
        sides = (
            ("query", self.sparsity.query, queries),
            ("document", self.sparsity.document, documents),
        )
        return {
            name: penalty.weight * self.strength * REGULARISERS[penalty.type](vectors)
            for name, penalty, vectors in sides
            if penalty is not None
        }

    def notes(self) -> dict[str, float]:
        """Return what the journal says of the regulariser."""
        return {"sparsity_strength": self.strength}

    def state(self) -> dict[str, int]:
        """Return what a checkpoint has to keep."""
        return {"step": self.step, "total": self.total}

    def restore(self, state: Mapping[str, int]) -> None:
        """Take up the state a checkpoint kept."""
        self.step, self.total = int(state["step"]), int(state["total"])
