"""Draws what quality costs: points of systems or of one index's settings, joined to lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sluice.encoders.foundation.disk.figures import (
    COLOURS,
    DECADE,
    GREY,
    MARKERS,
    axes_of,
    figure_of,
    plain_text,
    styled,
    tidied,
)
from sluice.encoders.foundation.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
