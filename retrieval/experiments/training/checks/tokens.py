"""Checks training runs on vectors of other kinds: of tokens, of one way, or spans of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.table import ENCODERS, MATCHING, RERANKERS
from sluice.retrieval.config.components import ONE_WAY_ENCODERS, trained_kind
from sluice.retrieval.config.sections import TrainingSection
from sluice.training.losses.base import writes

if TYPE_CHECKING:
    from sluice.training.batches.token_scores import TokenScoring
    from sluice.training.losses.base import LossBase


def token_scoring(section: TrainingSection, where: str = "") -> TokenScoring | None:
    """Return how a section's token vectors are scored; None where it does not say."""
    if section.scoring is None and section.xtr_top_k is None:
        return None
    from sluice.training.batches.token_scores import TokenScoring

    try:
        return TokenScoring(section.scoring or "max_sim", section.xtr_top_k)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from None


def check_matching(section: TrainingSection, loss: LossBase, prefix: str) -> None:
    """Raise ``ConfigError`` where parts do not go with a ranker over token vectors, or a prompt."""
    kind = section.encoder.get("type")
    if kind not in (*MATCHING, "true_false"):
        return
    if loss.texts:
        raise ConfigError(
            f"{prefix}loss: {section.loss['type']} learns from vectors of single texts, and a "
            f"{kind} has none; take a loss of scores, such as localized_softmax"
        )
    if kind == "true_false":
        if section.head_learning_rate is not None:
            raise ConfigError(
                f"{prefix}head_learning_rate: a true_false ranker has no head; set "
                "trainer.learning_rate"
            )
        return
    for key in ("freeze", "tuning"):
        if getattr(section, key) is not None:
            raise ConfigError(
                f"{prefix}{key}: is for transformers; the vectors of a {kind} stay as they are, "
                "unless it has train_vectors: true; leave it out"
            )
    ranker: Any = resolve(MATCHING[str(kind)].removesuffix(".from_pretrained"))
    if section.encoder.get("train_vectors") and not ranker.head.differentiable:
        raise ConfigError(
            f"{prefix}encoder.train_vectors: {kind} counts similarities, so that vectors learn "
            "nothing from it; leave it out, or take knrm"
        )
    if section.head_learning_rate is not None and not section.encoder.get("train_vectors"):
        raise ConfigError(
            f"{prefix}head_learning_rate: nothing but the head of a {kind} is trained without "
            "train_vectors: true; set trainer.learning_rate"
        )


def check_scoring(section: TrainingSection, loss: LossBase, prefix: str) -> None:
    """Raise ``ConfigError`` where ``scoring`` is for no token vectors, or parts do not go with it.

    Or where the loss compares vectors that only a query and a document can be compared by.

    An encoder of one's own is checked when it is there.
    """
    from sluice.training.batches.token_scores import TokenScoring
    from sluice.training.loop.parts import (
        OWN_SCORES,
        check_one_way_loss,
        check_own_loss,
        check_token_loss,
    )

    kind = trained_kind(section.encoder)
    if kind in ONE_WAY_ENCODERS:
        check_one_way_loss(loss, f"{prefix}loss")
    if kind in OWN_SCORES:
        if (section.negatives or {}).get("type") == "live":
            raise ConfigError(
                f"{prefix}negatives: live candidates are for dense and splade; mine them: {{type: "
                "mined, retriever: self, refresh: 100}"
            )
        check_own_loss(loss, kind, f"{prefix}loss")
    if kind != "tokens":
        key = "scoring" if section.scoring is not None else "xtr_top_k"
        said = (section.scoring, section.xtr_top_k) != (None, None)
        if said and kind in (*ENCODERS, *RERANKERS):
            raise ConfigError(
                f"{prefix}{key}: is for encoders of token vectors (encoder: {{type: tokens}}), and "
                f"this one is {kind}; leave it out"
            )
        return
    scoring = token_scoring(section, prefix) or TokenScoring()
    if (section.negatives or {}).get("type") == "live":
        raise ConfigError(
            f"{prefix}negatives: live candidates are for dense and splade; mine them: {{type: "
            "mined, retriever: self, refresh: 100}"
        )
    unit = section.encoder.get("normalize") is not False
    check_token_loss(loss, scoring, f"{prefix}loss", unit=unit)


def check_cache(section: TrainingSection, loss: LossBase, prefix: str) -> None:
    """Raise ``ConfigError`` for a gradient cache of a loss that needs more than vectors."""
    if section.gradient_cache is not None and loss.runs_network:
        raise ConfigError(
            f"{prefix}gradient_cache: {section.loss['type']} writes with the network itself, not "
            "from vectors; leave it out, and take smaller batches"
        )


def check_spans(section: TrainingSection, loss: LossBase, prefix: str) -> None:
    """Raise ``ConfigError`` for settings that a loss of spans does not read."""
    if not writes(loss):
        return
    name = section.loss["type"]
    if loss.encoders == ("listwise",):
        for key in ("gradient_cache", "head_learning_rate", "answered"):
            if getattr(section, key) is not None:
                raise ConfigError(
                    f"{prefix}{key}: {name} learns what a language model writes, which has no "
                    "vectors and no head; leave it out"
                )
        return
    for key in ("negatives", "teacher", "gradient_cache", "head_learning_rate", "answered"):
        if getattr(section, key) is not None:
            raise ConfigError(f"{prefix}{key}: {name} learns from positives alone; leave it out")
