"""A mean and a variance of every text (Gaussian representation), as one vector for inner products.

May import: `encoders.transformer` and below, and of `encoders.dense` the poolings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.own.gaussian.encoder import GaussianEncoder as GaussianEncoder
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
