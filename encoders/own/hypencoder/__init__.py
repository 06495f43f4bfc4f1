"""Hypencoder: a query becomes a small network that scores documents' vectors.

May import: what `encoders.dense` may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.own.hypencoder.encoder import Hypencoder as Hypencoder
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
