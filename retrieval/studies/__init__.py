"""Studies of finished systems: judging, robustness, compatibility, upgrades, plots and reports.

May import: `retrieval.experiments` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.studies.plots import (
        plot_cascades as plot_cascades,
        plot_depths as plot_depths,
        plot_differences as plot_differences,
        plot_tradeoff as plot_tradeoff,
        plot_training as plot_training,
    )
    from sluice.retrieval.studies.upgrades import (
        Compatibility as Compatibility,
        Upgrade as Upgrade,
        compatibility_matrix as compatibility_matrix,
        upgrade as upgrade,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
