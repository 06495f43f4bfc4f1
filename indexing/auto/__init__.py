"""The autopilot: tries indexes on a sample and takes the fastest that reaches a target recall.

May import: every other room of `indexing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.indexing.auto.index import AutoIndex as AutoIndex
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
