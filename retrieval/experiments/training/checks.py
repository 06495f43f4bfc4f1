"""What is checked of a training before any work: its parts, and that they can learn together."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.build import build, check
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.table import ENCODERS, RERANKERS, TUNINGS
from sluice.encoders.transformer.from_scratch import check_fresh, is_fresh
from sluice.retrieval.config.components import (
    START_KEY,
    Allow,
    check_measures,
    check_retriever,
    check_towers,
    make_loss,
    vector_kind,
)
from sluice.retrieval.config.sections import RetrieverSection, TrainingSection, checked
from sluice.retrieval.experiments.training.combinations import check_combinations
from sluice.retrieval.experiments.training.dev_evaluation import dev_measure
from sluice.retrieval.experiments.training.live_training import check_live
from sluice.retrieval.retrievers.candidate_lists import SELF, listed, named_sources
from sluice.retrieval.training_data.example_sources import check_examples
from sluice.retrieval.training_data.files.text_examples import check_texts_alone
from sluice.retrieval.training_data.mining import mining_of
from sluice.retrieval.training_data.teachers.judges import JUDGE, check_judge
from sluice.retrieval.training_data.teachers.teachers import check_teacher
from sluice.training.losses.base import LossBase

LOWEST = {  # of the numbers in `trainer`
    "gradient_accumulation_steps": 1,
    "per_device_train_batch_size": 1,
    "max_grad_norm": 0,
    "weight_decay": 0,
}
ABOVE_ZERO = ("learning_rate", "num_train_epochs")


def check_training(section: TrainingSection, where: str, allow: Allow = None) -> None:
    """Check a training run's encoder, loss, negatives and trainer settings, and that they fit."""
    from sluice.training.sparsity.settings import Sparsity

    prefix = f"{where}." if where else ""
    encoder = {key: value for key, value in section.encoder.items() if key != START_KEY}
    fresh = is_fresh(section.encoder.get(START_KEY))
    if fresh:
        check_fresh(section.encoder, f"{prefix}encoder")
        encoder["model"] = START_KEY  # is made when the training begins
    check(encoder, {**ENCODERS, **RERANKERS}, where=f"{prefix}encoder", allow=allow)
    check_towers(encoder, where=f"{prefix}encoder")
    kind = vector_kind(encoder)
    if kind == "bm25":
        raise ConfigError(f"{prefix}encoder: bm25 counts words; it is fitted, not trained")
    if encoder.get("prune_quantile") is not None:
        raise ConfigError(
            f"{prefix}encoder.prune_quantile: prunes documents after encoding and does nothing in "
            "training; give it to the encoder of a retriever"
        )
    if START_KEY in section.encoder and kind != "splade" and not fresh:
        raise ConfigError(
            f"{prefix}encoder.{START_KEY}: only splade encoders take a start (others: type fresh)"
        )
    if section.sparsity is not None:
        if kind in ("dense", "cross_encoder"):
            raise ConfigError(f"{prefix}sparsity: is for splade; a {kind} encoder has no terms")
        Sparsity.from_config(section.sparsity)
    if section.tuning is not None:
        build(section.tuning, TUNINGS, where=f"{prefix}tuning", allow=allow)
    if section.examples is not None:
        check_examples(section.examples, f"{prefix}examples", allow)
    if section.teacher is not None:
        check_teacher(section.teacher, f"{prefix}teacher", allow)
    mining = None
    if section.negatives is not None:
        mining = _check_negatives(section.negatives, f"{prefix}negatives", allow)
    if section.evaluate is not None:
        check_measures(section.evaluate.measures, f"{prefix}evaluate.measures")
    _check_trainer(section, prefix)
    check_combinations(section, _check_loss(section, prefix, allow), mining, prefix)


def _check_loss(section: TrainingSection, prefix: str, allow: Allow) -> LossBase:
    """Return the loss; check that it fits the encoder, and has something to beat a positive."""
    loss = make_loss(section.loss, where=f"{prefix}loss", allow=allow)
    kind, name = vector_kind(section.encoder), section.loss["type"]
    fitting = loss.encoders
    if fitting is not None and kind in (*ENCODERS, *RERANKERS) and kind not in fitting:
        raise ConfigError(
            f"{prefix}loss: {name} trains {', '.join(fitting)}; a {kind} encoder takes info_nce"
        )
    untaught = section.teacher is None and section.examples is None
    if loss.needs_teacher and untaught:
        raise ConfigError(
            f"{prefix}teacher: needed: {name} learns from a teacher's scores; name a reranker or a "
            "file that `sluice teach distil` wrote"
        )
    if (section.negatives or {}).get("type") == "live":
        if section.sparsity is not None:
            raise ConfigError(f"{prefix}sparsity: live candidates are frozen vectors; leave it out")
    elif loss.ranks == "columns":
        raise ConfigError(
            f"{prefix}loss: {name} counts places in a retrieved list: give negatives: {{type: "
            "live}, or ranks: scores"
        )
    if kind == "cross_encoder" and SELF in listed((section.negatives or {}).get("retriever")):
        raise ConfigError(f"{prefix}negatives.retriever: a cross_encoder finds nothing by itself")
    if check_texts_alone(section, loss, prefix):
        return loss
    if section.negatives is not None or section.examples is not None:  # files are read later
        return loss
    if kind == "cross_encoder":
        alone = "a cross_encoder learns from each query's own documents"
    elif loss.negatives == "own":
        alone = f"{name} holds a positive against the query's own documents only"
    elif section.trainer.get("per_device_train_batch_size") == 1:
        alone = "a batch of 1 has no other documents"
    else:
        return loss
    raise ConfigError(f"{prefix}negatives: needed: {alone}, so nothing would be learnt without")


def _check_negatives(spec: Mapping[str, Any], where: str, allow: Allow) -> Any:
    """Check ``negatives``; return the ``Mining`` of those that are mined."""
    if spec.get("type") not in ("mined", "live"):
        raise ConfigError(f"{where}.type: {spec.get('type')!r}; expected 'mined' or 'live'")
    if spec["type"] == "live":
        check_live(spec, where)
        return None
    refresh = spec.get("refresh", "epoch")
    if refresh != "epoch" and (type(refresh) is not int or refresh < 1):
        raise ConfigError(f"{where}.refresh: {refresh!r}; expected steps, 1 or more, or 'epoch'")
    expected = (
        "a name under retrievers or pipelines, a retriever folder, an inline {encoder, index}, "
        "a .trec file, or a list of these"
    )
    if "retriever" not in spec:
        raise ConfigError(f"{where}: needs 'retriever': {expected}")
    for place, lists in named_sources(spec, f"{where}.retriever"):
        if isinstance(lists, Mapping):
            try:
                section = checked(lists, RetrieverSection)
            except ConfigError as error:
                raise ConfigError(f"{place}: {error}") from None
            check_retriever(section, place, allow)
        elif not isinstance(lists, str) or not lists:
            raise ConfigError(f"{place}: {lists!r}; expected {expected}")
    if spec.get("judge") is not None:
        check_judge(spec["judge"], f"{where}.judge", allow=allow)
    elif mining_of(spec, where).judge_margin is not None:
        raise ConfigError(f"{where}: needs 'judge': {JUDGE}")
    return mining_of(spec, where)


def _check_trainer(section: TrainingSection, prefix: str) -> None:
    """Make the trainer's arguments as the training will, and check what it lets pass."""
    from transformers.integrations import get_reporting_integration_callbacks

    from sluice.training.loop.arguments import training_arguments

    try:
        with tempfile.TemporaryDirectory() as folder:
            arguments = training_arguments(
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
    try:
        get_reporting_integration_callbacks(arguments.report_to)
    except ValueError as error:
        raise ConfigError(f"{prefix}trainer.report_to: {error}") from None
