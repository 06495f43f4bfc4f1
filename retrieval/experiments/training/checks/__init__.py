"""Checks the section of one training run before any work: ``check_training`` is the door.

May import: what `retrieval.experiments.training` may, and of that room its parts and sections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.experiments.training.checks.negatives import check_shares as check_shares
    from sluice.retrieval.experiments.training.checks.training import (
        check_training as check_training,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
