"""Scores the pairs that a round of trials needs as tasks: pipelines on slices of the queries."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sluice.encoders.foundation.disk.files import (
    commit,
    fingerprint_of,
    new_draft,
    read_json,
    write_text,
)
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.progress import Advance, counted_by
from sluice.retrieval.config.sections import TuneConfig, checked, find_own_modules
from sluice.retrieval.execution.executor import (
    Facts,
    Plan,
    Task,
    begin_alone,
    end_planning,
    run_plan,
)
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.tuning.costs import CostModel, Remembered, Spent, plain_stage
from sluice.retrieval.experiments.tuning.tuner import Tuner
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.pipelines.tracing import Span
from sluice.retrieval.runs.queries import Queries, SelfExcluding
from sluice.retrieval.stages.rerankers.score_cache import Cached, ScoreCache, Scores
from sluice.retrieval.training_data.list_tasks import stage_identity

SLICE = 25  # queries of a task
PARTS = "parts"  # below the folder of the tuning
CONFIG, KNOWN, INPUTS, SCORED = "config.json", "known", "inputs", "scored"

Names = Mapping[str, Callable[[], Any]]  # opens retrievers and rerankers, by name


class PairTasks:
    """Has pairs scored by the experiment's executor, into the cache that the tuner reads."""

    def __init__(
        self, config: TuneConfig, experiment: Experiment, cache: ScoreCache, folder: Path
    ) -> None:
        self._config, self._experiment, self._cache = config, experiment, cache
        self._work = (folder / PARTS).absolute()
        self._names = parts_of(config, experiment)

    def score(self, tuner: Tuner, pipelines: Sequence[str]) -> None:
        """Score the pairs that these pipelines need of all tuning queries.

        Rerankers of lists, and those without a fingerprint, have no scores to keep: what asks them
        is tried in this process alone.
        """
        executor = self._experiment.executor
        texts, others = [], 0
        for text in covering(pipelines):
            scorers = tuner.scorers_of(text)
            if scorers and all(_is_kept(each) for each in scorers):
                texts.append(text)
            others += not all(_is_kept(each) for each in scorers)
        if others and executor.remote:
            why = "rerankers of lists, or without a fingerprint, have no scores of pairs"
            begin_alone("tune", executor, why)
        if texts:
            tasks = self._tasks(tuner, texts)
            run_plan(Plan("tune: pairs", tasks, "queries"), executor)
        end_planning("tune")
        if texts:
            for task in tasks:
                self._cache.absorb(task.output)
            shutil.rmtree(self._work, ignore_errors=True)

    def _tasks(self, tuner: Tuner, texts: list[str]) -> list[Task]:
        names = list(tuner.queries)
        identity = [self._config.pipelines, *(_identity(tuner, text) for text in texts)]
        return [
            self._task(number, tuner, names[start : start + SLICE], texts, identity)
            for number, start in enumerate(range(0, len(names), SLICE))
        ]

    def _task(
        self, number: int, tuner: Tuner, names: list[str], texts: list[str], identity: list[Any]
    ) -> Task:
        queries = {name: tuner.queries[name] for name in names}
        inputs = {
            "queries": queries,
            "excluding": isinstance(tuner.queries, SelfExcluding),
            "pipelines": texts,
        }
        key = fingerprint_of(identity, inputs)
        file = self._work / INPUTS / f"{key}.json"
        known, output = self._work / KNOWN / f"{key}.sqlite", self._work / SCORED / key

        def prepare() -> None:
            output.parent.mkdir(parents=True, exist_ok=True)
            if not self._experiment.executor.remote:
                return
            self._write_config()
            write_text(file, json.dumps(inputs))
            scorers = {s.scorer for text in texts for s in tuner.scorers_of(text)}
            identities = [each.identity for each in scorers]
            self._cache.copy_to(known, identities, list(queries.values()))

        def finish() -> None:
            file.unlink(missing_ok=True)
            known.unlink(missing_ok=True)

        def here(advance: Advance) -> Facts:
            start = time.perf_counter()
            with counted_by(lambda amount=1: None):  # a model counts pairs, this job queries
                score_pairs(self._names, self._config, inputs, self._cache, output)
            return {"seconds": time.perf_counter() - start}

        own = self._experiment.file
        args = {
            "config": str(self._work / CONFIG), "inputs": str(file), "known": str(known),
            "file": None if own is None else str(Path(own).absolute()), "output": str(output),
        }  # fmt: skip
        return Task("pairs", f"tune {number}", args, output, here, len(names), prepare, finish)

    def _write_config(self) -> None:
        values = self._config.model_dump(mode="json", exclude={"executor"})
        values["output"] = str(self._experiment.output.absolute())
        for folder in (INPUTS, KNOWN):
            (self._work / folder).mkdir(parents=True, exist_ok=True)
        try:
            write_text(self._work / CONFIG, json.dumps(values))
        except TypeError as error:
            raise ConfigError(
                f"executor: the config cannot be handed to other processes ({error}); expected "
                "texts, numbers and lists, as in YAML, or executor: local"
            ) from None


def covering(pipelines: Sequence[str]) -> list[str]:
    """Return pipelines that score the pairs of all these: the deepest of those alike but for depth.

    How much of the first stage's score is mixed in changes no pair either.
    """
    deepest: dict[str, int] = {}
    for text in pipelines:
        plain = re.sub(r", interpolate=[\d.]+(?=\)$)", "", text)
        last = re.fullmatch(r"(.+ >> \w+)\(depth=(\d+)\)", plain)
        key, depth = (last[1], int(last[2])) if last else (text, -1)
        deepest[key] = max(depth, deepest.get(key, -1))
    return [key if depth < 0 else f"{key}(depth={depth})" for key, depth in deepest.items()]


def _is_kept(scorer: Any) -> bool:
    return isinstance(scorer, Remembered) and isinstance(scorer.scorer, Cached)


def _identity(tuner: Tuner, text: str) -> list[str]:
    stages = (part for part in tuner.parts_of(text) if isinstance(part, Stage))
    return [
        *(stage_identity(plain_stage(stage)) for stage in stages),
        *(scorer.scorer.identity for scorer in tuner.scorers_of(text)),
    ]


def parts_of(config: TuneConfig, experiment: Experiment) -> Names:
    """Return what opens the retrievers and rerankers of an experiment."""
    parts = [*config.retrievers, *config.rerankers]
    return {name: opener for name, opener in experiment.parts().items() if name in parts}


class _OneSlice(ScoreCache):
    """New scores in a file of their own; those known before are read where they are."""

    def __init__(self, path: Path, known: ScoreCache) -> None:
        super().__init__(path)
        self._before = known

    def get(self, scorer: str, pairs: Sequence[tuple[str, str]]) -> Scores:
        """Return the score of each pair, NaN where it is in neither file."""
        own = super().get(scorer, pairs)
        return np.where(np.isnan(own), self._before.get(scorer, pairs), own)


class _Untimed(CostModel):
    """Takes no time: in a slice only the scores count."""

    def of_first(self, stage: Stage, span: Span, k: int | None) -> Spent:
        return Spent(np.zeros(len(self.timed)))


def score_pairs(
    names: Names, config: TuneConfig, inputs: Mapping[str, Any], known: ScoreCache, output: Path
) -> None:
    """Run pipelines on a slice of queries; write the new scores into the folder ``output``."""
    kind = SelfExcluding if inputs["excluding"] else dict
    queries: Queries = kind(inputs["queries"])
    parts = {*config.retrievers, *config.rerankers}
    pipelines = {name: text for name, text in config.pipelines.items() if name not in parts}
    with new_draft(output, folder=True) as draft:
        with contextlib.closing(_OneSlice(draft / "scores.sqlite", known)) as cache:
            settings = config.tune.model_copy(update={"queries": len(queries)})
            judged = {query: {"": 1} for query in queries}  # all are run, none is measured
            tuner = Tuner(names, queries, judged, settings, cache=cache, pipelines=pipelines)
            tuner.costs = _Untimed(queries)
            for text in inputs["pipelines"]:
                tuner.run(text)
            len(cache)  # a slice without new scores has a file too
        commit(draft, output)


def pairs_task(*, config: str, file: str | None, inputs: str, known: str, output: str) -> Facts:
    """Score the pairs of a slice with the parts of the saved experiment; see ``score_pairs``."""
    path = Path(config)
    settings, experiment = _open_experiment(path.read_text(encoding="utf-8"), file)
    names = parts_of(settings, experiment)
    with contextlib.closing(ScoreCache(Path(known))) as before:
        score_pairs(names, settings, read_json(Path(inputs)), before, Path(output))
    return {}


@lru_cache(maxsize=1)
def _open_experiment(text: str, file: str | None) -> tuple[TuneConfig, Experiment]:
    """Open the experiment of a config; the last one stays open."""
    values = json.loads(text)
    find_own_modules(values, None if file is None else Path(file))
    settings = checked(values, TuneConfig)
    return settings, Experiment(settings, file=file, only_open=True)
