"""What is checked of an experiment before any work: names, components, pipelines, circles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.build import check
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.retrieval.config.components import Allow, check_measures, check_retriever
from sluice.retrieval.config.sections import ExperimentConfig
from sluice.retrieval.experiments.dependencies import Dependencies
from sluice.retrieval.pipelines.expression import NAME, names_in, parse
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.pipelines.table import SCORERS
from sluice.retrieval.retrievers.candidate_lists import check_lists, named_sources
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Run
from sluice.retrieval.training_data.teachers.teachers import check_judge

SECTIONS = ("train", "retrievers", "rerankers", "pipelines")
LONGEST = 100  # characters of a name: it is part of files' names


def check_experiment(
    config: ExperimentConfig, allow: Allow = None, *, trainings: bool = True
) -> None:
    """Raise ``ConfigError`` for all that can be known to be wrong before any work is done.

    ``trainings=False`` leaves out the section ``train``: for an experiment that is only opened.
    """
    _check_names(config)
    check_measures(config.evaluate.measures, "evaluate.measures")
    for name, retriever in config.retrievers.items():
        check_retriever(retriever, f"retrievers.{name}", allow)
    for name, spec in config.rerankers.items():
        check(spec, SCORERS, where=f"rerankers.{name}", allow=allow)
    for name, text in config.pipelines.items():
        check_pipeline(config, text, f"pipelines.{name}")
    if trainings:
        for name, retriever in config.retrievers.items():
            scores = None if retriever.prune is None else retriever.prune.scores
            if scores is not None and not Path(scores).expanduser().is_file():
                raise ConfigError(
                    f"retrievers.{name}.prune.scores: no file {scores!r}; "
                    "sluice fit quality makes one"
                )
        from sluice.retrieval.experiments.training.checks import check_training
        from sluice.retrieval.training_data.teachers.teachers import check_there

        for name, section in config.train.items():
            check_training(section, f"train.{name}", allow)
            negatives, key = section.negatives or {}, f"train.{name}.negatives"
            for place, lists in named_sources(negatives, f"{key}.retriever"):
                if isinstance(lists, str):
                    check_lists(lists, place, list_names(config))
            if negatives.get("judge") is not None:
                known = [*config.rerankers, *config.train]
                check_judge(negatives["judge"], f"{key}.judge", known=known)
            check_there(section.teacher, f"train.{name}.teacher")
            check_there(negatives.get("judge"), f"{key}.judge")
    Dependencies(config).check()


def list_names(config: ExperimentConfig) -> list[str]:
    """Return the names that stand for ranked lists: pipelines and retrievers."""
    return list(dict.fromkeys([*config.pipelines, *config.retrievers]))


def _check_names(config: ExperimentConfig) -> None:
    """Refuse names that cannot be a file's, that stand for two things, or that are unknown."""
    for section in SECTIONS:
        for name in getattr(config, section):
            if not re.fullmatch(NAME, name) or len(name) > LONGEST:
                raise ConfigError(
                    f"{section}.{name}: a name is a letter or '_', then letters, digits, '_', '.' "
                    f"and '-', {LONGEST} at most: it is used in pipelines and as a folder's name"
                )
    for name in config.rerankers:
        if name in config.retrievers:
            raise ConfigError(f"rerankers.{name}: retrievers has that name too")
    known = list(dict.fromkeys([*config.retrievers, *config.rerankers, *config.pipelines]))
    for name, text in config.pipelines.items():
        for used in names_in(text, where=f"pipelines.{name}"):
            if used not in known:
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


class _Named(Stage):
    """Stands for a retriever or a pipeline where only an expression's form is looked at."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        return Run({})


class _Scorer:
    """Stands for a reranker's scorer."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> Any:
        return [0.0] * len(pairs)


def check_pipeline(config: ExperimentConfig, text: str, where: str) -> None:
    """Put the pipeline together from stand-ins, so that its options are checked as they will be."""
    standing: dict[str, Any] = {used: _Scorer for used in config.rerankers}
    for used in list_names(config):
        if used not in config.rerankers or used in config.retrievers:
            standing[used] = lambda used=used: _Named(used)
    if parse(text, standing, where=where).needs_candidates:
        raise ConfigError(
            f"{where}: {text!r} begins with a reranker, which needs candidates; put a "
            "retriever before it: retriever >> reranker"
        )
