"""Checks the section of one training run before any work: its parts, alone and together."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.build import check
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.table import ENCODERS, RERANKERS
from sluice.encoders.transformer.from_scratch import check_fresh, is_fresh
from sluice.retrieval.config.component_types import NEGATIVES
from sluice.retrieval.config.components import (
    START_KEY,
    Allow,
    check_head,
    check_index,
    check_measures,
    check_new_heads,
    check_retriever,
    check_towers,
    make_loss,
    towers_in,
    trained_kind,
)
from sluice.retrieval.config.other_names import losses_for
from sluice.retrieval.config.sections import RetrieverSection, TrainingSection, checked
from sluice.retrieval.experiments.training.dev_evaluation import dev_measure
from sluice.retrieval.experiments.training.expert_checks import check_experts
from sluice.retrieval.experiments.training.identifiers import check_identifiers
from sluice.retrieval.experiments.training.live_training import check_live
from sluice.retrieval.experiments.training.source_checks import (
    check_list_scores,
    check_negative_queries,
    check_sources,
)
from sluice.retrieval.experiments.training.sparse_checks import check_codes, check_concepts
from sluice.retrieval.experiments.training.token_checks import (
    check_cache,
    check_matching,
    check_scoring,
    check_spans,
)
from sluice.retrieval.experiments.training.tuning_checks import check_tuning
from sluice.retrieval.retrievers.candidate_lists import RANDOM, SELF, listed, named_sources
from sluice.retrieval.training_data.example_sources import (
    changes,
    check_examples,
    searched_with,
)
from sluice.retrieval.training_data.files.corpus_examples import check_texts_alone
from sluice.retrieval.training_data.mining import mining_of
from sluice.retrieval.training_data.refreshing.settings import RefreshSettings
from sluice.retrieval.training_data.teachers.batch_teacher import check_batch_teacher
from sluice.retrieval.training_data.teachers.judges import JUDGE, check_judge
from sluice.retrieval.training_data.teachers.teachers import check_teacher
from sluice.training.losses.base import WRITERS

if TYPE_CHECKING:
    from sluice.training import Mining
    from sluice.training.losses.base import LossBase

LOWEST = {  # of the numbers in `trainer`
    "gradient_accumulation_steps": 1,
    "per_device_train_batch_size": 1,
    "max_grad_norm": 0,
    "weight_decay": 0,
}
ABOVE_ZERO = ("learning_rate", "num_train_epochs")
STATIC = ("bow", "idf")  # `query_model` of queries without a network
RETRIEVER = (
    "a name under retrievers or pipelines, a retriever folder, an inline {encoder, index}, "
    "a .trec file, or a list of these"
)
# What `trainer.report_to` may name, with its package where the two differ.
PACKAGES = {"azure_ml": "azureml-mlflow", "comet_ml": "comet_ml", "flyte": "flytekit"}


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
        mining = _check_negatives(section.negatives, f"{prefix}negatives", allow)
    if section.evaluate is not None:
        check_measures(section.evaluate.measures, f"{prefix}evaluate.measures")
    _check_trainer(section, prefix)
    loss = _check_loss(section, prefix, allow)
    check_matching(section, loss, prefix)
    check_scoring(section, loss, prefix)
    check_list_scores(section, loss, prefix)
    check_negative_queries(section, loss, prefix)
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


def _check_loss(section: TrainingSection, prefix: str, allow: Allow) -> LossBase:
    """Return the loss; check that it fits the encoder, and has something to beat a positive."""
    loss = make_loss(section.loss, where=f"{prefix}loss", allow=allow)
    kind, name = trained_kind(section.encoder), section.loss["type"]
    own = section.encoder.get("type")
    _check_kind(loss, kind, str(kind if own == "towers" else own), name, prefix)
    _check_taught(section, loss, prefix)
    _check_layers(section, loss, prefix)
    if (section.negatives or {}).get("type") == "live":
        if section.sparsity is not None:
            raise ConfigError(f"{prefix}sparsity: live candidates are frozen vectors; leave it out")
    elif loss.ranks == "columns":
        raise ConfigError(
            f"{prefix}loss: {name} counts places in a retrieved list: give negatives: {{type: "
            "live}, or ranks: scores"
        )
    named = listed((section.negatives or {}).get("retriever"))
    if kind in ("cross_encoder", "listwise") and SELF in named:
        raise ConfigError(
            f"{prefix}negatives.retriever: self: a {kind} cannot retrieve; name a retriever"
        )
    if check_texts_alone(section, loss, prefix):
        return loss
    if section.negatives is not None or section.examples is not None:  # files are read later
        return loss
    if loss.teacher_vectors:  # which every text has
        return loss
    if kind == "cross_encoder":
        alone = "a cross_encoder learns from each query's own documents"
    elif loss.negatives == "own":
        alone = f"{name} compares a positive with the query's own documents only"
    elif section.trainer.get("per_device_train_batch_size") == 1:
        alone = "a batch of 1 has no other documents"
    else:
        return loss
    raise ConfigError(
        f"{prefix}negatives: missing: {alone}, so nothing would be learnt without negatives"
    )


def _check_kind(loss: LossBase, kind: str | None, own: str, name: str, prefix: str) -> None:
    """Check that the loss trains this type of encoder."""
    encoders = loss.encoders
    if encoders is None and kind in WRITERS:  # which have no vectors to score
        encoders = ("encoders of vectors",)
    if encoders is None and kind == "three_heads":  # one head, and the others share its network
        encoders = ("dense", "splade", "tokens")
    if encoders is None or kind not in (*ENCODERS, *RERANKERS):
        return
    if kind not in encoders and own not in encoders:
        called = f"{own} encoder" if own == kind else f"{own} encoder, trained as {kind},"
        raise ConfigError(
            f"{prefix}loss: {name} trains {', '.join(encoders)}; a {called} takes "
            f"{', '.join(losses_for(kind, own))}"
        )


def _check_layers(section: TrainingSection, loss: LossBase, prefix: str) -> None:
    """Check that a loss over the vectors of layers gets one of each."""
    if loss.layers is None:
        return
    for place, encoder in {"": section.encoder, **towers_in(section.encoder)}.items():
        if encoder.get("top_layers", 1) != 1:
            where = ".".join(filter(None, [f"{prefix}encoder", place, "top_layers"]))
            raise ConfigError(
                f"{where}: {encoder['top_layers']} layers make one vector, and "
                f"{section.loss['type']} learns from a vector of each; leave it out"
            )


def _check_taught(section: TrainingSection, loss: LossBase, prefix: str) -> None:
    """Check that the loss has the teacher it learns from."""
    name = section.loss["type"]
    if loss.needs_teacher and section.teacher is None and section.examples is None:
        raise ConfigError(
            f"{prefix}teacher: missing: {name} learns from a teacher's scores; name a reranker or "
            "a file that `sluice teach distil` wrote"
        )
    if loss.teacher_matrix or loss.teacher_vectors:
        if section.teacher is None:
            raise ConfigError(
                f"{prefix}teacher: missing: {name} asks a teacher batch by batch; name an encoder "
                "(dense, splade, tokens, bm25)"
            )
        check_batch_teacher(section.teacher, f"{prefix}teacher", vectors=loss.teacher_vectors)


def _check_negatives(spec: Mapping[str, Any], where: str, allow: Allow) -> Any:
    """Check ``negatives``; return the ``Mining`` of those that are mined."""
    if spec.get("type") not in NEGATIVES:
        raise ConfigError(f"{where}.type: {spec.get('type')!r}; expected 'mined' or 'live'")
    if spec["type"] == "live":
        check_live(spec, where)
        return None
    if "refresh" in spec:
        RefreshSettings.of(spec["refresh"], f"{where}.refresh")
    if "retriever" not in spec:
        raise ConfigError(f"{where}: needs 'retriever': {RETRIEVER}")
    for place, lists in named_sources(spec, f"{where}.retriever"):
        if isinstance(lists, Mapping):
            try:
                section = checked(lists, RetrieverSection)
            except ConfigError as error:
                raise ConfigError(f"{place}: {error}") from None
            check_retriever(section, place, allow)
        elif not isinstance(lists, str) or not lists:
            raise ConfigError(f"{place}: {lists!r}; expected {RETRIEVER}")
    check_shares(spec, mining_of(spec, where), where)
    if spec.get("judge") is not None:
        check_judge(spec["judge"], f"{where}.judge", allow=allow)
    elif mining_of(spec, where).judged:
        raise ConfigError(f"{where}: needs 'judge': {JUDGE}")
    return mining_of(spec, where)


def check_shares(spec: Mapping[str, Any], mining: Mining, where: str) -> None:
    """Check that every list has its share, and that lists have the scores that are read."""
    lists = listed(spec["retriever"])
    if mining.shares is not None and len(mining.shares) != len(lists):
        raise ConfigError(
            f"{where}.shares: {len(mining.shares)} for {len(lists)} retrievers; expected one for "
            "each"
        )
    if mining.shares is not None and len(lists) == 1:
        raise ConfigError(f"{where}.shares: there is a single retriever; leave shares out")
    if mining.judge_gamma is not None and len(lists) > 1:
        raise ConfigError(
            f"{where}.judge_gamma: multiplies the scores of one list, and here are {len(lists)}, "
            "whose scores do not compare; name one retriever"
        )
    if RANDOM in lists and mining.judge_gamma is not None:
        raise ConfigError(
            f"{where}.judge_gamma: random documents have no scores that it could multiply; leave "
            "it out"
        )
    if RANDOM in lists and mining.min_score is not None:
        raise ConfigError(
            f"{where}.min_score: random documents have no scores that could reach it; leave one of "
            "them out"
        )


def _check_trainer(section: TrainingSection, prefix: str) -> None:
    """Make the trainer's arguments as training will, and check what they let pass."""
    from sluice.training.loop.arguments import training_arguments

    _check_reporting(section.trainer.get("report_to"), f"{prefix}trainer.report_to")
    try:
        with tempfile.TemporaryDirectory() as folder:
            training_arguments(
                section.trainer,
                output=Path(folder),
                seed=0,
                evaluate_every=section.evaluate.every if section.evaluate else None,
                evaluated=section.evaluate is not None,
                metric=dev_measure(section.evaluate) if section.evaluate else None,
            )
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from None
    for key, value in section.trainer.items():
        where = f"{prefix}trainer.{key}"
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{where}: {value!r}; expected a finite number")
        if value is not None and key in LOWEST and value < LOWEST[key]:
            raise ConfigError(f"{where}: {value!r}; expected {LOWEST[key]} or more")
        if value is not None and key in ABOVE_ZERO and value <= 0:
            raise ConfigError(f"{where}: {value!r}; expected a number above 0")


def _check_reporting(report_to: Any, where: str) -> None:
    """Check that what a run reports to is known and installed; the Trainer looks at its start."""
    from transformers.integrations import get_reporting_integration_callbacks, integration_utils

    names = report_to if isinstance(report_to, list) else [report_to]
    for name in names:
        if name in (None, "none", "all", "tensorboard"):  # the trainer's arguments know these
            continue
        try:
            get_reporting_integration_callbacks([name])
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
        package = PACKAGES.get(name, name)
        short = {"azure_ml": "azureml", "comet_ml": "comet"}.get(name, package)
        available = getattr(integration_utils, f"is_{short}_available", None)
        if available is not None and not available():
            raise ConfigError(f"{where}: {name} is not installed: pip install {package}")


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
        _check_live(section, kind, prefix)
    elif negatives.get("refresh") is not None and mining is not None:
        _check_refresh(section, mining, prefix)
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


def _check_live(section: TrainingSection, kind: str | None, prefix: str) -> None:
    if kind in ("cross_encoder", "three_heads", "listwise"):
        raise ConfigError(f"{prefix}negatives: live candidates are for encoders of queries alone")
    if section.encoder.get("type") == "towers" and section.encoder.get("freeze") != "document":
        raise ConfigError(
            f"{prefix}encoder.freeze: {section.encoder.get('freeze', 'none')!r}; live candidates "
            "come from a frozen index, so the document tower must not change: freeze: document"
        )
    if section.teacher is not None:
        raise ConfigError(
            f"{prefix}teacher: live candidates change at every step, and no teacher has scored "
            "them; leave it out, or mine the negatives"
        )
    index = (section.negatives or {}).get("index")
    check_index(index, section.encoder, where=f"{prefix}negatives.index")


def _check_refresh(section: TrainingSection, mining: Mining, prefix: str) -> None:
    named = listed((section.negatives or {}).get("retriever"))
    changing = SELF in named or RANDOM in named
    if mining.sampling != "random" and not changes(section.examples) and not changing:
        raise ConfigError(
            f"{prefix}negatives.refresh: would mine the same negatives each time; add self to "
            "retriever (the encoder as it is then), set sampling: random, or leave refresh out"
        )
    where = f"{prefix}negatives.refresh"
    if RefreshSettings.of((section.negatives or {})["refresh"], where).beside and SELF not in named:
        raise ConfigError(
            f"{where}: another process mines with copies of the encoder, and these lists ask none; "
            "add self to retriever, or write a number of steps: then training mines itself"
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
