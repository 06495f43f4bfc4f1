"""What other libraries call indexes and losses, with the component that it is here."""

from __future__ import annotations

from typing import Final

from sluice.encoders.foundation.errors import ConfigError
from sluice.training.losses import LOSSES

INDEX_NAMES: Final = {
    "hnsw": "HNSW is {type: faiss, factory: HNSW32}",
    "ivf": "IVF is {type: faiss, factory: 'IVF1024,Flat'}",
    "pq": "product quantisation is {type: faiss, factory: PQ32}",
    "ivfpq": "IVF with product quantisation is {type: faiss, factory: 'IVF1024,PQ32'}",
}
# Losses of sentence-transformers and Tevatron, in lower case, without Cached, Sparse and Loss.
LOSS_NAMES: Final = {
    "adaptivelayer": "matryoshka_2d",
    "binarycrossentropy": "bce",
    "csr": "csr",
    "csrreconstruction": "csr, which has a loss over codes beside the reconstruction",
    "distillkldiv": "kl_div",
    "distributedcontrastive": "info_nce",
    "hfcontrastive": "info_nce",
    "lambda": "lambda_loss",
    "listmle": "list_mle",
    "listnet": "list_net",
    "marginmse": "margin_mse",
    "matryoshka": "matryoshka",
    "matryoshka2d": "matryoshka_2d",
    "mnrl": "info_nce",
    "multiplenegativesranking": "info_nce",
    "multiplenegativesrankingsymmetric": "info_nce, with symmetric: true",
    "multiplenegativessymmetricranking": "info_nce, with symmetric: true",
    "plistmle": "list_mle, with position_aware: true",
    "ranknet": "rank_net",
    "simplecontrastive": "info_nce",
    "splade": "info_nce, with sparsity",
}
# Settings of the trainer by the names that users write instead, or without ``trainer`` before.
_TRAINER = ("bf16", "learning_rate", "max_steps", "num_train_epochs", "per_device_train_batch_size")
TRAINER_NAMES: Final = {
    **dict(zip(_TRAINER, _TRAINER, strict=True)),
    **dict.fromkeys(("batch_size", "train_batch_size"), "per_device_train_batch_size"),
    **dict.fromkeys(("epochs", "num_epochs"), "num_train_epochs"),
    "lr": "learning_rate", "steps": "max_steps",
}  # fmt: skip
OWN = "info_nce with negatives: own, against the query's own negatives"
GRADED = "bixse, for pairs labelled from 0 to 1"
TAUGHT = "kl_div or margin_mse, with teacher"
NEAREST: Final = {  # those that are not here
    "angle": GRADED,
    "batchalltriplet": "info_nce",
    "batchhardsoftmargintriplet": "info_nce",
    "batchhardtriplet": "info_nce",
    "batchsemihardtriplet": "info_nce",
    "contrastive": GRADED,
    "contrastivetension": "info_nce",
    "cosent": GRADED,
    "cosinesimilarity": GRADED,
    "crossentropy": "bce or localized_softmax",
    "denoisingautoencoder": "masked_language, which trains splade on texts alone",
    "distillation": TAUGHT,
    "gistembed": "info_nce, with mined negatives, whose limits drop false ones",
    "globalorthogonalregularization": "info_nce",
    "megabatchmargin": "info_nce with a large batch and gradient_cache",
    "mse": TAUGHT,
    "onlinecontrastive": GRADED,
    "softmax": GRADED,
    "triplet": OWN,
}


def other_index(name: str) -> str:
    """Return what another library's index is called here, in a sentence; empty if unknown."""
    return INDEX_NAMES.get(_plain(name).rstrip("0123456789"), "")


def refuse_other_loss(name: str, where: str) -> None:
    """Raise ``ConfigError`` for another library's loss, with the one to take here."""
    if name in LOSSES:
        return
    plain = _plain(name).removesuffix("loss").removeprefix("sparse").removeprefix("cached")
    cached = ", and gradient_cache: 32 makes it cached" if "cached" in name.lower() else ""
    if plain in LOSS_NAMES:
        here = f"here it is called {LOSS_NAMES[plain]}{cached}"
    elif plain in NEAREST:
        here = f"the nearest here is {NEAREST[plain]}{cached}"
    else:
        return
    raise ConfigError(f"{where}.type: unknown type {name!r}; {here}")


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
