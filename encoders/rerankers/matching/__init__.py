"""Light rankers over the similarities of a query's and a document's tokens: KNRM and its kin.

May import: what `encoders.rerankers` may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.rerankers.matching.conv_knrm import ConvKNRM as ConvKNRM
    from sluice.encoders.rerankers.matching.drmm import DRMM as DRMM
    from sluice.encoders.rerankers.matching.duet import Duet as Duet
    from sluice.encoders.rerankers.matching.knrm import KNRM as KNRM
    from sluice.encoders.rerankers.matching.match_pyramid import MatchPyramid as MatchPyramid
    from sluice.encoders.rerankers.matching.pacrr import PACRR as PACRR
    from sluice.encoders.rerankers.matching.ranker import (
        Head as Head,
        MatchingRanker as MatchingRanker,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
