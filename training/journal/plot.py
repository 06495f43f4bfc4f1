"""Draws training curves: one panel for each kind of number, runs overlaid.

Needs matplotlib: ``pip install 'sluice-ir[plots]'``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.encoders.foundation.disk.figures import (
    COLOURS,
    DASHES,
    axes_of,
    check_format,
    figure_of,
    new_figure,
    plain_text,
    save_figure,
    styled,
    tidied,
)
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.training.journal.curves import Curves, Panel, panels_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3
PANEL_INCHES = (4.0, 2.8)
MARKED = 30  # a series of no more points has its points drawn
DECADES = 100  # a range as wide as this is drawn on a logarithmic axis


def draw_trainings(
    trainings: Sequence[Curves], *, panel: str | None = None, ax: Axes | None = None
) -> Figure:
    """Draw training runs, a panel for each kind of number that they logged; return the figure.

    ``panel`` chooses one by its title, as "Loss"; ``ax`` has room for one only. Raises
    ``ConfigError`` for a panel that the runs lack, ``DataError`` for no runs, and
    ``MissingPackageError`` without matplotlib.
    """
    if not trainings:
        raise DataError("training curves: no training run is given, so there is nothing to draw")
    panels = {each.title: each for each in panels_of(trainings)}
    if panel is not None and panel not in panels:
        raise ConfigError(
            f"panel: {panel!r}; the runs have {', '.join(panels)}{suggest(panel, panels)}"
        )
    if ax is not None and panel is None and len(panels) > 1:
        raise ConfigError(
            f"ax: one part of a figure has no room for {len(panels)} panels; choose one with "
            f"panel={next(iter(panels))!r}"
        )
    chosen = list(panels.values()) if panel is None else [panels[panel]]
    with styled("plotting training curves"):
        if len(chosen) == 1:
            axes = axes_of(ax, PANEL_INCHES)
            _draw(axes, chosen[0], trainings)
            return figure_of(axes)
        columns = min(COLUMNS, len(chosen))
        rows = -(-len(chosen) // columns)
        figure = new_figure((PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows))
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
        for place, each in enumerate(chosen, start=1):
            _draw(figure.add_subplot(rows, columns, place), each, trainings)
        return figure


def plot_trainings(trainings: Sequence[Curves], output: str | Path) -> Path:
    """Draw the curves of training runs into a file; its ending chooses the format: svg, png or pdf.

    Equal curves make equal files. Raises ``ConfigError`` for another ending and
    ``MissingPackageError`` without matplotlib.
    """
    check_format(output)
    return save_figure(draw_trainings(trainings), output)


def _draw(axes: Axes, panel: Panel, trainings: Sequence[Curves]) -> None:
    """Draw a panel: runs differ by colour, their series by dashes; a single run's by colour."""
    lowest, highest = math.inf, -math.inf
    for place, training in enumerate(trainings):
        for number, name in enumerate(panel.names):
            series = training.series.get(name)
            if series is None:
                continue
            several = len(trainings) > 1
            colour = COLOURS[(place if several else number) % len(COLOURS)]
            axes.plot(
                series.steps,
                series.values,
                color=colour,
                linestyle=DASHES[number % len(DASHES)] if several else "-",
                linewidth=1.3,
                marker="." if len(series.steps) <= MARKED else None,
                label=plain_text(_label(panel, name, training, several=several)),
            )
            if panel.best:
                best = series.best
                axes.plot(series.steps[best], series.values[best], "*", color=colour, markersize=10)
            target = training.targets.get(name) if panel.targets else None
            if target is not None:
                axes.axhline(target, color=colour, linestyle=":", linewidth=0.9)
            lowest, highest = min(lowest, *series.values), max(highest, *series.values)
    if panel.log and lowest > 0 and highest / lowest >= DECADES:
        axes.set_yscale("log")
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel("optimiser step")
    axes.set_ylabel(panel.axis)
    tidied(axes)


def _label(panel: Panel, name: str, training: Curves, *, several: bool) -> str:
    label = name.removeprefix(panel.prefix).replace("_", " ")
    if not several:
        return label
    return training.name if len(panel.names) == 1 else f"{training.name}: {label}"
