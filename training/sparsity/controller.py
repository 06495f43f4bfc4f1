"""The section ``sparsity``: a regulariser for each side, by weight or by a controlled target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import is_number

FIRST = 0.03  # what the penalty is on the first batch where no weight is given
RATE = 0.1  # by how much of the logarithmic error the weight's logarithm moves in a step
QUICK = 1.0  # power of the error that acts at once
MEMORY = 0.7  # of the moving average over steps
WIDEST = 2.0  # logarithmic error beyond which nothing more is done
LEAST = 1e-5  # what the penalty falls to where nothing needs it: a lower weight would be slow back
MOST = 20.0  # the logarithm of the largest weight
SLACK = 0.1  # logarithmic shortage of terms that is left to the weight alone
LIFT = 0.1  # share of the rest that the head is raised by in a step
LIFTED = 3.0  # mean heights of an active logit by which a head is raised at most: terms times 20


class Control:
    """Steers one side's weight so that the mean number of active terms meets ``target``.

    A proportional-integral controller on logarithms: with a the moving average of active terms and
    r the set point, ``e = ln(a / r)``; every step ``ln(w) += 0.1 e``, and the weight in force is
    ``w exp(e)``. The set point goes from where the encoder starts to the target along the ramp,
    geometrically, so a dense start is not crushed at once. ``weight`` None begins with the weight
    that makes the first penalty 0.03. Where the target is out of reach the weight stays within
    bounds: as long as it would take to come back, terms would run away.

    Training counts under dropout; ``advance`` receives from time to time how many terms the same
    texts have without it, of those with it, and that share corrects every count.

    A weight can only hold terms down. ``lift`` is what to add to the head's bias where they are
    short: above the threshold logits fall off about exponentially, so with the mean height h of an
    active logit a bias raised by ``h ln(r / a)`` brings a terms to r.
    """

    def __init__(self, target: float, weight: float | None) -> None:
        self.target = target
        self.terms: float | None = None  # moving average over steps, as without dropout
        self.begun: float | None = None  # active terms before the first step
        self.log_weight = None if weight is None else math.log(max(weight, 1e-12))
        self.error = 0.0
        self.dropout = 1.0  # terms without dropout, of those with it
        self.height = 0.0  # of an active logit
        self.lifted = 0.0  # in mean heights, since the training began
        self._sum = 0.0
        self._values = 0.0
        self._heights = 0.0
        self._count = 0

    def observe(self, terms: float, value: float, height: float = 0.0) -> None:
        """Take in a batch: active terms, penalty without weight, mean height of active logits."""
        if self.log_weight is None:
            self.log_weight = math.log(FIRST / max(value, 1e-9))
        self._sum += terms
        self._values += value
        self._heights += height
        self._count += 1

    def advance(self, progress: float, dropout: float | None = None) -> None:
        """End a step: ``progress`` is the share of the ramp that is done, between 0 and 1.

        ``dropout`` is the share terms without dropout are of terms with it, where it was measured.
        """
        if not self._count or self.log_weight is None:
            return
        terms, value = self._sum / self._count, self._values / self._count
        # Vectors that fall silent have no height left to raise them by: it falls slowly.
        self.height = max(self._heights / self._count, 0.97 * self.height)
        self._sum, self._values, self._heights, self._count = 0.0, 0.0, 0.0, 0
        if self.terms is not None:
            terms = MEMORY * self.terms / self.dropout + (1 - MEMORY) * terms
        if dropout is not None:
            self.dropout = min(max(dropout, 0.25), 4.0)
        self.terms = terms * self.dropout
        if self.begun is None:
            self.begun = max(self.terms, 1.0)
        set_point = self.begun ** (1 - progress) * self.target**progress
        error = math.log(max(self.terms, 0.1) / set_point)
        self.error = min(max(error, -WIDEST), WIDEST)
        floor = math.log(LEAST / max(value, 1e-9))
        moved = self.log_weight + RATE * self.error
        if (
            self.error < 0
        ):  # as the penalty vanishes its floor rises: that must not raise the weight
            moved = max(moved, min(self.log_weight, floor))
        self.log_weight = min(moved, MOST)

    @property
    def weight(self) -> float:
        """The weight in force now."""
        if self.log_weight is None:
            return 0.0
        return math.exp(min(self.log_weight + QUICK * self.error, MOST))

    @property
    def lift(self) -> float:
        """What the head's bias should rise by after this step; 0 where terms are not short."""
        short = min(max(0.0, -self.error - SLACK) * LIFT, LIFTED - self.lifted)
        return self.height * max(0.0, short)

    def lift_by(self, amount: float) -> None:
        """Count a head that was raised by ``amount``."""
        self.lifted += amount / max(self.height, 1e-9)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has to keep."""
        names = ("terms", "begun", "log_weight", "error", "dropout", "height", "lifted")
        return {name: getattr(self, name) for name in names}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the state a checkpoint kept."""
        for name, value in state.items():
            setattr(self, name, value)


TYPES = ("flops", "l1")
KEYS = ("query", "document", "ramp", "anti_zero", "target_query_terms", "target_doc_terms")
POWERS = 8.0  # of `idf_power`, the most: 10 to it is what the commonest terms cost
USUAL = {"query": "l1", "document": "flops"}  # the types that the short target keys stand for


@dataclass(frozen=True, slots=True)
class Penalty:
    """One side's regulariser: its type, and the weight it reaches when the ramp ends.

    With ``target_terms`` the weight is steered instead, beginning with ``weight`` if there is one.
    Vectors of at most ``threshold`` active terms are not penalised. ``by_rank`` averages the
    documents of each place in their query's group apart. ``idf_power``, up to 8, penalises common
    terms more, see ``sluice.training.sparsity.regulariser.term_costs``.
    """

    type: Literal["flops", "l1"]
    weight: float | None = None
    target_terms: float | None = None
    threshold: int | None = None
    by_rank: bool = False
    idf_power: float | None = None


@dataclass(frozen=True, slots=True)
class Sparsity:
    """The regularisers of both sides and their ramp: a share of all steps (<= 1), or steps.

    ``anti_zero`` weighs ``1 / (sum of all weights)^2`` of each side.
    """

    query: Penalty | None = None
    document: Penalty | None = None
    ramp: float = 0.33
    anti_zero: float = 0.0

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Sparsity:
        """Read the YAML section ``sparsity``; ``ConfigError`` names a wrong key or value.

        ``target_query_terms: 40`` is short for ``query: {type: l1, target_terms: 40}``,
        ``target_doc_terms: 150`` for ``document: {type: flops, target_terms: 150}``.
        """
        for key in config:
            if key not in KEYS:
                raise ConfigError(
                    f"sparsity.{key}: sparsity takes {', '.join(KEYS)}{suggest(key, KEYS)}"
                )
        share = _number(config.get("ramp", 0.33), "sparsity.ramp", "a share of the steps or steps")
        if share > 1 and share != int(share):
            raise ConfigError(f"sparsity.ramp: {share!r}, above 1 it is a whole number of steps")
        sides = {}
        for side, short in (("query", "target_query_terms"), ("document", "target_doc_terms")):
            penalty = config.get(side)
            if config.get(short) is not None:
                if isinstance(penalty, Mapping) and "target_terms" in penalty:
                    raise ConfigError(f"sparsity.{short}: given twice, also as {side}.target_terms")
                usual = {"type": USUAL[side]} if penalty is None else penalty
                penalty = {**usual, "target_terms": config[short]}
            sides[side] = _penalty(penalty, f"sparsity.{side}")
        return cls(
            **sides,
            ramp=share,
            anti_zero=_number(config.get("anti_zero", 0.0), "sparsity.anti_zero", "a weight"),
        )


def _number(value: Any, where: str, expected: str) -> float:
    if not is_number(value) or value < 0:
        raise ConfigError(f"{where}: {value!r}, expected {expected}: a number of 0 or above")
    return float(value)


def _penalty(config: Any, where: str) -> Penalty | None:
    if config is None:
        return None
    keys = ("type", "weight", "target_terms", "threshold", "by_rank", "idf_power")
    known = isinstance(config, Mapping) and "type" in config and set(config) <= set(keys)
    if not known or not {"weight", "target_terms"} & set(config):
        raise ConfigError(
            f"{where}: {config!r}, expected {{type: flops | l1, weight: number}} or {{type: ..., "
            "target_terms: number}, optionally with threshold: terms, idf_power: number and, for "
            "flops, by_rank: true"
        )
    if config["type"] not in TYPES:
        raise ConfigError(
            f"{where}.type: unknown type {config['type']!r}; known: {', '.join(TYPES)}"
            f"{suggest(str(config['type']), TYPES)}"
        )
    weight, target, threshold, by_rank, power = (config.get(key) for key in keys[1:])
    if weight is not None:
        weight = _number(weight, f"{where}.weight", "a weight")
    if target is not None:
        target = _number(target, f"{where}.target_terms", "active terms")
        if target < 1:
            raise ConfigError(f"{where}.target_terms: {target:g}, expected 1 or more active terms")
    if threshold is not None and (type(threshold) is not int or threshold < 1):
        raise ConfigError(f"{where}.threshold: {threshold!r}, expected 1 or more active terms")
    if by_rank is not None and type(by_rank) is not bool:
        raise ConfigError(f"{where}.by_rank: {by_rank!r}, expected true or false")
    if by_rank and config["type"] == "l1":
        raise ConfigError(f"{where}.by_rank: l1 is the same in groups or in one; leave it out")
    if by_rank and where.endswith("query"):
        raise ConfigError(f"{where}.by_rank: a query is alone in its group; leave it out")
    if power is not None and not (is_number(power) and 0 < power <= POWERS):
        plain = "; 0 is the plain penalty: leave it out" if is_number(power) and power == 0 else ""
        raise ConfigError(
            f"{where}.idf_power: {power!r}, expected a number above 0, at most {POWERS:g}{plain}"
        )
    return Penalty(config["type"], weight, target, threshold, bool(by_rank), power)
