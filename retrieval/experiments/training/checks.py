"""Checks the section of one training run before any work: its parts, its rules, its files."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.dense.experts.names import checked_experts
from sluice.encoders.foundation.build import build, check
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.splade.concepts.names import read_concepts
from sluice.encoders.table import ENCODERS, RERANKERS, TUNINGS
from sluice.encoders.transformer.from_scratch import check_fresh, is_fresh
from sluice.encoders.tuning.learning import learning_of
from sluice.retrieval.config.component_types import LIVE, NEGATIVES
from sluice.retrieval.config.components import (
    START_KEY,
    Allow,
    check_head,
    check_index,
    check_lengths,
    check_measures,
    check_new_heads,
    check_retriever,
    check_towers,
    make_loss,
    towers_in,
)
from sluice.retrieval.config.other_names import TRAINER_NAMES
from sluice.retrieval.config.sections import RetrieverSection, TrainingSection, checked
from sluice.retrieval.experiments.training.dev_evaluation import dev_measure
from sluice.retrieval.experiments.training.kinds import check_identifiers, check_live
from sluice.retrieval.experiments.training.rules.facts import RunFacts
from sluice.retrieval.experiments.training.rules.models import RUN_RULES
from sluice.retrieval.retrievers.candidate_lists import RANDOM, SELF, listed, named_sources
from sluice.retrieval.training_data.example_sources import (
    MORE_NEGATIVES,
    NEGATIVE,
    check_examples,
    example_source,
    searched_with,
)
from sluice.retrieval.training_data.mining import mining_of
from sluice.retrieval.training_data.refreshing_miner import RefreshSettings
from sluice.retrieval.training_data.teachers.batch_teacher import check_batch_teacher
from sluice.retrieval.training_data.teachers.judges import JUDGE, check_judge
from sluice.retrieval.training_data.teachers.spec import teacher_spec
from sluice.training.losses.base import compares_own, taught_by_batch
from sluice.training.rules import judge

if TYPE_CHECKING:
    from sluice.training import Mining
    from sluice.training.batches.scoring import TokenScoring

RETRIEVER = (
    "a name under retrievers or pipelines, a retriever folder, an inline {encoder, index}, "
    "a .trec file, or a list of these"
)
ONE_RETRIEVER = "a name under retrievers or pipelines, a retriever folder or {encoder, index}"
SCORE, UNANSWERED = "a teacher's score", "negative_queries"  # what a row may lack
REMEDIES = {
    NEGATIVE: MORE_NEGATIVES,
    SCORE: "name a teacher (teacher: MODEL), or a file that `sluice teach distil` wrote",
    UNANSWERED: "`sluice teach describe` writes them",
}
ABOVE_ZERO = ("learning_rate", "num_train_epochs")
# What `trainer.report_to` may name, with its package where the two differ.
PACKAGES = {"azure_ml": "azureml-mlflow", "comet_ml": "comet_ml", "flyte": "flytekit"}


def check_training(
    section: TrainingSection, where: str, allow: Allow = None, *, with_dataset: bool = True
) -> None:
    """Check a training run's parts, each alone; then that they go together; then its examples.

    Without a dataset a cross-encoder is evaluated over its examples' documents.
    """
    prefix = f"{where}." if where else ""
    for check_part in parts_of(section, prefix, allow):
        check_part()
    run = run_facts(section, prefix, allow, with_dataset=with_dataset)
    judge(RUN_RULES, run, prefix)
    if run.live:
        check_index(run.negatives.get("index"), run.encoder, where=f"{prefix}negatives.index")
    check_rows(run, f"{prefix}", allow)
    for name, own in (section.by_dataset or {}).items():
        if own.loss is not None or own.examples is not None:
            _check_own(section.of(name), name, prefix, allow)
    check_identifiers(section, prefix, allow, with_dataset=with_dataset)


def _check_own(section: TrainingSection, name: str, prefix: str, allow: Allow) -> None:
    """Check what one of several datasets has of its own, in the place of the common."""
    where = f"{prefix}by_dataset.{name}"
    if section.examples is not None:
        check_examples(section.examples, f"{where}.examples", allow)
    run_facts(section, f"{where}.", allow)
    try:
        _check_loss(section, "", allow)
        run = replace(run_facts(section, "", allow), part=True)
        judge(RUN_RULES, run)
        check_rows(run, "", allow)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def parts_of(
    section: TrainingSection, prefix: str, allow: Allow = None
) -> Iterator[Callable[[], object]]:
    """Yield what checks each part of a training run by itself, in the order of a message's keys."""
    yield partial(check_encoder, section.encoder, f"{prefix}encoder", allow)
    if section.sparsity is not None:
        yield partial(_check_sparsity, section.sparsity, prefix)
    if section.tuning is not None:
        yield partial(build, section.tuning, TUNINGS, where=f"{prefix}tuning", allow=allow)
    if section.examples is not None:
        yield partial(check_examples, section.examples, f"{prefix}examples", allow)
        yield partial(_check_searched, section, f"{prefix}examples.retriever", allow)
    if section.answered is not None:
        files = {"type": "file", "file": listed(section.answered)}
        yield partial(check_examples, files, f"{prefix}answered", allow)
    if section.teacher is not None:
        yield partial(teacher_spec(section.teacher, f"{prefix}teacher").check, allow)
    if section.negatives is not None:
        yield partial(check_negatives, section.negatives, f"{prefix}negatives", allow)
    if section.evaluate is not None:
        yield partial(check_measures, section.evaluate.measures, f"{prefix}evaluate.measures")
    yield partial(check_trainer, section, prefix)
    yield partial(_check_loss, section, prefix, allow)
    yield partial(token_scoring, section, prefix)


def kind_of(spec: Mapping[str, Any]) -> str:
    """Return the type of encoder that is trained; of separate towers that of the documents."""
    return str(towers_in(spec).get("document", spec).get("type"))


def run_facts(
    section: TrainingSection, prefix: str, allow: Allow = None, *, with_dataset: bool = True
) -> RunFacts:
    """Return the facts of a training run whose parts are right."""
    kind = kind_of(section.encoder)
    negatives = section.negatives or {}
    live = negatives.get("type") == LIVE
    mined = section.negatives is not None and not live
    return RunFacts(
        kind=kind,
        learning=learning_of(kind),
        loss=make_loss(section.loss, where=f"{prefix}loss", allow=allow),
        name=section.loss["type"],
        live=live,
        sparse=section.sparsity is not None,
        teacher=section.teacher is not None,
        scoring=token_scoring(section, prefix),
        unit=section.encoder.get("normalize") is not False,
        section=section,
        mining=mining_of(negatives, f"{prefix}negatives") if mined else None,
        with_dataset=with_dataset,
    )


def check_encoder(spec: Mapping[str, Any], where: str, allow: Allow) -> None:
    """Check the component of the encoder to train, and the files that it names."""
    encoder = {key: value for key, value in spec.items() if key != START_KEY}
    if is_fresh(spec.get(START_KEY)):
        check_fresh(spec, where)
        encoder["model"] = START_KEY  # is made when training begins
    check(encoder, {**ENCODERS, **RERANKERS}, where=where, allow=allow)
    check_towers(encoder, where=where)
    check_lengths(encoder, where=where)
    check_new_heads(encoder, where)
    check_head(spec, where, f"write {START_KEY}: true beside model")
    learning = learning_of(str(spec.get("type")))
    if not learning.learns:  # of one's own
        return
    from sluice.encoders.splade.concepts.head import checked_settings
    from sluice.encoders.transformer.projection import check_projection

    try:
        single = {"dense", "one_way", "pseudo_queries"} & set(learning.learns)
        if single and spec.get("projection") is not None:
            check_projection(spec["projection"])
        if spec.get("experts") is not None:
            checked_experts(spec["experts"], spec.get("gate_learns"))
        checked_settings(*(spec.get(key) for key in ("read", "scale", "threshold")))
        if spec.get("vocabulary") is not None:
            read_concepts(spec["vocabulary"])
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from None


def _check_sparsity(spec: Mapping[str, Any], prefix: str) -> None:
    from sluice.training.sparsity.controller import Sparsity

    try:
        Sparsity.from_config(spec)
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from None


def _check_searched(section: TrainingSection, where: str, allow: Allow) -> None:
    """Check what the examples are searched with."""
    named = searched_with(section.examples)
    if isinstance(named, Mapping):
        check_retriever(checked(named, RetrieverSection), where, allow)
    elif named is not None and (not isinstance(named, str) or named in ("", SELF)):
        raise ConfigError(f"{where}: {named!r}; expected {ONE_RETRIEVER}")


def _check_loss(section: TrainingSection, prefix: str, allow: Allow) -> None:
    """Check the loss, and that its teacher can teach it."""
    loss = make_loss(section.loss, where=f"{prefix}loss", allow=allow)
    if section.teacher is not None and taught_by_batch(loss):
        vectors = "teacher_vectors" in loss.wants
        check_batch_teacher(section.teacher, f"{prefix}teacher", vectors=vectors)


def token_scoring(section: TrainingSection, where: str = "") -> TokenScoring | None:
    """Return how a section's token vectors are scored; None where it does not say."""
    tokens = "tokens" in learning_of(kind_of(section.encoder)).learns
    if section.scoring is None and not (tokens and section.xtr_top_k):
        return None
    from sluice.training.batches.scoring import TokenScoring

    try:
        return TokenScoring(section.scoring or "max_sim", section.xtr_top_k)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from None


def check_negatives(spec: Mapping[str, Any], where: str, allow: Allow) -> None:
    """Check ``negatives`` by themselves."""
    if spec.get("type") not in NEGATIVES:
        raise ConfigError(f"{where}.type: {spec.get('type')!r}; expected 'mined' or 'live'")
    if spec["type"] == LIVE:
        check_live(spec, where)
        return
    if "refresh" in spec:
        RefreshSettings.read(spec["refresh"], f"{where}.refresh")
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


def check_trainer(section: TrainingSection, prefix: str) -> None:
    """Make the trainer's arguments as training will, and check what they let pass."""
    from sluice.training.loop.arguments import training_arguments

    for key in section.trainer:
        if (name := TRAINER_NAMES.get(key, key)) != key:
            raise ConfigError(f"{prefix}trainer.{key}: unknown key; here it is called {name}")
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
        if value is not None and key in ABOVE_ZERO and value <= 0:
            raise ConfigError(f"{prefix}trainer.{key}: {value!r}; expected a number above 0")


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


def check_rows(run: RunFacts, prefix: str, allow: Allow) -> None:
    """Raise ``ConfigError`` if no row of the files of ``examples`` has what the loss declares.

    The rows are read until each need is met, so files that meet none are read to their end.
    """
    section, loss, name, where = run.section, run.loss, run.name, f"{prefix}examples"
    if run.examples == "file" and "negative_queries" not in loss.wants:
        _refuse_unread(run, prefix)
    rows = example_source(section.examples, where, allow).stream()
    needs: dict[str, str] = {}  # what a row has, what is learnt from it
    batch = section.trainer.get("per_device_train_batch_size")
    paired = not compares_own(loss) and "scores" in run.learns
    if (paired or compares_own(loss) or "answered" in loss.wants) and section.negatives is None:
        needs[NEGATIVE] = "each query's own documents"
    elif section.negatives is None and loss.negatives == "all" and batch == 1:
        others = "other documents than the positive, which a batch of 1 lacks"
        needs[NEGATIVE] = f"{others} (raise per_device_train_batch_size)"
    if loss.needs_teacher and section.teacher is None:
        needs[SCORE] = "a teacher's scores"
    if "negative_queries" in loss.wants:
        needs[UNANSWERED] = "queries that a positive does not answer"
    if not rows or not needs:
        return
    lacking, grades = dict(needs), dict[str, float]()  # the first grade of a query
    for row in rows:
        key = "" if "across_queries" in loss.wants else row.query.key if row.graded else row.place
        labels = [one.label for one in row.documents]
        if any(label <= 0 or grades.setdefault(key, label) != label for label in labels):
            lacking.pop(NEGATIVE, None)
        if any(math.isfinite(one.score) for one in row.documents):
            lacking.pop(SCORE, None)
        if row.negative_queries:
            lacking.pop(UNANSWERED, None)
        if not lacking:
            return
    learns = f"{name} on a cross_encoder" if paired else name
    raise ConfigError(
        f"{where}: no row has {' or '.join(lacking)}; {learns} learns from "
        f"{' and '.join(needs[each] for each in lacking)}; "
        f"{'; '.join(REMEDIES[each] for each in lacking)}"
    )


def _refuse_unread(run: RunFacts, prefix: str) -> None:
    """Refuse rows with negative queries, which the loss does not read."""
    spec, name = run.own_examples, run.name
    if spec.get("negative_queries") == 0:
        return
    row = next((row for row in example_source(spec).first_rows() if row.negative_queries), None)
    if row is not None:
        raise ConfigError(
            f"{prefix}loss: {name} reads no negative_queries, which {row.place} has; train with "
            f"misfits around it (loss: {{type: misfits, loss: {{type: {name}}}}}), or leave them "
            "out: examples.negative_queries: 0"
        )
