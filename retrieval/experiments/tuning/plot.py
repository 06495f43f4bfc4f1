"""The tuner's figure: every pipeline by cost and measure, the front drawn through the best.

matplotlib is an optional package: ``pip install 'sluice-ir[plots]'``.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.encoders.foundation.errors import MissingPackageError
from sluice.encoders.foundation.files import write_bytes

if TYPE_CHECKING:
    from sluice.retrieval.experiments.tuning.tuner import Tuning

LABELS = {"p50_ms": "p50 latency, ms", "p95_ms": "p95 latency, ms", "price": "price of a query"}


def plot_front(found: Tuning, path: str | Path) -> Path:
    """Draw all trials and the front into an SVG file; ``MissingPackageError`` without matplotlib.

    Costs are on a logarithmic axis where none is 0.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackageError("matplotlib", "plots", "plotting the front") from None
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.subplots()
    costs = [getattr(trial, found.cost) for trial in found.trials]
    axes.scatter(costs, [t.value for t in found.trials], s=9, color="#999999", label="tried")
    front = [getattr(trial, found.cost) for trial in found.front]
    values = [trial.value for trial in found.front]
    axes.step(front, values, where="post", color="#0072B2", marker="o", markersize=4, label="front")
    chosen = getattr(found.chosen, found.cost)
    axes.scatter([chosen], [found.chosen.value], s=90, marker="*", color="#D55E00", label="chosen")
    if min(costs) > 0:
        axes.set_xscale("log")
    axes.set_xlabel(LABELS[found.cost])
    axes.set_ylabel(found.measure)
    axes.legend(frameon=False)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    write_bytes(Path(path), drawn.getvalue())
    return Path(path)
