"""The losses by their names in YAML; a new one is one file and one line here.

May import: `training.batches` and below.
"""

from __future__ import annotations

from sluice.encoders.foundation.build import Core

LOSSES: dict[str, str] = {
    "adore": "sluice.training.losses.listwise.adore:Adore",
    "alignment": "sluice.training.losses.distillation.alignment:Alignment",
    "anchored_hinge": "sluice.training.losses.listwise.anchored_hinge:AnchoredHinge",
    "angle": "sluice.training.losses.contrastive.angle:AnglE",
    "bce": Core("sluice.training.losses.contrastive.bce:BCE"),
    "bixse": "sluice.training.losses.contrastive.bixse:BiXSE",
    "clp": "sluice.training.losses.composed.clp:CLP",
    "csr": "sluice.training.losses.composed.csr:CSR",
    "decoupled_softmax": "sluice.training.losses.contrastive.decoupled_softmax:DecoupledSoftmax",
    "dse": "sluice.training.losses.composed.dse:DSE",
    "entries": "sluice.training.losses.distillation.entries:Entries",
    "grl": "sluice.training.losses.composed.grl:GRL",
    "hoc": "sluice.training.losses.distillation.hoc:HOC",
    "info_nce": Core("sluice.training.losses.contrastive.info_nce:InfoNCE"),
    "judge_kl": "sluice.training.losses.distillation.kl_div:JudgeKL",
    "kl_div": Core("sluice.training.losses.distillation.kl_div:KLDiv"),
    "lambda_distil": "sluice.training.losses.distillation.lambda_distil:LambdaDistil",
    "lambda_loss": Core("sluice.training.losses.listwise.lambda_loss:LambdaLoss"),
    "list_mle": "sluice.training.losses.listwise.list_mle:ListMLE",
    "list_net": "sluice.training.losses.listwise.list_net:ListNet",
    "listwise_hinge": "sluice.training.losses.listwise.listwise_hinge:ListwiseHinge",
    "localized_softmax": Core(
        "sluice.training.losses.contrastive.localized_softmax:LocalizedSoftmax"
    ),
    "margin_mse": Core("sluice.training.losses.distillation.margin_mse:MarginMSE"),
    "masked_language": "sluice.training.losses.masked_language:MaskedLanguage",
    "matryoshka": Core("sluice.training.losses.composed.matryoshka:Matryoshka"),
    "matryoshka_2d": "sluice.training.losses.composed.matryoshka:Matryoshka2D",
    "misfits": "sluice.training.losses.composed.misfits:Misfits",
    "mixing": "sluice.training.losses.composed.mixing:Mixing",
    "momentum_queue": "sluice.training.losses.queue.momentum_queue:MomentumQueue",
    "psl": "sluice.training.losses.contrastive.psl:PSL",
    "qbd": "sluice.training.losses.composed.qbd:QBD",
    "rank_net": "sluice.training.losses.listwise.rank_net:RankNet",
    "rankings": "sluice.training.losses.rankings:Rankings",
    "rrra": "sluice.training.losses.composed.rrra:RRRA",
    "simplex": "sluice.training.losses.distillation.simplex:Simplex",
    "soft_top_k": "sluice.training.losses.contrastive.soft_top_k:SoftTopK",
    "spans": "sluice.training.losses.spans:Spans",
    "identifiers": "sluice.training.losses.identifiers:Identifiers",
    "star": "sluice.training.losses.contrastive.star:STAR",
    "sum": Core("sluice.training.losses.composed.sum_of_losses:WeightedSum"),
    "three_heads": "sluice.training.losses.composed.three_heads:ThreeHeads",
}
