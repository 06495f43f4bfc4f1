"""Encoders whose feed-forward layers exist several times: one for each dataset, or by a gate.

May import: `encoders.dense.encoder`, `encoders.transformer` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.dense.experts.encoder import ExpertEncoder as ExpertEncoder
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
