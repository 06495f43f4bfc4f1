"""Draws recall by the depth of the list, a line for each system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sluice.encoders.foundation.disk.figures import (
    COLOURS,
    DASHES,
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
