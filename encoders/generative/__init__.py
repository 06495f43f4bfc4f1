"""Language models that write: queries an index holds (SEAL, DSI), true or false, orders of lists.

May import: `encoders.rerankers`, and `encoders.transformer` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.generative.dsi import DsiEncoder as DsiEncoder
    from sluice.encoders.generative.encoder import SealEncoder as SealEncoder
    from sluice.encoders.generative.listwise import ListwiseRanker as ListwiseRanker
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
