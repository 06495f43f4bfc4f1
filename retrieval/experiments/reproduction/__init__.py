"""Repeats an evaluation from its record, and runs that others have published; compares the figures.

May import: `retrieval.experiments` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.experiments.reproduction.recorded import (
        PublishedRun as PublishedRun,
        Reproduction as Reproduction,
        published_run as published_run,
        published_runs as published_runs,
        repeat as repeat,
        reproduce as reproduce,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
