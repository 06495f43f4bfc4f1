"""Checks an experiment before any work: names, components, pipelines, circles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sluice.encoders.foundation.build import check, check_type
from sluice.encoders.foundation.errors import ConfigError, ModelError, suggest
from sluice.encoders.model_files.locate import local_folder
from sluice.encoders.table import ENCODERS, KNOWN, TYPES
from sluice.encoders.vectors.pool import refuse_kept
from sluice.indexing.table import INDEXES
from sluice.retrieval.config.components import (
    START_KEY,
    Allow,
    check_head,
    check_lengths,
    check_measures,
    check_retriever,
    make_executor,
    vector_kind,
)
from sluice.retrieval.config.sections import ExperimentConfig
from sluice.retrieval.config.trust import refuse_unknown_model
from sluice.retrieval.experiments.reuse import Dependencies, check_named
from sluice.retrieval.experiments.rules import PARTS, parts_of
from sluice.retrieval.pipelines.expression import NAME, names_in, parse, writers_in
from sluice.retrieval.pipelines.operators import Then
from sluice.retrieval.pipelines.rerank import Rerank
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.pipelines.table import LANGUAGE_MODELS, OF_TERMS, OF_VECTORS, SCORERS, STAGES
from sluice.retrieval.retrievers.corpus.late_chunks import check_one_process
from sluice.retrieval.retrievers.corpus.vectors.encoding_tasks import (
    INSTEAD,
    check_one_way_to_share,
)
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Run
from sluice.retrieval.stages.abstain import Abstain
from sluice.retrieval.stages.confidence import Certainty
from sluice.retrieval.stages.confidence_exit import VarianceExit
from sluice.retrieval.stages.feedback.dense import VectorFeedback
from sluice.retrieval.stages.feedback.stage import TermFeedback
from sluice.retrieval.training_data.teachers.judges import check_judge
from sluice.training.rules import judge

SECTIONS = ("train", "retrievers", "rerankers", "pipelines")
VARIED = next(name for name, each in TYPES.items() if each.varies)
LONGEST = 100  # characters of a name: it is part of files' names


def check_opened(config: ExperimentConfig, allow: Allow = None) -> None:
    """Check the settings of a saved experiment: its names, and that its types are allowed.

    The rest was checked when it was made. No class is imported: the parts of one pipeline are
    opened, and the other parts need not even be installed.
    """
    _check_names(config)
    for name, section in config.retrievers.items():
        check_type(section.encoder, ENCODERS, where=f"retrievers.{name}.encoder", allow=allow)
        if section.index is not None:
            check_type(section.index, INDEXES, where=f"retrievers.{name}.index", allow=allow)
    for name, spec in config.rerankers.items():
        check_type(spec, SCORERS, where=f"rerankers.{name}", allow=allow)
    Dependencies(config).check()


def check_experiment(config: ExperimentConfig, allow: Allow = None) -> None:
    """Raise ``ConfigError`` for every fault that can be known before any work."""
    _check_names(config)
    _check_executor(config)
    check_measures(config.evaluate.measures, "evaluate.measures")
    for name, retriever in config.retrievers.items():
        check_retriever(retriever, f"retrievers.{name}", allow)
    for name, spec in config.rerankers.items():
        check(spec, SCORERS, where=f"rerankers.{name}", allow=allow)
        check_lengths(spec, where=f"rerankers.{name}")
    for name, text in config.pipelines.items():
        check_pipeline(config, text, f"pipelines.{name}")
    for name, retriever in config.retrievers.items():
        if retriever.encoder.get("model") not in config.train:
            check_head(
                retriever.encoder,
                f"retrievers.{name}.encoder",
                f"train one under train: (with {START_KEY}: true) and name it here, or name a "
                "SPLADE model",
            )
    from sluice.retrieval.experiments.training.checks import check_training
    from sluice.retrieval.experiments.training.folds import check_folds
    from sluice.retrieval.training_data.teachers.spec import check_teachers_exist

    for name, section in config.train.items():
        check_training(section, f"train.{name}", allow)
        negatives, key = section.negatives or {}, f"train.{name}.negatives"
        check_named(section, f"train.{name}.", list_names(config))
        if negatives.get("judge") is not None:
            known = [*config.rerankers, *config.train]
            check_judge(negatives["judge"], f"{key}.judge", known=known)
        check_teachers_exist(section.teacher, f"train.{name}.teacher", config.train)
        check_teachers_exist(negatives.get("judge"), f"{key}.judge")
    _check_parts(config, allow)
    needs = Dependencies(config)
    needs.check()
    check_folds(config, needs)


def _check_executor(config: ExperimentConfig) -> None:
    """Check the executor, and that no retriever is encoded in processes of its own beside."""
    executor = make_executor(config.executor)
    for name, section in config.retrievers.items():
        if executor.remote:
            kind, backend = section.encoder.get("type"), section.encoder.get("backend")
            backend = None if backend == "torch" else backend
            refuse_kept(kind, backend, where=f"retrievers.{name}.encoder", instead=INSTEAD)
        if section.encoding is not None:
            check_one_way_to_share(section.encoding, executor, f"retrievers.{name}.")
        if section.passages is not None and section.passages.late:
            check_one_process(section.encoding, f"retrievers.{name}.", executor)


def _check_parts(config: ExperimentConfig, allow: Allow) -> None:
    """Judge every retriever and reranker by the rules, and look at models that prune."""
    for part in parts_of(config):
        judge(PARTS, part)
        if part.prune is not None and part.prune.model not in (None, *config.train):
            _check_pruning_model(part.prune.model, f"{part.where}.prune.model", allow)
    for kind in ("retrievers", "rerankers"):
        for name, section in getattr(config, kind).items():
            check_named(section, f"{kind}.{name}.", list_names(config))


def _check_pruning_model(model: str, where: str, allow: Allow) -> None:
    """Check a model that scores documents: it may be used, and reads a text alone."""
    from sluice.retrieval.retrievers.quality.scorers import checked_kind

    refuse_unknown_model(model, where, allow)
    folder = local_folder(model)
    try:
        if folder is not None:
            checked_kind(folder)
    except ModelError as error:
        raise ConfigError(f"{where}: {error}") from None


def list_names(config: ExperimentConfig) -> list[str]:
    """Return the names of ranked lists: pipelines and retrievers."""
    return list(dict.fromkeys([*config.pipelines, *config.retrievers]))


def _check_names(config: ExperimentConfig) -> None:
    """Refuse names that cannot be a file's, that name two things, or that are unknown."""
    for section in SECTIONS:
        for name in getattr(config, section):
            if not re.fullmatch(NAME, name) or len(name) > LONGEST:
                raise ConfigError(
                    f"{section}.{name}: a name is a letter or '_', then letters, digits, '_', '.' "
                    f"and '-', at most {LONGEST} characters: it becomes a folder's name"
                )
    for name in config.rerankers:
        if name in config.retrievers:
            raise ConfigError(f"rerankers.{name}: a retriever has that name too; rename one")
    known = list(dict.fromkeys([*config.retrievers, *config.rerankers, *config.pipelines]))
    for name, text in config.pipelines.items():
        for used in names_in(text, where=f"pipelines.{name}"):
            if used not in known and used not in STAGES:
                raise ConfigError(
                    f"pipelines.{name}: unknown name {used!r} in {text!r}; known: "
                    f"{', '.join(sorted(known)) or 'none'}{suggest(used, known)}"
                )
    systems = list(config.pipelines or config.retrievers)
    baseline = config.evaluate.baseline
    if baseline is not None and baseline not in systems:
        raise ConfigError(
            f"evaluate.baseline: no pipeline {baseline!r}; known: "
            f"{', '.join(systems)}{suggest(baseline, systems)}"
        )


class _AnyStage(Stage):
    """Stands for a retriever or a pipeline where only an expression's form is checked."""

    def __init__(self, name: str, *, known: bool = True) -> None:
        self.name, self._known = name, known

    @property
    def leaves(self) -> frozenset[str]:
        """Its name where that is a retriever's; what a pipeline is made of is not known here."""
        return super().leaves if self._known else frozenset()

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        return Run({})


class _AnyScorer:
    """Stands for a reranker's scorer."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> Any:
        return [0.0] * len(pairs)


class _AnyWriter(_AnyScorer):
    """Stands for a reranker whose language model writes."""

    fingerprint = ""

    def completions(self, prompts: Sequence[Any], max_new_tokens: int) -> list[str]:
        return [""] * len(prompts)


def check_pipeline(config: ExperimentConfig, text: str, where: str) -> None:
    """Build the pipeline from stand-ins, which checks its options."""
    writers = list(writers_in(text, where=where))
    for function, name in writers:
        kind = config.rerankers.get(name, {}).get("type")
        if name not in config.rerankers or (kind in SCORERS and kind not in LANGUAGE_MODELS):
            what = f"of type {kind}" if kind else "no reranker"
            raise ConfigError(
                f"{where}: {function} asks a language model, and {name} is {what}; expected a name "
                f"under rerankers, of type {' or '.join(LANGUAGE_MODELS)}"
            )
    asked = {name for _, name in writers}
    parts: dict[str, Any] = {
        used: _AnyWriter if used in asked else _AnyScorer for used in config.rerankers
    }
    for used in list_names(config):
        if used not in config.rerankers or used in config.retrievers:
            parts[used] = lambda used=used: _AnyStage(used, known=used not in config.pipelines)
    stage = parse(text, parts, where=where)
    _check_variance(config, stage, where)
    _check_feedback(config, stage, where)
    if stage.needs_candidates:
        raise ConfigError(
            f"{where}: {text!r} begins with a reranker, which needs candidates; put a "
            "retriever before it: retriever >> reranker"
        )


def _check_variance(config: ExperimentConfig, stage: Stage, where: str) -> None:
    """Refuse what asks for the query's variance of retrievers whose encoders have none."""
    for part in stage.inner:
        _check_variance(config, part, where)
    asked: tuple[object, ...]
    if isinstance(stage, Then) and isinstance(stage.second, Rerank):
        first, what, asked = stage.first, "exit", tuple(stage.second.rules)
    elif isinstance(stage, Abstain):
        first, what, asked = stage.stage, "abstain", (stage.confidence,)
    else:
        return
    found = sorted(first.leaves & set(config.retrievers))
    types = [str(config.retrievers[name].encoder.get("type")) for name in found]
    if (
        any(isinstance(rule, VarianceExit | Certainty) for rule in asked)
        and found
        and all(each in ENCODERS and each != VARIED for each in types)
    ):
        raise ConfigError(
            f"{where}: {what} by variance: no encoder of {', '.join(found)} has a variance of the "
            f"query; search by a retriever of {{type: {VARIED}}}, or take another kind"
        )


def _check_feedback(config: ExperimentConfig, stage: Stage, where: str) -> None:
    """Refuse feedback by vectors, or terms, that the encoder of a retriever does not give."""
    for part in stage.inner:
        _check_feedback(config, part, where)
    if not isinstance(stage, VectorFeedback | TermFeedback):
        return
    needed = "dense" if isinstance(stage, VectorFeedback) else "sparse"
    for name in sorted(stage.leaves & set(config.retrievers)):
        kind = vector_kind(config.retrievers[name].encoder)
        known = KNOWN.get(str(kind))
        if known is None or known.form == "parts":
            continue  # known when it is opened
        if known.form != needed or (needed == "dense" and known.one_way):
            other = OF_TERMS if known.form == "sparse" else OF_VECTORS
            instead = f"use {other}({name})" if known.form in ("dense", "sparse") else ""
            if known.one_way or not instead:
                instead = "search again by another retriever"
            raise ConfigError(
                f"{where}: {stage.name}: feedback takes the mean of {needed} vectors of both "
                f"sides, which a {kind} encoder has none of; {instead}"
            )
