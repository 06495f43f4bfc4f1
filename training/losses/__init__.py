"""The losses by their names in YAML; a new one is one file and one line here.

May import: `training.batches` and below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluice.encoders.foundation.build import Core

LOSSES: dict[str, str] = {
    "adore": "sluice.training.losses.listwise.lists:Adore",
    "alignment": "sluice.training.losses.distillation.vectors:Alignment",
    "anchored_hinge": "sluice.training.losses.listwise.lists:AnchoredHinge",
    "angle": "sluice.training.losses.own.angle:AnglE",
    "bce": Core("sluice.training.losses.contrastive.pairs:BCE"),
    "bixse": "sluice.training.losses.contrastive.pairs:BiXSE",
    "clp": "sluice.training.losses.own.negatives:CLP",
    "csr": "sluice.training.losses.own.csr:CSR",
    "decoupled_softmax": "sluice.training.losses.contrastive.softmax:DecoupledSoftmax",
    "dse": "sluice.training.losses.own.heads:DSE",
    "entries": "sluice.training.losses.own.entries:Entries",
    "grl": "sluice.training.losses.own.grl:GRL",
    "hoc": "sluice.training.losses.distillation.vectors:HOC",
    "info_nce": Core("sluice.training.losses.contrastive.softmax:InfoNCE"),
    "judge_kl": "sluice.training.losses.distillation.scores:JudgeKL",
    "kl_div": Core("sluice.training.losses.distillation.scores:KLDiv"),
    "lambda_distil": "sluice.training.losses.distillation.vectors:LambdaDistil",
    "lambda_loss": Core("sluice.training.losses.listwise.lambda_loss:LambdaLoss"),
    "list_mle": "sluice.training.losses.listwise.lists:ListMLE",
    "list_net": "sluice.training.losses.listwise.lists:ListNet",
    "listwise_hinge": "sluice.training.losses.listwise.lists:ListwiseHinge",
    "localized_softmax": Core("sluice.training.losses.contrastive.softmax:LocalizedSoftmax"),
    "margin_mse": Core("sluice.training.losses.distillation.scores:MarginMSE"),
    "masked_language": "sluice.training.losses.sequences:MaskedLanguage",
    "matryoshka": Core("sluice.training.losses.composed.matryoshka:Matryoshka"),
    "matryoshka_2d": "sluice.training.losses.composed.matryoshka:Matryoshka2D",
    "misfits": "sluice.training.losses.own.negatives:Misfits",
    "mixing": "sluice.training.losses.own.negatives:Mixing",
    "mnr_plus": "sluice.training.losses.own.mnr_plus:MNRPlus",
    "momentum_queue": "sluice.training.losses.own.momentum_queue:MomentumQueue",
    "multi_similarity": "sluice.training.losses.own.multi_similarity:MultiSimilarity",
    "psl": "sluice.training.losses.contrastive.pairs:PSL",
    "qbd": "sluice.training.losses.own.qbd:QBD",
    "rank_net": "sluice.training.losses.listwise.lists:RankNet",
    "rankings": "sluice.training.losses.sequences:Rankings",
    "rrra": "sluice.training.losses.own.heads:RRRA",
    "simplex": "sluice.training.losses.distillation.scores:Simplex",
    "soft_top_k": "sluice.training.losses.contrastive.pairs:SoftTopK",
    "spans": "sluice.training.losses.sequences:Spans",
    "identifiers": "sluice.training.losses.sequences:Identifiers",
    "star": "sluice.training.losses.contrastive.pairs:STAR",
    "sum": Core("sluice.training.losses.composed.sum_of_losses:WeightedSum"),
    "three_heads": "sluice.training.losses.own.three_heads:ThreeHeads",
}
USUAL: Final = {"type": "info_nce"}  # where none is named
USUAL_OF_PAIRS: Final = {"type": "bce"}  # of an encoder that scores pairs


@dataclass(frozen=True, slots=True)
class LossTraits:
    """What must be known of a loss before it is imported.

    ``texts_alone``: it learns from documents without queries. ``adds``: it is a sum of others.
    """

    texts_alone: bool = False
    adds: bool = False


_TRAITS: Final[Mapping[str, LossTraits]] = {
    "masked_language": LossTraits(texts_alone=True),
    "qbd": LossTraits(adds=True),
    "sum": LossTraits(adds=True),
}


def loss_traits(spec: Mapping[str, Any]) -> LossTraits:
    """Return the traits of the loss that ``{type: name, ...}`` describes."""
    return _TRAITS.get(str(spec.get("type")), LossTraits())
