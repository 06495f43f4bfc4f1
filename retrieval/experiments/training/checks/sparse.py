"""Checks trained sparse encoders that are not over words: concept and CSR encoders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.splade.concepts.head import checked_settings
from sluice.encoders.splade.concepts.names import read_concepts

if TYPE_CHECKING:
    from sluice.retrieval.config.sections import TrainingSection


def check_codes(section: TrainingSection, prefix: str) -> None:
    """Raise ``ConfigError`` for a loss over words, sparsity or live candidates of a CSR encoder."""
    if section.encoder.get("type") != "csr":
        return
    _refuse_words(section, prefix, "CSR")
    if section.sparsity is not None:
        raise ConfigError(
            f"{prefix}sparsity: a CSR encoder keeps top_k latents of every text, trained or not; "
            "leave it out, and set encoder.top_k for fewer"
        )
    if section.loss["type"] == "csr" and (section.negatives or {}).get("type") == "live":
        raise ConfigError(
            f"{prefix}negatives: live candidates are frozen codes, and csr reconstructs the dense "
            "vectors of both sides; mine the negatives, or take a loss over scores, such as adore"
        )


def check_concepts(section: TrainingSection, prefix: str) -> None:
    """Raise ``ConfigError`` for a list of concepts that cannot be, or a loss over words."""
    spec, where = section.encoder, f"{prefix}encoder"
    if spec.get("type") != "concepts":
        return
    _refuse_words(section, prefix, "concept")
    try:
        checked_settings(*(spec.get(key) for key in ("read", "scale", "threshold")))
        if spec.get("vocabulary") is not None:
            read_concepts(spec["vocabulary"])
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from None


def _refuse_words(section: TrainingSection, prefix: str, name: str) -> None:
    if section.loss["type"] == "masked_language":
        raise ConfigError(
            f"{prefix}loss: masked_language hides words of the vocabulary, and a {name} encoder "
            "has none; take a loss over scores, such as info_nce"
        )
