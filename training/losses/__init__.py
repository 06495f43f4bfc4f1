"""The losses by their names in YAML; a new one is one file and one line here."""

from __future__ import annotations

LOSSES: dict[str, str] = {
    "bce": "training.losses.bce:BCE",
    "info_nce": "training.losses.info_nce:InfoNCE",
    "localized_softmax": "training.losses.localized_softmax:LocalizedSoftmax",
}
