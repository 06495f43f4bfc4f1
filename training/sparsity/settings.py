"""Settings of the YAML section ``sparsity``: a regulariser for each side, by weight or target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import is_number

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
