"""Draws training curves: one panel for each kind of number, runs overlaid.

Needs matplotlib: ``pip install 'sluice-ir[plots]'``.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import write_bytes
from sluice.encoders.foundation.errors import ConfigError, MissingPackageError, suggest
from sluice.training.journal.curves import Curves, Panel, panels_of

FORMATS = ("svg", "png", "pdf")
COLUMNS = 3
PANEL_INCHES = (4.0, 2.8)
DASHES = ("-", "--", ":", "-.")
COLOURS = (  # distinct to colour-blind readers and in grey (Wong 2011)
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
)  # fmt: skip
MARKED = 30  # a series of no more points has its points drawn
DECADES = 100  # a range as wide as this is drawn on a logarithmic axis


def plot_trainings(trainings: Sequence[Curves], output: str | Path) -> Path:
    """Draw the curves of training runs into a file; its ending chooses the format: svg, png or pdf.

    Equal curves make equal files. Raises ``ConfigError`` for another ending and
    ``MissingPackageError`` without matplotlib.
    """
    path = Path(output)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ConfigError(
            f"output: {path.name!r}; expected a name that ends in {', '.join(FORMATS)}"
            f"{suggest(kind, FORMATS)}"
        )
    try:
        import matplotlib
        from matplotlib.figure import Figure  # without pyplot: no display, no global state
    except ImportError:
        raise MissingPackageError("matplotlib", "plots", "plotting training curves") from None
    panels = panels_of(trainings)
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    drawn = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "sluice", "pdf.fonttype": 42, "font.size": 9}):
        figure = Figure(
            figsize=(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows), layout="constrained"
        )
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
        for place, panel in enumerate(panels, start=1):
            _draw(figure.add_subplot(rows, columns, place), panel, trainings)
        figure.savefig(drawn, format=kind, dpi=150, metadata=dates.get(kind))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, drawn.getvalue())
    return path


def _draw(axes: Any, panel: Panel, trainings: Sequence[Curves]) -> None:
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
                label=_label(panel, name, training, several=several),
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
    axes.grid(visible=True, linewidth=0.4, alpha=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(fontsize=7, frameon=False)


def _label(panel: Panel, name: str, training: Curves, *, several: bool) -> str:
    label = name.removeprefix(panel.prefix).replace("_", " ")
    if not several:
        return label
    return training.name if len(panel.names) == 1 else f"{training.name}: {label}"
