"""Draws what a system gains and loses against another, query by query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sluice.encoders.foundation.disk.figures import axes_of, figure_of, plain_text, styled, tidied
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.evaluation.comparison import aligned
from sluice.retrieval.evaluation.measures import parse_measure
from sluice.retrieval.evaluation.scores import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
