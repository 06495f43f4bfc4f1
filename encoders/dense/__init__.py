"""One vector a text: pooling, projection, Matryoshka, instructions, a head over pairs.

`static/` needs no network. What makes a variance beside the vector, a network of a query or a few
vectors of a document lies in `encoders/own`; this room's face alone names two of them.
May import: `encoders.transformer` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.dense.encoder import DenseEncoder as DenseEncoder
    from sluice.encoders.dense.error_adapter import PairHead as PairHead
    from sluice.encoders.dense.objects.function import FunctionEncoder as FunctionEncoder
    from sluice.encoders.dense.objects.sentence_transformer import (
        SentenceTransformerEncoder as SentenceTransformerEncoder,
    )
    from sluice.encoders.dense.precomputed import PrecomputedEncoder as PrecomputedEncoder
    from sluice.encoders.dense.static.encoder import StaticEncoder as StaticEncoder
    from sluice.encoders.own.gaussian.encoder import GaussianEncoder as GaussianEncoder
    from sluice.encoders.own.pseudo_queries import PseudoQueryEncoder as PseudoQueryEncoder
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
