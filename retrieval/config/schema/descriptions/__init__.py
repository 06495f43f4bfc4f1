"""What editors and `sluice config list` show of components and their arguments, a line of each.

An argument's line is in the file of its kind: `encoders`, `indexes`, `training`, `pipelines`.

May import: `retrieval.pipelines` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.config.schema.descriptions.summaries import SUMMARIES as SUMMARIES
    from sluice.retrieval.config.schema.descriptions.text import (
        WORDS as WORDS,
        described as described,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
