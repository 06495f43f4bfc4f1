"""The losses by their names in YAML; a new one is one file and one line here."""

from __future__ import annotations

LOSSES: dict[str, str] = {
    "adore": "training.losses.adore:Adore",
    "bce": "training.losses.bce:BCE",
    "bixse": "training.losses.bixse:BiXSE",
    "clp": "training.losses.clp:CLP",
    "decoupled_softmax": "training.losses.decoupled_softmax:DecoupledSoftmax",
    "dse": "training.losses.dse:DSE",
    "info_nce": "training.losses.info_nce:InfoNCE",
    "judge_kl": "training.losses.judge_kl:JudgeKL",
    "kl_div": "training.losses.kl_div:KLDiv",
    "lambda_distil": "training.losses.lambda_distil:LambdaDistil",
    "lambda_loss": "training.losses.lambda_loss:LambdaLoss",
    "list_mle": "training.losses.list_mle:ListMLE",
    "list_net": "training.losses.list_net:ListNet",
    "listwise_hinge": "training.losses.listwise_hinge:ListwiseHinge",
    "localized_softmax": "training.losses.localized_softmax:LocalizedSoftmax",
    "margin_mse": "training.losses.margin_mse:MarginMSE",
    "masked_language": "training.losses.masked_language:MaskedLanguage",
    "matryoshka": "training.losses.matryoshka:Matryoshka",
    "matryoshka_2d": "training.losses.matryoshka_2d:Matryoshka2D",
    "mixing": "training.losses.mixing:Mixing",
    "momentum_queue": "training.losses.momentum_queue:MomentumQueue",
    "psl": "training.losses.psl:PSL",
    "qbd": "training.losses.qbd:QBD",
    "rank_net": "training.losses.rank_net:RankNet",
    "soft_top_k": "training.losses.soft_top_k:SoftTopK",
    "star": "training.losses.star:STAR",
    "sum": "training.losses.weighted_sum:WeightedSum",
}
