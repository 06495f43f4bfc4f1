"""Light rankers over the similarities of a query's and a document's tokens: KNRM and its kin.

May import: what `encoders.rerankers` may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.own.matching.interactions import (
        DRMM as DRMM,
        KNRM as KNRM,
        PACRR as PACRR,
        ConvKNRM as ConvKNRM,
        Duet as Duet,
        MatchPyramid as MatchPyramid,
    )
    from sluice.encoders.own.matching.ranker import Head as Head, MatchingRanker as MatchingRanker
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
