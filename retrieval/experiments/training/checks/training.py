"""Checks the section of one training run before any work: its parts, alone and together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.build import check
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.table import ENCODERS, RERANKERS
from sluice.encoders.transformer.from_scratch import check_fresh, is_fresh
from sluice.retrieval.config.components import (
    START_KEY,
    Allow,
    check_head,
    check_lengths,
    check_measures,
    check_new_heads,
    check_towers,
    trained_kind,
)
from sluice.retrieval.config.sections import TrainingSection
from sluice.retrieval.experiments.training.checks.experts import check_experts
from sluice.retrieval.experiments.training.checks.losses import check_loss
from sluice.retrieval.experiments.training.checks.negatives import (
    check_live_negatives,
    check_negatives,
    check_refresh,
)
from sluice.retrieval.experiments.training.checks.sources import (
    check_learnable,
    check_list_scores,
    check_negative_queries,
    check_sources,
)
from sluice.retrieval.experiments.training.checks.sparse import check_codes, check_concepts
from sluice.retrieval.experiments.training.checks.tokens import (
    check_cache,
    check_matching,
    check_scoring,
    check_spans,
)
from sluice.retrieval.experiments.training.checks.trainer import check_trainer
from sluice.retrieval.experiments.training.checks.tuning import check_tuning
from sluice.retrieval.experiments.training.identifiers import check_identifiers
from sluice.retrieval.retrievers.candidate_lists import RANDOM, listed
from sluice.retrieval.training_data.example_sources import check_examples, searched_with
from sluice.retrieval.training_data.teachers.teachers import check_teacher

if TYPE_CHECKING:
    from sluice.training import Mining
    from sluice.training.losses.base import LossBase

STATIC = ("bow", "idf")  # `query_model` of queries without a network


def check_training(
    section: TrainingSection, where: str, allow: Allow = None, *, with_dataset: bool = True
) -> None:
    """Check a training run's encoder, loss, negatives and trainer settings, and that they fit.

    Without a dataset a cross-encoder is evaluated over its examples' documents.
    """
    from sluice.training.sparsity.settings import Sparsity

    prefix = f"{where}." if where else ""
    encoder = {key: value for key, value in section.encoder.items() if key != START_KEY}
    fresh = is_fresh(section.encoder.get(START_KEY))
    if fresh:
        check_fresh(section.encoder, f"{prefix}encoder")
        encoder["model"] = START_KEY  # is made when training begins
    check(encoder, {**ENCODERS, **RERANKERS}, where=f"{prefix}encoder", allow=allow)
    check_towers(encoder, where=f"{prefix}encoder")
    check_lengths(encoder, where=f"{prefix}encoder")
    check_new_heads(encoder, f"{prefix}encoder")
    kind = trained_kind(encoder)
    _check_encoder(encoder, kind, f"{prefix}encoder")
    if START_KEY in section.encoder and kind != "splade" and not fresh:
        raise ConfigError(
            f"{prefix}encoder.{START_KEY}: only splade encoders take a start (others: type fresh)"
        )
    check_head(section.encoder, f"{prefix}encoder", f"write {START_KEY}: true beside model")
    if section.sparsity is not None:
        if kind in (
            "dense", "gaussian", "hypencoder", "pseudo_queries", "tokens", "three_heads",
            "cross_encoder", "listwise", "seal", "dsi",
        ):  # fmt: skip
            raise ConfigError(f"{prefix}sparsity: is for splade; a {kind} encoder has no terms")
        Sparsity.from_config(section.sparsity)
    check_tuning(section, prefix, allow)
    _check_files(section, prefix, allow)
    check_sources(section, prefix, allow)
    check_experts(section, prefix)
    check_concepts(section, prefix)
    check_codes(section, prefix)
    if section.teacher is not None:
        check_teacher(section.teacher, f"{prefix}teacher", allow)
    mining = None
    if section.negatives is not None:
        mining = check_negatives(section.negatives, f"{prefix}negatives", allow)
    if section.evaluate is not None:
        check_measures(section.evaluate.measures, f"{prefix}evaluate.measures")
    check_trainer(section, prefix)
    loss = check_loss(section, prefix, allow)
    check_matching(section, loss, prefix)
    check_scoring(section, loss, prefix)
    check_list_scores(section, loss, prefix)
    check_negative_queries(section, loss, prefix)
    check_learnable(section, loss, f"{prefix}examples", allow)
    check_cache(section, loss, prefix)
    check_spans(section, loss, prefix)
    check_identifiers(section, prefix, allow, with_dataset=with_dataset)
    check_combinations(section, loss, mining, prefix, with_dataset=with_dataset)


def _check_encoder(encoder: Mapping[str, Any], kind: str | None, where: str) -> None:
    from sluice.encoders.transformer.projection import check_projection

    if kind == "bm25":
        raise ConfigError(f"{where}: bm25 counts words; it is fitted, not trained")
    if kind == "rrra":
        raise ConfigError(
            f"{where}: an rrra adapter is fitted, by `sluice fit adapter`, or trained beside a "
            "dense encoder by loss: {type: rrra}"
        )
    if encoder.get("prune_quantile") is not None:
        raise ConfigError(
            f"{where}.prune_quantile: prunes documents after encoding and does nothing in "
            "training; give it to the encoder of a retriever"
        )
    if kind in ("dense", "gaussian", "pseudo_queries") and encoder.get("projection") is not None:
        try:
            check_projection(encoder["projection"])
        except ConfigError as error:
            raise ConfigError(f"{where}.{error}") from None


def _check_files(section: TrainingSection, prefix: str, allow: Allow) -> None:
    """Check the files that examples, and queries which negatives answer, are read from."""
    if section.examples is not None:
        check_examples(section.examples, f"{prefix}examples", allow)
    if section.answered is not None:
        files = {"type": "file", "file": listed(section.answered)}
        check_examples(files, f"{prefix}answered", allow)


def check_combinations(
    section: TrainingSection,
    loss: LossBase,
    mining: Mining | None,
    prefix: str,
    *,
    with_dataset: bool = True,
) -> None:
    """Raise ``ConfigError`` where parts contradict each other, or one would change nothing.

    ``mining`` is what ``negatives`` of type mined describes. Otherwise each fault would show only
    after hours of mining and scoring, or never.
    """
    kind, negatives = trained_kind(section.encoder), section.negatives or {}
    if negatives.get("type") == "live":
        check_live_negatives(section, kind, prefix)
    elif negatives.get("refresh") is not None and mining is not None:
        check_refresh(section, mining, prefix)
    reranks = kind in ("cross_encoder", "listwise") and section.evaluate is not None
    by_words = section.evaluate is not None and section.evaluate.by == "examples"
    found = negatives or by_words or searched_with(section.examples) is not None
    if reranks and not found and with_dataset:
        raise ConfigError(
            f"{prefix}evaluate: a reranker reranks what a retriever finds; give negatives or "
            "examples.retriever, or leave evaluate out"
        )
    if reranks and listed(negatives.get("retriever")) == [RANDOM] and with_dataset:
        raise ConfigError(
            f"{prefix}evaluate: a reranker reranks what the negatives' retriever finds, and "
            "random finds nothing; add a retriever (retriever: [bm25, random]), or leave evaluate "
            "out"
        )
    if section.examples is not None:
        for key, usual in (("positives", 1), ("labels", "binary")):
            if getattr(section, key) != usual:
                raise ConfigError(
                    f"{prefix}{key}: is for examples made from the dataset's judgements; those "
                    f"under examples have their own: leave {key} out"
                )
    learns = loss.needs_teacher or loss.teacher_matrix or loss.teacher_vectors
    unused = not learns and ":" not in section.loss["type"]
    if section.teacher is not None and unused:
        raise ConfigError(
            f"{prefix}teacher: {section.loss['type']} learns nothing from a teacher's scores; add "
            "a loss that does (loss: {type: sum, losses: [{type: kl_div}, ...]}), or leave teacher "
            "out"
        )
    if section.answered is not None and not loss.wants_answered:
        raise ConfigError(
            f"{prefix}answered: {section.loss['type']} looks at no queries that negatives answer; "
            "use the loss clp, or leave answered out"
        )
    _check_head(section, kind, prefix)
    model, trained = section.encoder.get("query_model"), section.encoder.get("train_idf")
    for key in ("query", "target_query_terms") if model in STATIC and not trained else ():
        if (section.sparsity or {}).get(key) is not None:
            raise ConfigError(
                f"{prefix}sparsity.{key}: with query_model: {model} a query's terms are its own "
                "words, which no penalty changes; leave it out"
            )


def _check_head(section: TrainingSection, kind: str | None, prefix: str) -> None:
    if section.head_learning_rate is None:
        return
    if kind == "dense":
        raise ConfigError(
            f"{prefix}head_learning_rate: a dense encoder has no head; it is for splade, tokens "
            "and cross_encoder: set trainer.learning_rate"
        )
    tuned = (section.tuning or {}).get("type")
    if section.encoder.get("type") == "splade" and tuned not in (None, "bitfit", "ln_tuning"):
        raise ConfigError(
            f"{prefix}head_learning_rate: with tuning: {{type: {tuned}}} a splade encoder's head "
            "is not trained; leave it out"
        )
