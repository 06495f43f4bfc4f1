"""Parts of a training that do not go together, or of which one would have no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.config.components import vector_kind
from sluice.retrieval.config.sections import TrainingSection
from sluice.retrieval.retrievers.candidate_lists import SELF, listed
from sluice.retrieval.training_data.example_sources import changes

if TYPE_CHECKING:
    from sluice.training import Mining
    from sluice.training.losses.base import LossBase

STATIC = ("bow", "idf")  # `query_model` of queries without a network


def check_combinations(
    section: TrainingSection, loss: LossBase, mining: Mining | None, prefix: str
) -> None:
    """Raise ``ConfigError`` where parts contradict each other, or one would change nothing.

    ``mining`` is what ``negatives`` of type mined describes. Each fault would else show after hours
    of mining and scoring, or never.
    """
    kind, negatives = vector_kind(section.encoder), section.negatives or {}
    if negatives.get("type") == "live":
        _check_live(section, kind, prefix)
    elif negatives.get("refresh") is not None and mining is not None:
        _check_refresh(section, mining, prefix)
    if kind == "cross_encoder" and section.evaluate is not None and not negatives:
        raise ConfigError(
            f"{prefix}evaluate: a cross-encoder reranks what the negatives' retriever finds; give "
            "negatives, or leave evaluate out"
        )
    if section.examples is not None:
        for key, usual in (("positives", 1), ("labels", "binary")):
            if getattr(section, key) != usual:
                raise ConfigError(
                    f"{prefix}{key}: is for examples made from the dataset's judgements; those "
                    f"under examples have their own: leave {key} out"
                )
    unused = not loss.needs_teacher and ":" not in section.loss["type"]
    if section.teacher is not None and unused:
        raise ConfigError(
            f"{prefix}teacher: {section.loss['type']} learns nothing from a teacher's scores; add "
            "a loss that does (loss: {type: sum, losses: [{type: kl_div}, ...]}), or leave teacher "
            "out"
        )
    _check_head(section, kind, prefix)
    _check_static_queries(section, prefix)


def _check_live(section: TrainingSection, kind: str | None, prefix: str) -> None:
    if kind == "cross_encoder":
        raise ConfigError(f"{prefix}negatives: live candidates are for encoders of queries alone")
    if section.encoder.get("type") == "towers" and section.encoder.get("freeze") != "document":
        raise ConfigError(
            f"{prefix}encoder.freeze: {section.encoder.get('freeze', 'none')!r}; live candidates "
            "come from a frozen index, so the documents' tower must not move: freeze: document"
        )
    if section.teacher is not None:
        raise ConfigError(
            f"{prefix}teacher: live candidates change at every step, and no teacher has scored "
            "them; leave it out, or mine the negatives"
        )


def _check_refresh(section: TrainingSection, mining: Mining, prefix: str) -> None:
    named = listed((section.negatives or {}).get("retriever"))
    if mining.sampling != "random" and not changes(section.examples) and SELF not in named:
        raise ConfigError(
            f"{prefix}negatives.refresh: would mine the same negatives each time; add self to "
            "retriever (the encoder as it is then), set sampling: random, or leave refresh out"
        )


def _check_head(section: TrainingSection, kind: str | None, prefix: str) -> None:
    if section.head_learning_rate is None:
        return
    if kind == "dense":
        raise ConfigError(
            f"{prefix}head_learning_rate: a dense encoder has no head; it is for splade and "
            "cross_encoder: set trainer.learning_rate"
        )
    tuned = (section.tuning or {}).get("type")
    if kind == "splade" and tuned not in (None, "bitfit", "ln_tuning"):
        raise ConfigError(
            f"{prefix}head_learning_rate: with tuning: {{type: {tuned}}} a splade encoder's head "
            "is not trained; leave it out"
        )


def _check_static_queries(section: TrainingSection, prefix: str) -> None:
    model, trained = section.encoder.get("query_model"), section.encoder.get("train_idf")
    if model not in STATIC or trained:
        return
    for key in ("query", "target_query_terms"):
        if (section.sparsity or {}).get(key) is not None:
            raise ConfigError(
                f"{prefix}sparsity.{key}: with query_model: {model} a query's terms are its own "
                "words, which no penalty changes; leave it out"
            )
