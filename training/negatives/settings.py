"""Which candidates become negatives: the settings of mining, and its modes by one word."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import is_number

Sampling = Literal["top", "random", "cyclic"]
Among = Literal["lowest", "mean", "highest"]

# What a mode's one word stands for; keys given beside it win. Scores are meant as cosines in
# `absolute`, `margin` and `adaptive`: give limits of your own for BM25 and other dot products.
MODES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "naive": {"max_positive_ratio": None},
        "shifted": {"max_positive_ratio": None, "range_min": 10},
        "absolute": {"max_positive_ratio": None, "max_score": 0.7},
        "margin": {"max_positive_ratio": None, "margin": 0.05},
        "percentage": {"max_positive_ratio": 0.95},
        "window": {
            "max_positive_ratio": None,
            "range_min": 50,
            "range_max": 100,
            "sampling": "random",
        },
        "adaptive": {"max_positive_ratio": None, "adaptive_margin": (0.02, 0.05)},
        "judge": {"max_positive_ratio": None, "judge_margin": 0.01, "sampling": "cyclic"},
    }
)


@dataclass(frozen=True, slots=True)
@checked("negatives.")
class Mining:
    """Which candidates of a ranked list become negatives; the arguments are the YAML's keys.

    With s+ the score of the query's positive, a candidate of score s is kept if it meets every
    limit that is set. Of several positives s+ is the ``lowest``, which is the safest, their
    ``mean`` or the ``highest``, by ``positives``: where queries have tens of them, some of which
    the retriever all but misses, the lowest leaves next to nothing.

    - ``max_positive_ratio`` p: ``s < s+ - |s+| (1 - p)`` (TopK-PercPos; null switches it off)
    - ``margin`` m: ``s < s+ - m`` (TopK-MarginPos)
    - ``adaptive_margin`` [a, b]: ``s < s+ - (a + b |s+|)``, of which [m, 0] and [0, 1 - p] are the
      two above (LG-ANNA)
    - ``max_score``: ``s < max_score`` (TopK-Abs); ``min_score``: ``s >= min_score``
    - ``range_min <= rank < range_max``, ranks from 0 with the known positives taken out: skipping
      the first N is shifted mining, a window with ``sampling: random`` is KaLM's
    - ``judge_margin`` beta: ``J < J+ - beta`` by a judge's scores, which the first ``judge_depth``
      candidates that fit so far get; the others are not used (UniME-V2)
    - ``judge_gamma`` gamma: of what is left, those with the highest ``s (1 - J)^gamma`` are taken,
      by a judge whose scores are probabilities, such as an ``rrra`` adapter (0: the list's order)

    Then ``per_query`` are taken: the first (``top``), as many at random by seed and query id, or
    ``cyclic``: every ``step``-th of the list (the judge's order, where there is one), from its
    start again with the next one until there are enough.

    With ``shares``, one for each list that candidates come from, in their order, each list gives
    that part of the negatives (a fraction of one is drawn by seed and query id); what a list lacks
    the others fill.

    ``consistency`` k drops every pair whose positive is not among the first k of any list
    (KaLM's ranking-consistency filter). Moreira et al. 2024 (NV-Retriever), section 3.
    """

    per_query: Annotated[int, Ge(1), "Negatives for each query."] = 4
    max_positive_ratio: Annotated[
        float | None,
        Gt(0),
        "The highest share of the positive's score that a negative may have; null: any.",
    ] = 0.95
    margin: Annotated[float | None, "How far a negative's score must be below the positive's."] = (
        None
    )
    max_score: Annotated[float | None, "The highest score of a negative."] = None
    min_score: Annotated[float | None, "The lowest score of a negative."] = None
    range_min: Annotated[int, Ge(0), "The first rank, from 0, that negatives are taken from."] = 0
    range_max: Annotated[int | None, "The rank before which negatives are taken."] = None
    sampling: Annotated[Sampling, "HOW", "top (the first), random, or cyclic (every step-th)."] = (
        "top"
    )
    adaptive_margin: Annotated[
        tuple[float, float] | None,
        "[a, b]: a negative's score is below s - (a + b |s|), s the positive's.",
    ] = None
    judge_margin: Annotated[
        float | None, "How far the judge's score must be below the positive's."
    ] = None
    judge_gamma: Annotated[
        float | None,
        Ge(0),
        "How strongly a likely false negative, by the judge's probability, is put back.",
    ] = None
    judge_depth: Annotated[int, Ge(1), "Candidates that the judge scores."] = 50
    step: Annotated[int, Ge(1), "Distance between choices of cyclic sampling."] = 5
    consistency: Annotated[
        int | None, Ge(1), "Drops pairs whose positive is not among the first so many hits."
    ] = None
    positives: Annotated[
        Among, "WHICH", "The score of several positives that counts: lowest, mean or highest."
    ] = "lowest"
    shares: Annotated[
        tuple[float, ...] | None,
        "The part of the negatives that each retriever gives, in their order.",
    ] = None

    def __post_init__(self) -> None:
        if self.shares is not None:
            object.__setattr__(self, "shares", _shares(self.shares))
        limits = ("max_positive_ratio", "margin", "max_score", "min_score")
        for name in (*limits, "judge_margin", "judge_gamma"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ConfigError(
                    f"negatives.{name}: {value}, expected a finite number, or null for no limit"
                )
        if self.adaptive_margin is not None:
            object.__setattr__(self, "adaptive_margin", _two_numbers(self.adaptive_margin))
        if self.judge_gamma is not None and self.sampling != "top":
            raise ConfigError(
                f"negatives.judge_gamma: orders what is taken by sampling: top, and sampling is "
                f"{self.sampling}; leave one of them out"
            )
        self._check_ranks()

    def _check_ranks(self) -> None:
        if self.range_max is not None and self.range_max - self.range_min < self.per_query:
            raise ConfigError(
                f"negatives: ranks {self.range_min} to {self.range_max} hold fewer than "
                f"per_query {self.per_query} candidates; widen the range or ask for fewer"
            )
        if self.judged and self.judge_depth < self.per_query:
            raise ConfigError(
                f"negatives.judge_depth: {self.judge_depth}, less than per_query {self.per_query}: "
                "only what is judged can become a negative"
            )

    @classmethod
    def in_mode(cls, mode: str, settings: Mapping[str, Any] | None = None) -> Mining:
        """Return what a mode of ``MODES`` stands for, with ``settings`` in place of its own."""
        if mode not in MODES:
            raise ConfigError(
                f"negatives.mode: {mode!r}, expected one of {', '.join(MODES)}"
                f"{suggest(str(mode), MODES)}"
            )
        return cls(**{**MODES[mode], **(settings or {})})

    def reference(self, scores: Collection[float]) -> float:
        """Return s+ of the positives' scores; NaN for none."""
        if not scores:
            return math.nan
        if self.positives == "mean":
            return math.fsum(scores) / len(scores)
        return min(scores) if self.positives == "lowest" else max(scores)

    @property
    def margins(self) -> list[tuple[str, float, float]]:
        """The limits that depend on the positive: their key, and a and b of ``a + b |s+|``."""
        margins = []
        if self.max_positive_ratio is not None:
            margins.append(("ratio", 0.0, 1 - self.max_positive_ratio))
        if self.margin is not None:
            margins.append(("margin", self.margin, 0.0))
        if self.adaptive_margin is not None:
            margins.append(("adaptive_margin", *self.adaptive_margin))
        return margins

    @property
    def judged(self) -> bool:
        """Whether a judge scores candidates."""
        return self.judge_margin is not None or self.judge_gamma is not None

    @property
    def needs_positive_score(self) -> bool:
        """Whether any limit depends on the positive's own score."""
        return bool(self.margins)

    @property
    def depth(self) -> int:
        """How many candidates of each list the settings reach for, at least."""
        judged = self.judge_depth if self.judged else 0
        return max(self.range_max or 0, self.consistency or 0, self.range_min + judged)


def _shares(value: Any) -> tuple[float, ...]:
    several = isinstance(value, (list, tuple)) and len(value) > 0
    if not several or not all(is_number(each) and each >= 0 for each in value) or not sum(value):
        raise ConfigError(
            f"negatives.shares: {value!r:.60}, expected a number of 0 or more for each list, such "
            "as [0.35, 0.65]"
        )
    return tuple(float(each) / sum(value) for each in value)


def _two_numbers(value: Any) -> tuple[float, float]:
    if len(value) != 2 or not all(map(is_number, value)):
        raise ConfigError(
            f"negatives.adaptive_margin: {value!r}, expected [a, b], two finite numbers of "
            "margin = a + b |s+|"
        )
    return float(value[0]), float(value[1])
