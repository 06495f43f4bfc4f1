"""Learned sparse vectors over a vocabulary: SPLADE-max, -sum, -doc, and queries without a model.

May import: `encoders.transformer` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.splade.encoder import SpladeEncoder as SpladeEncoder
    from sluice.encoders.splade.start import (
        fit_idf as fit_idf,
        fit_term_floors as fit_term_floors,
        start_splade as start_splade,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
