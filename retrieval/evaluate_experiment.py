"""An experiment's evaluation: runs, scores, significance, latency, size; results and report."""

from __future__ import annotations

import logging
import time
from typing import Any

from encoders.files import write_json, write_text
from retrieval.asking import asked, run_on
from retrieval.comparison import compare_scores
from retrieval.dataset import Dataset
from retrieval.evaluation import Scores, evaluate
from retrieval.experiment import Experiment
from retrieval.latency import Latency, measure_latency
from retrieval.measures import depth_of, parse_measure
from retrieval.provenance import provenance
from retrieval.retriever import Retriever
from retrieval.stage import DEPTH, Stage
from retrieval.table import Table

log = logging.getLogger("sluice")


def evaluate_experiment(experiment: Experiment) -> Table:
    """Run and score every pipeline of an experiment; write runs, ``results.json``, ``report.md``.

    Latency is the median and 95th percentile of single queries, encoding included; index bytes
    are those of every index a pipeline searches.
    """
    config = experiment.config.evaluate
    start = time.monotonic()
    dataset = experiment.dataset(config.split)
    experiment.refuse_tested()
    measures = [parse_measure(text) for text in config.measures]
    depth = max(DEPTH, depth_of(measures) or DEPTH)
    scores: dict[str, Scores] = {}
    stages: dict[str, Stage] = {}
    for name in experiment.systems:
        stage = stages[name] = experiment.stage(name)
        log.info("evaluate %s on %s queries", name, f"{len(dataset.queries):,}")
        run = run_on(stage, dataset, depth)
        run.name = name
        run.save(experiment.output / "runs" / f"{name}.trec.gz", tag=name)
        scores[name] = evaluate(run, dataset.qrels, measures)
    latencies = {
        name: measure_latency(stage, asked(dataset, stage), sample=config.latency_queries)
        for name, stage in stages.items()
    }
    table = compare_scores(scores, baseline=config.baseline, test=config.test)
    _add_costs(table, stages, latencies)
    results = _results(experiment, dataset, table, scores, stages, latencies)
    results["origin"] = provenance(experiment.config.model_dump(), seconds=time.monotonic() - start)
    write_json(experiment.output / "results.json", results)
    write_text(experiment.output / "report.md", _report(experiment, dataset, table))
    return table


def retrievers_of(stage: Stage) -> list[Retriever]:
    """Return every retriever a pipeline searches, once each."""
    if isinstance(stage, Retriever):
        return [stage]
    found = {each.path: each for part in stage.inner for each in retrievers_of(part)}
    return list(found.values())


def _bytes(stage: Stage) -> int:
    return sum(retriever.head.index_bytes for retriever in retrievers_of(stage))


def _add_costs(
    table: Table, stages: dict[str, Stage], latencies: dict[str, Latency | None]
) -> None:
    timed = {name: latency for name, latency in latencies.items() if latency is not None}
    if timed:
        table.add_column("p50 ms", {name: found.p50 for name, found in timed.items()})
        table.add_column("p95 ms", {name: found.p95 for name, found in timed.items()})
    sizes = {name: _bytes(stage) / 1e6 for name, stage in stages.items()}
    table.add_column("index MB", sizes, ",.2f")


def _results(
    experiment: Experiment,
    dataset: Dataset,
    table: Table,
    scores: dict[str, Scores],
    stages: dict[str, Stage],
    latencies: dict[str, Latency | None],
) -> dict[str, Any]:
    systems = []
    for name, stage in stages.items():
        latency = latencies[name]
        found = retrievers_of(stage)
        systems.append(
            {
                "name": name,
                "pipeline": experiment.config.pipelines.get(name, name),
                "measures": dict(scores[name].mean),
                "latency_ms": {"p50": latency.p50, "p95": latency.p95} if latency else None,
                "index_bytes": _bytes(stage),
                "documents": found[0].head.documents if found else 0,
                "queries": scores[name].queries,
                "missing_queries": scores[name].missing,
                "fingerprints": {r.name: r.head.encoder_fingerprint for r in found},
            }
        )
    return {
        "dataset": dataset.name,
        "split": dataset.split,
        "systems": systems,
        "comparisons": table.to_dict()["comparisons"],
    }


def _report(experiment: Experiment, dataset: Dataset, table: Table) -> str:
    pipelines = experiment.config.pipelines
    lines = [
        f"# {experiment.output.name}",
        "",
        f"Dataset {dataset.name}, split {dataset.split}: {len(dataset.queries):,} queries.",
        "",
        table.to_markdown().rstrip(),
        "",
        *(["| system | pipeline |", "|---|---|"] if pipelines else []),
        *(f"| {name} | `{text.replace('|', chr(92) + '|')}` |" for name, text in pipelines.items()),
        "",
        "## What to try next",
        "",
        *(f"- {line}" for line in next_steps(experiment)),
    ]
    return "\n".join(lines) + "\n"


def next_steps(experiment: Experiment) -> list[str]:
    """Return commands that go on from here, with this experiment's own names in them."""
    output, last = experiment.output, experiment.systems[-1]
    first = next(iter(experiment.config.retrievers))
    config = str(experiment.file) if experiment.file else "experiment.yaml"
    runs = f"{output}/runs/{experiment.systems[0]}.trec.gz {output}/runs/{last}.trec.gz"
    compared = [f"two runs against each other: `sluice compare {runs} --qrels QRELS`"]
    return [
        f'search: `sluice search {output} "your question" --pipeline {last}`',
        f'one retriever alone: `sluice search {output}/retrievers/{first} "your question"`',
        f"the same on your data: `sluice run {config} dataset=FOLDER output=runs/mine` "
        "(a folder in BEIR layout)",
        f"other settings: `sluice run {config} evaluate.test=fisher` reuses all that is made",
        *(compared if len(experiment.systems) > 1 else []),
        f'from Python: `load_pipeline("{output}", "{last}").search("your question", k=10)`',
    ]
