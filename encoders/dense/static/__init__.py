"""Dense vectors without a network: the mean of a text's token vectors, read from a table.

May import: `encoders.transformer` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.dense.static.encoder import StaticEncoder as StaticEncoder
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
