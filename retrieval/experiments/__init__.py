"""One YAML to results.json: what depends on what, suites, reuse, reproduction.

May import: `retrieval.training_data` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.experiments.experiment import (
        Experiment as Experiment,
        load_pipeline as load_pipeline,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
