"""Repeats an evaluation from its record, and runs that others have published; compares the figures.

May import: `retrieval.experiments` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.experiments.reproduction.listed import (
        PublishedRun as PublishedRun,
        published_run as published_run,
        published_runs as published_runs,
    )
    from sluice.retrieval.experiments.reproduction.recorded import (
        Reproduction as Reproduction,
        repeat as repeat,
        reproduce as reproduce,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
