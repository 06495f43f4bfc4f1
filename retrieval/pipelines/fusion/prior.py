"""The fusion that is taken where no judgements say which: one for all collections.

Lists are weighted query by query by how steep they are, and lists of words count two for three of
the others. The shares and the exponent were found on train and dev queries of four collections,
each left out in turn (docs/decisions/019): never below equal weights on the one left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.retrieval.evaluation.measures import Measure
from sluice.retrieval.pipelines.fusion.fit import FusionFit, shown
from sluice.retrieval.pipelines.fusion.fusion import Fusion

LEXICAL, OTHER = 0.4, 0.6  # the shares of a list by BM25 and of another


def unjudged_fusion(
    names: Sequence[str], lexical: Sequence[bool], measure: Measure, reason: str
) -> FusionFit:
    """Return the fusion of lists without judgements; ``lexical`` says which are by BM25."""
    shares = [LEXICAL if each else OTHER for each in lexical]
    weights = [round(share / sum(shares), 4) for share in shares]
    fusion = Fusion("weighted", weights, "steep")
    return FusionFit(
        fusion=fusion,
        names=tuple(names),
        parts=tuple(names),
        measure=str(measure),
        value=None,
        held_out=None,
        equal=None,
        single=(),
        queries=0,
        tried=1,
        why=f"took {shown(fusion, names)}, the choice for all collections: not fitted on "
        f"judgements ({reason})",
        judged=False,
    )
