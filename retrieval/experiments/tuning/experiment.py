"""``sluice tune``: tunes a pipeline within a budget, measures it on the test, draws the front."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sluice.encoders.foundation.disk.figures import csv_text, save_figure
from sluice.encoders.foundation.disk.files import write_json, write_text
from sluice.encoders.foundation.errors import ConfigError, MissingPackageError, suggest
from sluice.encoders.foundation.provenance import provenance
from sluice.retrieval.config.components import check_measures
from sluice.retrieval.config.sections import ExperimentConfig, TuneConfig
from sluice.retrieval.config.yaml_file import yaml_text
from sluice.retrieval.datasets.dataset import Dataset, training_splits
from sluice.retrieval.evaluation.measures import parse_measure
from sluice.retrieval.evaluation.plots import Point, draw_tradeoff
from sluice.retrieval.evaluation.scores import Scores, evaluate
from sluice.retrieval.evaluation.significance import paired_t_test
from sluice.retrieval.evaluation.table import Table, Value
from sluice.retrieval.experiments.checks import check_pipeline
from sluice.retrieval.experiments.evaluation import prepare
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.training.tested_queries import without_tested
from sluice.retrieval.experiments.tuning.pair_tasks import PairTasks, parts_of
from sluice.retrieval.experiments.tuning.tuner import Trial, Tuner, Tuning, expanded, tuned
from sluice.retrieval.pipelines.expression import count_open, names_in, options_in, parse
from sluice.retrieval.pipelines.scorer import ScorerHooks
from sluice.retrieval.retrievers.candidate_lists import asked, run_on
from sluice.retrieval.retrievers.measurements import measure_latency
from sluice.retrieval.stages.rerankers.score_cache import Cached, ScoreCache

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sluice.retrieval.experiments.tuning.tuner import Tuning


LABELS = {"p50_ms": "p50 latency, ms", "p95_ms": "p95 latency, ms", "price": "price of a query"}
SWEPT = 3  # depths, that a cascade is drawn as a line
LINES = 3  # cascades that are drawn as lines: the best
_DEPTH = re.compile(r"\bdepth=(\d+)")


def draw_cascades(
    trials: Sequence[Trial],
    *,
    measure: str,
    cost: str,
    front: Sequence[Trial] = (),
    chosen: Trial | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw pipelines by their cost and their measure on the tuning queries; return the figure.

    Pipelines that differ in the depth of their last reranker alone are a line, each point labelled
    with its depth: of such lines the three with the best point. ``cost`` is a field of ``Trial``:
    p50_ms, p95_ms or price. Raises ``ConfigError`` for another and ``DataError`` for no trials.
    """
    if cost not in LABELS:
        raise ConfigError(
            f"cost: {cost!r}; expected one of {', '.join(LABELS)}{suggest(cost, LABELS)}"
        )
    return draw_tradeoff(
        {
            name: [_point(trial, cost, _DEPTH.findall(trial.pipeline)[-1]) for trial in sweep]
            for name, sweep in sweeps(trials).items()
        },
        cost=LABELS[cost],
        quality=f"{measure}, tuning queries",
        tried=[_point(trial, cost) for trial in trials],
        front=[_point(trial, cost) for trial in front],
        chosen=None if chosen is None else _point(chosen, cost),
        ax=ax,
    )


def sweeps(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Return the cascades tried at several depths of their last reranker, the best ones.

    The name is the pipeline with ``depth=…``. Of those with the same stages, which differ in
    weights and exits only, the one with the best trial is returned.
    """
    by_name: dict[str, list[Trial]] = {}
    for trial in trials:
        places = list(_DEPTH.finditer(trial.pipeline))
        if places:
            last = places[-1]
            name = f"{trial.pipeline[: last.start()]}depth=…{trial.pipeline[last.end() :]}"
            by_name.setdefault(name, []).append(trial)
    groups = {name: group for name, group in by_name.items() if len(group) >= SWEPT}
    best: dict[str, str] = {}
    for name in sorted(groups, key=lambda name: -max(trial.value for trial in groups[name])):
        best.setdefault(name.partition("depth=…")[0], name)
    return {name: groups[name] for name in list(best.values())[:LINES]}


def _point(trial: Trial, cost: str, label: str = "") -> Point:
    return Point(float(getattr(trial, cost)), trial.value, label)


log = logging.getLogger("sluice")

FOLDER = "tune"
SYSTEMS = ("tuned", "best", "full")  # pipelines that tuned.yaml names


def tune_experiment(config: TuneConfig, experiment: Experiment) -> tuple[Table, Tuning]:
    """Tune on the split that the settings name, then measure the chosen pipeline on the test.

    Writes ``<output>/tune/``: ``trials.csv`` (every pipeline), ``front.json``, ``report.md``,
    ``front.svg`` (with matplotlib), and ``tuned.yaml``, an experiment for ``sluice evaluate``: the
    chosen pipeline, the best at any cost, the best of those that score the most pairs, and each
    retriever alone. Raises ``ConfigError`` for a budget that no pipeline meets, after writing
    ``trials.csv``.
    """
    start = time.monotonic()
    check_tuning(config)
    experiment.check_output(config.retrievers)
    dataset = _split(config, experiment)
    prepare(experiment, [*(f"retrievers.{n}" for n in config.retrievers),
                         *(f"rerankers.{n}" for n in config.rerankers)])  # fmt: skip
    experiment.make_room()
    names = parts_of(config, experiment)
    pipelines = {name: text for name, text in config.pipelines.items() if name not in names}
    folder = experiment.output / FOLDER
    with contextlib.closing(ScoreCache(folder / "scores.sqlite")) as cache:
        tuner = Tuner(
            names, asked(dataset), dataset.qrels, config.tune,
            seed=config.seed, cache=cache, pipelines=pipelines, level=dataset.level,
            score=PairTasks(config, experiment, cache, folder).score,
        )  # fmt: skip
        try:
            tuning = tuned(tuner, list(config.retrievers), list(config.rerankers))
        finally:
            if tuner.trials:
                write_text(folder / "trials.csv", _csv(list(tuner.trials.values())))
        systems = {"tuned": tuning.chosen, "best": tuning.best, "full": tuning.full}
        table, measured = _measured(config, experiment, systems, cache)
    write_json(
        folder / "front.json",
        {
            "measure": tuning.measure,
            "cost": tuning.cost,
            "budget": config.tune.budget.model_dump(),
            "chosen": asdict(tuning.chosen),
            "best": asdict(tuning.best),
            "full": asdict(tuning.full),
            "front": [asdict(trial) for trial in tuning.front],
            "pairs_ms": {name: cost._asdict() for name, cost in tuner.costs.pairs.items()},
            "test": measured,
            "origin": provenance(config.model_dump(), seconds=time.monotonic() - start),
        },
    )
    write_text(folder / "tuned.yaml", _settings(config, systems))
    write_text(folder / "report.md", _report(config, dataset, tuning, table))
    try:
        plot_front(tuning, folder / "front.svg")
    except MissingPackageError as error:
        log.info("tune: no figure (%s)", error)
    return table, replace(tuning, folder=folder)


def check_tuning(config: TuneConfig) -> None:
    """Raise ``ConfigError`` for every fault that can be known before any work."""
    if not config.retrievers:
        raise ConfigError("retrievers: missing (required): tune makes pipelines of them")
    if config.tune.split == config.evaluate.split:
        raise ConfigError(
            f"tune.split: {config.tune.split!r} is also evaluate.split; tuning on the test is "
            "refused: expected dev or train"
        )
    for name in SYSTEMS:
        for section in ("retrievers", "rerankers", "pipelines"):
            if name in getattr(config, section):
                raise ConfigError(
                    f"{section}.{name}: tuned.yaml uses this name for a pipeline; choose another "
                    f"than {', '.join(SYSTEMS)}"
                )
    check_measures([config.tune.measure], "tune.measure")
    for name, price in config.tune.prices.items():
        if name not in config.rerankers:
            near = suggest(name, config.rerankers)
            raise ConfigError(f"tune.prices.{name}: no reranker has this name{near}")
        if not 0 <= price < float("inf"):
            raise ConfigError(f"tune.prices.{name}: {price}; expected a price per pair, 0 or more")
    if config.tune.pipelines is None and config.tune.choices:
        raise ConfigError("tune.choices: give tune.pipelines that use them, or leave them out")
    for text in expanded(config.tune.pipelines or [], config.tune.choices):
        check_pipeline(config, text, "tune.pipelines")
        _check_settings(config, text)


def _check_settings(config: TuneConfig, text: str) -> None:
    """Refuse ``deadline_ms``, since with remembered scores nothing runs out of time, and fits."""
    if count_open(text, where="tune.pipelines"):
        raise ConfigError(
            f"tune.pipelines: {text!r} leaves open what tuning would choose; write the weights and "
            "depths as choices instead of fitted(...), leave probability out, or run the pipeline "
            "with sluice run"
        )
    if "deadline_ms" in options_in(text, where="tune.pipelines"):
        raise ConfigError(
            f"tune.pipelines: deadline_ms in {text!r} cannot be tuned, because scores are "
            "remembered; leave it out, and limit tune.budget.p95_ms instead"
        )
    for name in names_in(text, where="tune.pipelines"):
        if name in config.pipelines and name not in config.retrievers:
            _check_settings(config, config.pipelines[name])


def _split(config: TuneConfig, experiment: Experiment) -> Dataset:
    """Return the queries to tune on, none of them tested."""
    split = config.tune.split
    train, dev = training_splits(experiment.dataset(None), config.seed)
    own = {"train": train, "dev": dev}
    chosen = own[split] if split in own else experiment.dataset(split)
    return without_tested(chosen, experiment.dataset, config.evaluate.split)


def _measured(
    config: TuneConfig, experiment: Experiment, systems: dict[str, Trial], cache: ScoreCache
) -> tuple[Table, dict[str, Any]]:
    """Run the systems on the test, also one query at a time; compare promised and measured."""
    dataset = experiment.dataset(config.evaluate.split)
    measure = str(parse_measure(config.tune.measure))
    table = Table()
    facts: dict[str, dict[str, Any]] = {}
    scores: dict[str, Scores] = {}
    plain = experiment.parts()
    cached = {**plain, **{name: _cached(plain[name], cache, name) for name in config.rerankers}}
    for name, trial in systems.items():
        same = next((n for n, fact in facts.items() if fact["pipeline"] == trial.pipeline), None)
        if same is not None:
            scores[name], facts[name] = scores[same], dict(facts[same])
            continue
        log.info("tune: measuring %s on %s test queries", name, f"{len(dataset.queries):,}")
        stage = parse(trial.pipeline, cached, where=f"tune.{name}")
        scores[name] = evaluate(run_on(stage, dataset), dataset, [measure])
        stage = parse(trial.pipeline, plain, where=f"tune.{name}")  # else the cache is timed
        latency = measure_latency(stage, asked(dataset, stage), sample=config.tune.timed_queries)
        facts[name] = {
            "pipeline": trial.pipeline,
            "value": float(next(iter(scores[name].mean.values()))),
            "p50_ms": latency.p50 if latency else None,
            "p95_ms": latency.p95 if latency else None,
        }
    columns: dict[str, dict[str, Value]] = {
        f"{measure} tuning": {name: trial.value for name, trial in systems.items()},
        f"{measure} test": {name: fact["value"] for name, fact in facts.items()},
        "p50 ms promised": {name: trial.p50_ms for name, trial in systems.items()},
        "p50 ms measured": {name: fact["p50_ms"] for name, fact in facts.items()},
        "p95 ms promised": {name: trial.p95_ms for name, trial in systems.items()},
        "p95 ms measured": {name: fact["p95_ms"] for name, fact in facts.items()},
    }
    table.rows = {name: {} for name in systems}
    for name, values in columns.items():
        table.add_column(name, values, ".4f" if name.startswith(measure) else ",.1f")
    one, full = (next(iter(scores[name].per_query.values())) for name in ("tuned", "full"))
    shared = [query for query in one if query in full]
    sides = (np.array([side[query] for query in shared]) for side in (one, full))
    facts["tuned"]["p"] = paired_t_test(*sides)  # against the full cascade
    return table, facts


def _cached(make: Callable[[], Any], cache: ScoreCache, name: str) -> Callable[[], Any]:
    """Return a function that makes the scorer, with cached scores if it scores pairs."""

    def make_cached() -> Any:
        scorer = make()
        return scorer if ScorerHooks(scorer).scores_lists else Cached(scorer, cache, name=name)

    return make_cached


def _csv(trials: list[Trial]) -> str:
    head = [field.name for field in fields(Trial)]
    return csv_text([head, *(asdict(trial).values() for trial in trials)])


def _settings(config: TuneConfig, systems: dict[str, Trial]) -> str:
    """Return an experiment's YAML with the pipelines found beside its own and its retrievers."""
    settings = config.model_dump(include=set(ExperimentConfig.model_fields))
    alone = {name: name for name in config.retrievers}
    chosen = {name: trial.pipeline for name, trial in systems.items()}
    settings["pipelines"] = {**alone, **config.pipelines, **chosen}
    settings["evaluate"]["baseline"] = next(iter(alone), None)
    return yaml_text(settings)


def _report(config: TuneConfig, dataset: Dataset, tuning: Tuning, table: Table) -> str:
    lines = [
        f"# Tuning of {Path(config.output).name}",
        "",
        f"{len(tuning.trials):,} pipelines on {dataset.name}, split {dataset.split}; "
        f"{tuning.measure} against {tuning.cost}.",
        "",
        "## The front",
        "",
        f"| pipeline | {tuning.measure} | p50 ms | p95 ms | price |",
        "|---|---|---|---|---|",
        *(
            f"| `{trial.pipeline.replace('|', chr(92) + '|')}` | {trial.value:.4f} | "
            f"{trial.p50_ms:,.1f} | {trial.p95_ms:,.1f} | {trial.price:g} |"
            for trial in tuning.front
        ),
        "",
        "## Promised and measured on the test",
        "",
        table.to_markdown().rstrip(),
        "",
        f"tuned: `{tuning.chosen.pipeline}`",
        "",
        f"best: `{tuning.best.pipeline}`",
        "",
        f"full: `{tuning.full.pipeline}`",
    ]
    return "\n".join(lines) + "\n"


def plot_front(tuning: Tuning, path: str | Path) -> Path:
    """Draw all trials and the front into a file; ``MissingPackageError`` without matplotlib."""
    figure = draw_cascades(
        tuning.trials,
        measure=tuning.measure,
        cost=tuning.cost,
        front=tuning.front,
        chosen=tuning.chosen,
    )
    return save_figure(figure, path)
