"""The losses by their names in YAML; a new one is one file and one line here.

May import: `training.batches` and below.
"""

from __future__ import annotations

from sluice.encoders.foundation.build import Core

LOSSES: dict[str, str] = {
    "adore": "sluice.training.losses.listwise.lists:Adore",
    "alignment": "sluice.training.losses.distillation.vectors:Alignment",
    "anchored_hinge": "sluice.training.losses.listwise.lists:AnchoredHinge",
    "angle": "sluice.training.losses.contrastive.angle:AnglE",
    "bce": Core("sluice.training.losses.contrastive.pairs:BCE"),
    "bixse": "sluice.training.losses.contrastive.pairs:BiXSE",
    "clp": "sluice.training.losses.composed.clp:CLP",
    "csr": "sluice.training.losses.composed.csr:CSR",
    "decoupled_softmax": "sluice.training.losses.contrastive.softmax:DecoupledSoftmax",
    "dse": "sluice.training.losses.composed.headed:DSE",
    "entries": "sluice.training.losses.distillation.vectors:Entries",
    "grl": "sluice.training.losses.composed.grl:GRL",
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
    "masked_language": "sluice.training.losses.masked_language:MaskedLanguage",
    "matryoshka": Core("sluice.training.losses.composed.matryoshka:Matryoshka"),
    "matryoshka_2d": "sluice.training.losses.composed.matryoshka:Matryoshka2D",
    "misfits": "sluice.training.losses.composed.misfits:Misfits",
    "mixing": "sluice.training.losses.composed.mixing:Mixing",
    "momentum_queue": "sluice.training.losses.queue.momentum_queue:MomentumQueue",
    "psl": "sluice.training.losses.contrastive.pairs:PSL",
    "qbd": "sluice.training.losses.composed.qbd:QBD",
    "rank_net": "sluice.training.losses.listwise.lists:RankNet",
    "rankings": "sluice.training.losses.written:Rankings",
    "rrra": "sluice.training.losses.composed.headed:RRRA",
    "simplex": "sluice.training.losses.distillation.scores:Simplex",
    "soft_top_k": "sluice.training.losses.contrastive.pairs:SoftTopK",
    "spans": "sluice.training.losses.written:Spans",
    "identifiers": "sluice.training.losses.written:Identifiers",
    "star": "sluice.training.losses.contrastive.pairs:STAR",
    "sum": Core("sluice.training.losses.composed.sum_of_losses:WeightedSum"),
    "three_heads": "sluice.training.losses.composed.three_heads:ThreeHeads",
}
