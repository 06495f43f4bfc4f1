"""What does not go together in a training run, as rules: the list that a config is judged by.

May import: what `retrieval.experiments.training` may, and of that room its parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.experiments.training.rules.every import RUN_RULES as RUN_RULES
    from sluice.retrieval.experiments.training.rules.facts import RunFacts as RunFacts
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
