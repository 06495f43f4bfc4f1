"""Sparse vectors over a list of named concepts, which a user gives.

May import: `encoders.splade.pooling`, `encoders.dense.encoder`, `encoders.transformer` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.splade.concepts.encoder import ConceptEncoder as ConceptEncoder
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
