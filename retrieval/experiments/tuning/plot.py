"""Draws what tuning tried: the front, the choice, and cascades by the depth they rerank."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.retrieval.evaluation.plots.tradeoff import Point, draw_tradeoff
from sluice.retrieval.experiments.tuning.tuner import Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELS = {"p50_ms": "p50 latency, ms", "p95_ms": "p95 latency, ms", "price": "price of a query"}
SWEPT = 3  # depths, that a cascade is drawn as a line
LINES = 3  # cascades that are drawn as lines: the best
_DEPTH = re.compile(r"\bdepth=(\d+)")


def draw_cascades(
    trials: Sequence[Trial],
    *,
    measure: str,
    cost: str,
    front: Sequence[Trial] = (),
    chosen: Trial | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw pipelines by their cost and their measure on the tuning queries; return the figure.

    Pipelines that differ in the depth of their last reranker alone are a line, each point labelled
    with its depth: of such lines the three with the best point. ``cost`` is a field of ``Trial``:
    p50_ms, p95_ms or price. Raises ``ConfigError`` for another and ``DataError`` for no trials.
    """
    if cost not in LABELS:
        raise ConfigError(
            f"cost: {cost!r}; expected one of {', '.join(LABELS)}{suggest(cost, LABELS)}"
        )
    return draw_tradeoff(
        {
            name: [_point(trial, cost, _DEPTH.findall(trial.pipeline)[-1]) for trial in sweep]
            for name, sweep in sweeps(trials).items()
        },
        cost=LABELS[cost],
        quality=f"{measure}, tuning queries",
        tried=[_point(trial, cost) for trial in trials],
        front=[_point(trial, cost) for trial in front],
        chosen=None if chosen is None else _point(chosen, cost),
        ax=ax,
    )


def sweeps(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Return the cascades tried at several depths of their last reranker, the best ones.

    The name is the pipeline with ``depth=…``. Of those with the same stages, which differ in
    weights and exits only, the one with the best trial is returned.
    """
    by_name: dict[str, list[Trial]] = {}
    for trial in trials:
        places = list(_DEPTH.finditer(trial.pipeline))
        if places:
            last = places[-1]
            name = f"{trial.pipeline[: last.start()]}depth=…{trial.pipeline[last.end() :]}"
            by_name.setdefault(name, []).append(trial)
    found = {name: group for name, group in by_name.items() if len(group) >= SWEPT}
    best: dict[str, str] = {}
    for name in sorted(found, key=lambda name: -max(trial.value for trial in found[name])):
        best.setdefault(name.partition("depth=…")[0], name)
    return {name: found[name] for name in list(best.values())[:LINES]}


def _point(trial: Trial, cost: str, label: str = "") -> Point:
    return Point(float(getattr(trial, cost)), trial.value, label)
