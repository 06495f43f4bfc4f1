"""Studies of finished systems: judging, robustness, compatibility, upgrades and reports.

May import: `retrieval.experiments` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.studies.compatibility import (
        Compatibility as Compatibility,
        compatibility_matrix as compatibility_matrix,
    )
    from sluice.retrieval.studies.upgrades import Upgrade as Upgrade, upgrade as upgrade
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
