"""One transformer, three kinds of vectors of one pass (BGE-M3): dense, of terms, of tokens.

May import: `encoders.transformer` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.own.three_heads.encoder import (
        ThreeHeadEncoder as ThreeHeadEncoder,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
