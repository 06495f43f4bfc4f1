"""Fits fusions, cut-offs, exits and abstention on an experiment's dev or train queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.provenance import provenance
from sluice.retrieval.config.sections import ConfigSource, ExperimentConfig, config_of
from sluice.retrieval.datasets.dataset import Dataset, training_splits
from sluice.retrieval.datasets.source import find_split
from sluice.retrieval.evaluation.measures import at_level, parse_measure
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.training.tested_queries import untested
from sluice.retrieval.pipelines.fitting.fitter import QueryFitter
from sluice.retrieval.pipelines.fitting.fusion_fit import FusionFit, fit_fusion
from sluice.retrieval.pipelines.fitting.rerank_fit import RERANKED, RerankFit, UnfittedRerank
from sluice.retrieval.pipelines.operators import Then
from sluice.retrieval.pipelines.rerank import Rerank
from sluice.retrieval.pipelines.search import TextsOf
from sluice.retrieval.retrievers.candidate_lists import asked, run_on
from sluice.retrieval.runs.queries import DEPTH
from sluice.retrieval.runs.run import Run
from sluice.retrieval.stages.abstain import FittedAbstention, fit_abstention
from sluice.retrieval.stages.adaptive_depth import (
    DepthReport,
    PredictedDepth,
    depth_report,
    fit_cut_off,
)
from sluice.retrieval.stages.confidence import VARIANCE, certainty
from sluice.retrieval.stages.confidence_exit import FittedExit, fit_exit
from sluice.retrieval.stages.hubs import bank_queries


def fit_experiment_fusion(
    config: ConfigSource,
    pipelines: Sequence[str],
    overrides: Sequence[str] = (),
    *,
    rebuild: bool = False,
    split: str = "dev",
    depth: Annotated[int, Ge(1), "Hits of each part that are fused."] = 1000,
    measure: Annotated[str, "The measure to maximise."] = "nDCG@10",
    **options: Any,
) -> FusionFit:
    """Fit weights and method of a fusion of pipelines or retrievers; see ``fit_fusion``.

    ``split`` is ``dev`` (a tenth of train where there is none) or ``train``, ``depth`` how many
    hits of each part are fused. ``rebuild`` is as for ``sluice.run``.
    """
    experiment, dataset = _experiment_and_split(config, pipelines, overrides, split, rebuild)
    runs, parts = [], []
    for name in pipelines:
        stage = experiment.stage(name)
        run = run_on(stage, dataset, depth).top(depth)
        runs.append(Run(dict(run), name=name))
        parts.append(stage.name)
    (parsed,) = at_level([parse_measure(measure)], dataset.level)
    fit = replace(fit_fusion(runs, dataset.qrels, parsed, **options), parts=tuple(parts))
    return fit.with_origin(_origin(experiment, dataset, split, pipelines=list(pipelines)))


def fit_experiment_rerank(
    config: ConfigSource,
    pipeline: str,
    overrides: Sequence[str] = (),
    *,
    rebuild: bool = False,
    split: str = "dev",
    depth: Annotated[int | None, Ge(1), "Documents that are reranked, at most."] = None,
    measure: Annotated[str, "The measure to maximise."] = "nDCG@10",
) -> RerankFit:
    """Fit depth and interpolation of the last reranker of a pipeline; see ``fit_rerank``.

    The pipeline must end in a reranker, ``first >> cross(depth=50)``, or an open one,
    ``first >> fitted(cross)``. Up to ``depth`` documents are tried, by default the reranker's own.
    """
    experiment, dataset = _experiment_and_split(config, [pipeline], overrides, split, rebuild)
    stage = experiment.open_stage(pipeline)
    last = stage.second if isinstance(stage, Then) else None
    if not isinstance(stage, Then) or not isinstance(last, Rerank | UnfittedRerank):
        raise ConfigError(
            f"pipelines.{pipeline}: {stage.name} does not end in a reranker to fit; expected "
            "retriever >> reranker(depth=50)"
        )
    if isinstance(last, Rerank) and (last.rules or last.deadline_ms is not None):
        raise ConfigError(
            f"pipelines.{pipeline}: {last.name} has rules of its depth; fit it without them"
        )
    label = last.label if isinstance(last, UnfittedRerank) else last.name.partition("(")[0]
    most = depth or last.depth or RERANKED
    reranker = UnfittedRerank(last.scorer, measure, depth=most, label=label)
    first = experiment.fits.closed(pipeline, stage.first)
    fitter = QueryFitter(asked(dataset, stage), dataset.qrels, level=dataset.level)
    fit = fitter.choose(reranker.attached(TextsOf(first)), first)
    if not isinstance(fit, RerankFit) or not fit.judged:
        raise DataError(f"dataset {dataset.name}: too few judged {split} queries to fit on")
    facts = {"pipeline": pipeline, "expression": experiment.config.pipelines[pipeline]}
    return fit.with_origin(_origin(experiment, dataset, split, **facts))


def fit_experiment_cut_off(
    config: ConfigSource,
    pipeline: str,
    overrides: Sequence[str] = (),
    *,
    rebuild: bool = False,
    split: str = "dev",
    depth: Annotated[int, "Candidates for each query."] = 100,
    **options: Any,
) -> tuple[PredictedDepth, DepthReport]:
    """Fit a cut-off to what a pipeline or retriever finds; see ``fit_cut_off`` for ``options``.

    ``split`` is ``dev`` (a tenth of train where there is none) or ``train``. Returns the rule, and
    its report on the queries it was fitted to.
    """
    experiment, dataset = _experiment_and_split(config, [pipeline], overrides, split, rebuild)
    run = run_on(experiment.stage(pipeline), dataset, depth).top(depth)
    level = dataset.level
    rule = fit_cut_off(run, dataset.qrels, level=level, **options)
    return rule, depth_report(rule, run, dataset.qrels, level=level)


def fit_experiment_exit(
    config: ConfigSource,
    pipeline: str,
    overrides: Sequence[str] = (),
    *,
    rebuild: bool = False,
    split: str = "dev",
    measure: Annotated[str, "The measure to preserve."] = "nDCG@10",
    **options: Any,
) -> FittedExit:
    """Fit an exit to the last reranker of a pipeline; see ``fit_exit`` for ``options``.

    The pipeline must end in a reranker, ``first >> cross(depth=50)``, without an exit of its own.
    """
    experiment, dataset = _experiment_and_split(config, [pipeline], overrides, split, rebuild)
    stage = experiment.stage(pipeline)
    if not isinstance(stage, Then) or not isinstance(stage.second, Rerank):
        raise ConfigError(
            f"pipelines.{pipeline}: {stage.name} does not end in a reranker to fit an exit for; "
            "expected retriever >> reranker(depth=50)"
        )
    queries = asked(dataset, stage)
    if options.get("kind") == VARIANCE:
        options["certain"] = certainty(queries, stage.first)
    before = stage.first.run(queries, None, DEPTH)
    after = stage.second.run(queries, before, DEPTH)
    (parsed,) = at_level([parse_measure(measure)], dataset.level)
    runs = run_on(before, dataset), run_on(after, dataset)
    return fit_exit(*runs, dataset.qrels, measure=str(parsed), **options)


def fit_experiment_abstention(
    config: ConfigSource,
    pipeline: str,
    overrides: Sequence[str] = (),
    *,
    unanswerable: Annotated[
        str | None,
        "NAME",
        "Queries without an answer: another dataset, of which the train queries are taken, or a "
        "file (.txt, .jsonl); beside judged queries without a relevant document.",
    ] = None,
    rebuild: bool = False,
    split: str = "dev",
    **options: Any,
) -> FittedAbstention:
    """Fit when a pipeline or retriever finds nothing; see ``fit_abstention`` for ``options``.

    Queries with an answer are those of ``split`` that have a relevant document. Without one are its
    other judged queries, and those that ``unanswerable`` names, see ``bank_queries``: of another
    collection, so that nothing here answers them.
    """
    experiment, dataset = _experiment_and_split(config, [pipeline], overrides, split, rebuild)
    source = str(experiment.config.dataset)
    if unanswerable is not None and (
        unanswerable in (source, dataset.name)
        or Path(unanswerable).resolve() == Path(source).resolve()
    ):
        raise ConfigError(
            f"unanswerable: {unanswerable}: its queries have answers here; name another dataset, "
            "or a file of queries without"
        )
    here = set(dataset.queries.values())
    texts = () if unanswerable is None else bank_queries(unanswerable, "unanswerable")
    foreign = {f"{n}": text for n, text in enumerate(texts) if text.strip() and text not in here}
    stage = experiment.stage(pipeline)
    own = run_on(stage, dataset)
    level = dataset.level
    answered = {
        query for query, grades in dataset.qrels.items() if max(grades.values(), default=0) >= level
    }
    others = stage.run(foreign, None, DEPTH) if foreign else Run({})
    empty = {f"own {query}": ranking for query, ranking in own.items() if query not in answered}
    if not (empty or others):
        raise DataError(
            f"dataset {dataset.name}: every {split} query has a relevant document; name queries "
            "without an answer by --unanswerable: another dataset, or a file"
        )
    if options.get("kind") == VARIANCE:
        known = certainty(dataset.queries, stage, "abstain")
        without = {f"own {query}": value for query, value in known.items()}
        options["certain"] = known, {**without, **certainty(foreign, stage, "abstain")}
    return fit_abstention(
        Run({query: ranking for query, ranking in own.items() if query in answered}),
        Run({**empty, **others}),
        **options,
    )


def _experiment_and_split(
    config: ConfigSource,
    pipelines: Sequence[str],
    overrides: Sequence[str],
    split: str,
    rebuild: bool,
) -> tuple[Experiment, Dataset]:
    """Return the experiment without the other pipelines, which may name the file to be made."""
    settings, file = config_of(config, ExperimentConfig, overrides)
    if split not in ("train", "dev"):
        raise ConfigError(f"split: {split!r}; expected dev or train, never the test")
    names = [*settings.pipelines, *settings.retrievers]
    for name in pipelines:
        if name not in names:
            raise ConfigError(
                f"no pipeline {name!r}; known: {', '.join(names)}{suggest(name, names)}"
            )
    needed = {part for name in pipelines for part in _needed(settings, name)}
    used = {name: text for name, text in settings.pipelines.items() if name in needed}
    evaluate = settings.evaluate.model_copy(update={"baseline": None})
    experiment = Experiment(
        settings.model_copy(update={"pipelines": used, "evaluate": evaluate}),
        file=file,
        rebuild=rebuild,
    )
    experiment.check_output(experiment.needs.searched(pipelines))
    data = experiment.dataset(None)
    source = find_split(split, data.splits) or "train"  # without dev it is a part of train
    if source == find_split(settings.evaluate.split, data.splits):
        raise ConfigError(
            f"split: {split} is part of {source}, on which the experiment is evaluated; fitting on "
            "the test is refused: choose another split, or another evaluate.split"
        )
    train, dev = training_splits(data, settings.seed)
    dataset = train if split == "train" else dev
    if not dataset.queries:
        raise DataError(f"dataset {dataset.name}: no {split} queries to fit on")
    judged = {query: dataset.qrels[query] for query in dataset.queries}
    dataset.qrels = untested(dataset, judged, experiment.dataset, settings.evaluate.split)
    dataset.queries = {query: dataset.queries[query] for query in dataset.qrels}
    experiment.make_room()
    return experiment, dataset


def _origin(experiment: Experiment, dataset: Dataset, split: str, **facts: Any) -> dict[str, Any]:
    """Return what a fit's file says of where it was made."""
    machine = {k: v for k, v in provenance({}).items() if k not in ("config", "seconds")}
    seed = experiment.config.seed
    return {**facts, "dataset": dataset.name, "split": split, "seed": seed, **machine}


def _needed(config: ExperimentConfig, pipeline: str) -> set[str]:
    """Return the pipelines that a pipeline, and the models it searches with, are made from."""
    from sluice.retrieval.experiments.reuse import Dependencies

    kind = "pipelines" if pipeline in config.pipelines else "retrievers"
    nodes = Dependencies(config).closure(f"{kind}.{pipeline}")
    return {name for node in nodes for section, _, name in [node.partition(".")]
            if section == "pipelines"}  # fmt: skip
