"""Plots of an evaluation: quality against latency, depths, and differences by query."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sluice.encoders.foundation.disk.figures import (
    COLOURS,
    DASHES,
    DECADE,
    GREY,
    MARKERS,
    axes_of,
    figure_of,
    plain_text,
    save_figure,
    styled,
    tidied,
)
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.evaluation.comparison import aligned
from sluice.retrieval.evaluation.measures import parse_measure
from sluice.retrieval.evaluation.scores import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Point", "draw_depths", "draw_differences", "draw_tradeoff", "save_figure"]


def draw_depths(
    systems: Mapping[str, Sequence[float]],
    depths: Sequence[int],
    *,
    quality: str = "mean recall",
    ax: Axes | None = None,
) -> Figure:
    """Draw each system's values at the first of ``depths``; return the figure.

    A system may have fewer values than there are depths: its lists end there. Raises ``DataError``
    where no system has a value, or one has more values than there are depths.
    """
    if not any(map(len, systems.values())):
        raise DataError(f"{quality} by depth: no system has a value, so there is nothing to draw")
    for name, values in systems.items():
        if len(values) > len(depths):
            raise DataError(
                f"{quality} by depth: {name} has {len(values)} values for {len(depths)} depths; "
                "expected one at most for each depth"
            )
    with styled("plotting recall by depth"):
        axes = axes_of(ax)
        for place, (name, values) in enumerate(systems.items()):
            axes.plot(
                depths[: len(values)], values, color=COLOURS[place % len(COLOURS)],
                linestyle=DASHES[place % len(DASHES)], marker=MARKERS[place % len(MARKERS)],
                markersize=4, linewidth=1.3, label=plain_text(name),
            )  # fmt: skip
        axes.set_xscale("log")
        shown = [depth for depth in depths if str(depth)[0] == "1" or depth == depths[-1]]
        axes.set_xticks(shown, [f"{depth:,}" for depth in shown])
        axes.set_xlabel("depth, documents of the list")
        axes.set_ylabel(quality)
        return figure_of(tidied(axes))


WIN, LOSS = "#0072B2", "#D55E00"


def draw_differences(
    scores: Scores,
    baseline: Scores,
    measure: str | None = None,
    *,
    names: tuple[str, str] = ("system", "baseline"),
    ax: Axes | None = None,
) -> Figure:
    """Draw a bar for each query, system minus baseline, from gain to loss; return the figure.

    The mean is a dashed line; wins, ties and losses are counted above. ``measure`` is the first of
    the scores unless named. Raises ``ConfigError`` for a measure that was not computed and
    ``DataError`` for scores of different queries, or of none.
    """
    known = [name for name in scores.mean if name in baseline.mean]
    chosen = next(iter(known), "") if measure is None else str(parse_measure(measure))
    if chosen not in known:
        raise ConfigError(
            f"measure: {chosen!r} was not computed for both; there are {', '.join(known) or 'none'}"
            f"{suggest(chosen, known)}"
        )
    one, base = aligned(baseline, scores, chosen), aligned(baseline, baseline, chosen)
    if not len(base):
        raise DataError(f"{chosen}: no query has a value, so there is nothing to draw")
    values = np.sort(one - base)[::-1]
    wins, losses = int((values > 0).sum()), int((values < 0).sum())
    edges = np.arange(len(values) + 1)
    with styled("plotting differences by query"):
        axes = axes_of(ax)
        axes.stairs(np.maximum(values, 0), edges, fill=True, color=WIN)
        axes.stairs(np.minimum(values, 0), edges, fill=True, color=LOSS)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.axhline(
            float(values.mean()), color="black", linestyle="--", linewidth=0.9,
            label=f"mean {values.mean():+.4f}",
        )  # fmt: skip
        axes.set_xlim(0, len(values))
        axes.set_title(
            f"{plural(wins, 'win')}, {plural(len(values) - wins - losses, 'tie')}, "
            f"{losses:,} {'loss' if losses == 1 else 'losses'}",
            fontsize=10,
        )
        axes.set_xlabel(f"{plural(len(values), 'query')}, sorted by difference")
        axes.set_ylabel(f"{chosen}: {plain_text(names[0])} minus {plain_text(names[1])}")
        tidied(axes)
        axes.legend(fontsize=7, frameon=False)
        return figure_of(axes)


NAMED = 40  # more labels than these would cover each other


class Point(NamedTuple):
    """What something costs, and how good it is; ``label`` stands beside it."""

    cost: float
    value: float
    label: str = ""


def draw_tradeoff(
    lines: Mapping[str, Sequence[Point]],
    *,
    cost: str,
    quality: str,
    tried: Sequence[Point] = (),
    front: Sequence[Point] = (),
    chosen: Point | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw quality against cost, each line in the order of its costs; return the figure.

    ``cost`` and ``quality`` are the axes' texts, with the unit: ``"median latency, ms"``. ``tried``
    are grey points behind the lines, ``front`` a stair of those that nothing beats, ``chosen`` a
    star. Costs that span a decade and are all above 0 are on a logarithmic axis. Raises
    ``DataError`` without points, and for a number that is not finite.
    """
    groups = [*lines.values(), tried, front, [] if chosen is None else [chosen]]
    points = [point for group in groups for point in group]
    if not points:
        raise DataError(f"{quality} against {cost}: no points to draw")
    for point in points:
        if not (math.isfinite(point.cost) and math.isfinite(point.value)):
            raise DataError(
                f"{quality} against {cost}: {point.label or 'a point'} has cost {point.cost} and "
                f"value {point.value}; expected finite numbers"
            )
    with styled("plotting quality against cost"):
        axes = axes_of(ax)
        if tried:
            axes.scatter(*_columns(tried), s=9, color=GREY, label="tried")
        if front:
            axes.step(*_columns(front), where="post", color="black", linewidth=0.9, label="front")
        for place, (name, group) in enumerate(lines.items()):
            _line(axes, place, name, sorted(group))
        if chosen is not None:
            axes.scatter(
                [chosen.cost], [chosen.value], s=110, marker="*", color="#D55E00",
                edgecolors="black", linewidths=0.5, zorder=4, label="chosen",
            )  # fmt: skip
        costs = [point.cost for point in points]
        if min(costs) > 0 and max(costs) >= DECADE * min(costs):
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
        if sum(bool(point.label) for group in lines.values() for point in group) <= NAMED:
            named = [group for group in lines.values() if any(point.label for point in group)]
            for place, group in enumerate(named):
                _name(axes, group, right=place % 2 == 0)
        axes.margins(x=0.12, y=0.12)
        axes.set_xlabel(cost)
        axes.set_ylabel(quality)
        return figure_of(tidied(axes))


def _columns(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [point.cost for point in points], [point.value for point in points]


def _line(axes: Axes, place: int, name: str, points: Sequence[Point]) -> None:
    axes.plot(
        *_columns(points), color=COLOURS[place % len(COLOURS)],
        marker=MARKERS[place % len(MARKERS)], markersize=4.5, linewidth=1.3, label=plain_text(name),
    )  # fmt: skip


def _name(axes: Axes, points: Sequence[Point], *, right: bool) -> None:
    """Write a line's labels right below its points, or left above: its neighbour has the other."""
    for point in points:
        if point.label:
            axes.annotate(
                plain_text(point.label), (point.cost, point.value),
                xytext=(5, -5) if right else (-5, 5), textcoords="offset points", fontsize=7,
                ha="left" if right else "right", va="center",
            )  # fmt: skip
