"""Light rankers over the similarities of a query's and a document's tokens: KNRM and its kin.

May import: what `encoders.rerankers` may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.own.matching.conv_knrm import ConvKNRM as ConvKNRM
    from sluice.encoders.own.matching.drmm import DRMM as DRMM
    from sluice.encoders.own.matching.duet import Duet as Duet
    from sluice.encoders.own.matching.knrm import KNRM as KNRM
    from sluice.encoders.own.matching.match_pyramid import MatchPyramid as MatchPyramid
    from sluice.encoders.own.matching.pacrr import PACRR as PACRR
    from sluice.encoders.own.matching.ranker import (
        Head as Head,
        MatchingRanker as MatchingRanker,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
