"""One vector a text: pooling, projection, Matryoshka, instructions, a head over pairs.

`gaussian/` makes a variance beside it, `hypencoder/` a network of a query, `pseudo_queries/` a few
vectors of a document; `static/` needs no network.
May import: `encoders.transformer` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.dense.encoder import DenseEncoder as DenseEncoder
    from sluice.encoders.dense.error_adapter import PairHead as PairHead
    from sluice.encoders.dense.given.function import FunctionEncoder as FunctionEncoder
    from sluice.encoders.dense.given.sentence_transformer import (
        SentenceTransformerEncoder as SentenceTransformerEncoder,
    )
    from sluice.encoders.dense.precomputed import PrecomputedEncoder as PrecomputedEncoder
    from sluice.encoders.dense.static.encoder import StaticEncoder as StaticEncoder
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
