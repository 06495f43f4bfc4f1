"""Figures of measured values: costs against quality, differences by query, recall by depth.

May import: `retrieval.evaluation` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.foundation.disk.figures import save_figure as save_figure
    from sluice.retrieval.evaluation.plots.tradeoff import (
        Point as Point,
        draw_depths as draw_depths,
        draw_differences as draw_differences,
        draw_tradeoff as draw_tradeoff,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
