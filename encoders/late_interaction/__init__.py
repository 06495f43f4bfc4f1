"""One vector for each token of a text, scored by MaxSim (ColBERT): projection, masks, pooling.

`three_heads/` makes them beside a dense vector and term weights. May import:
`encoders.transformer` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.late_interaction.encoder import TokenEncoder as TokenEncoder
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
