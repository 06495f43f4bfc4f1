"""Compares how two sets of labels rank systems, and which systems each of them favours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.evaluation.measures import Measure
from sluice.retrieval.evaluation.scores import Qrels, evaluate
from sluice.retrieval.runs.rank_overlap import rank_biased_overlap
from sluice.retrieval.runs.run import Run


class SystemBias(NamedTuple):
    """A system's mean under both sets of labels, and its ranks from 1 (the better one on a tie).

    ``difference`` is second minus first; ``bias`` is that minus the mean difference of all systems.
    """

    system: str
    first: float
    second: float
    difference: float
    bias: float
    first_place: int
    second_place: int


@dataclass(frozen=True, slots=True)
class SystemAgreement:
    """How two sets of labels rank the same systems by one measure, over ``queries`` of both.

    ``tau`` is Kendall's tau-b of the means, None if one set ties all systems. ``rbo`` is
    rank-biased overlap with ``p``, extrapolated; tied systems are ordered by name.
    """

    measure: str
    queries: int
    tau: float | None
    rbo: float
    p: float
    systems: tuple[SystemBias, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {**asdict(self), "systems": [each._asdict() for each in self.systems]}

    def __str__(self) -> str:
        width = max(6, *(len(each.system) for each in self.systems))
        tau = "undefined (all tied)" if self.tau is None else f"{self.tau:.4f}"
        lines = [
            f"{self.measure}, {self.queries:,} queries, {len(self.systems)} systems: "
            f"Kendall's tau-b {tau}, RBO (p={self.p:g}) {self.rbo:.4f}",
            f"{'system':<{width}}  {'first':>7} {'place':>5}  {'second':>7} {'place':>5}  "
            f"{'second - first':>14}  {'bias':>8}",
        ]
        lines += [
            f"{each.system:<{width}}  {each.first:7.4f} {each.first_place:5}  {each.second:7.4f} "
            f"{each.second_place:5}  {each.difference:+14.4f}  {each.bias:+8.4f}"
            for each in self.systems
        ]
        return "\n".join(lines)


def system_agreement(
    runs: Mapping[str, Run | Mapping[str, Any]],
    first: Qrels,
    second: Qrels,
    measures: Iterable[str | Measure],
    *,
    p: float = 0.9,
) -> list[SystemAgreement]:
    """Rank systems by each measure under two sets of labels, and compare the rankings.

    Each set scores with all of its own labels, on the queries that both have. ``ConfigError`` for
    fewer than two systems, ``DataError`` if the sets share no query.
    """
    if len(runs) < 2:
        raise ConfigError(f"{len(runs)} systems; expected two or more, to compare their order")
    queries = [query for query in first if first[query] and second.get(query)]
    if not queries:
        raise DataError("the two sets of labels share no query, so systems cannot be compared")
    parsed = [measures] if isinstance(measures, str | Measure) else list(measures)
    truths = [{query: labels[query] for query in queries} for labels in (first, second)]
    means = [
        {name: evaluate(run, truth, parsed).mean for name, run in runs.items()} for truth in truths
    ]
    names = list(next(iter(means[0].values())))
    return [
        _compared(
            measure,
            len(queries),
            p,
            *({system: mean[measure] for system, mean in each.items()} for each in means),
        )
        for measure in names
    ]


def kendall_tau_b(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Kendall's tau-b of paired values, with ties; None if all values of one side tie.

    (concordant - discordant) / sqrt(pairs not tied in the first x those not tied in the second);
    Kendall (1945).
    """
    one, other = (np.asarray(values, np.float64) for values in (first, second))
    if one.shape != other.shape or one.ndim != 1:
        raise DataError(f"values of shapes {one.shape} and {other.shape}; expected pairs")
    upper = np.triu_indices(len(one), 1)
    left, right = (np.sign(np.subtract.outer(v, v))[upper] for v in (one, other))
    scale = float(np.count_nonzero(left)) * float(np.count_nonzero(right))
    return float(left @ right) / scale**0.5 if scale else None


def _compared(
    measure: str, queries: int, p: float, first: Mapping[str, float], second: Mapping[str, float]
) -> SystemAgreement:
    one, other = list(first.values()), list(second.values())
    differences = {name: second[name] - first[name] for name in first}
    common = float(np.mean(list(differences.values())))
    orders = [sorted(values, key=lambda n: (-values[n], n)) for values in (first, second)]
    return SystemAgreement(
        measure,
        queries,
        kendall_tau_b(one, other),
        rank_biased_overlap(orders[0], orders[1], p),
        p,
        tuple(
            SystemBias(
                name,
                first[name],
                second[name],
                differences[name],
                differences[name] - common,
                _place(first[name], one),
                _place(second[name], other),
            )
            for name in orders[0]
        ),
    )


def _place(value: float, values: Sequence[float]) -> int:
    return 1 + sum(each > value for each in values)
