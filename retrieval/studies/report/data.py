"""Collects what the report shows of one dataset, as plain values for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.evaluation.comparison import MARK
from sluice.retrieval.evaluation.scores import Scores
from sluice.retrieval.evaluation.table import Table, add_costs
from sluice.retrieval.studies.report.conclusion import conclusion
from sluice.retrieval.studies.report.distributions import (
    document_lengths,
    figures,
    recall_curves,
    score_histograms,
)
from sluice.retrieval.studies.report.evaluated import EvaluatedSet
from sluice.retrieval.studies.report.failures import buckets, judges_few, reranked_depth
from sluice.retrieval.studies.report.measure_texts import meanings
from sluice.retrieval.studies.report.origin import origin_of
from sluice.retrieval.studies.report.queries import QUERY, choose, cut, details, plotted

LISTED = 300  # queries of a failure bucket that the page lists
POINTS = 300  # of a series of a training run
JOURNALS = ("training", "models")  # folders with training runs


def set_data(evaluated: EvaluatedSet, shown: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return one dataset's figures, and separately the details of ``shown`` queries."""
    measures = list(evaluated.systems[0]["measures"])
    scores = evaluated.scores(measures)
    depths = _depths(evaluated)
    failures = {
        name: buckets(
            run, evaluated.dataset.qrels, evaluated.queries, depths[name], evaluated.dataset.level
        )
        for name, run in evaluated.runs.items()
    }
    detailed_places = choose(scores, evaluated.queries, evaluated.baseline, failures, shown)
    detailed, term_counts = details(evaluated, detailed_places)
    plotted_places = plotted(evaluated.queries, detailed_places)
    drawn = set(plotted_places)
    table = results_table(evaluated)
    data = {
        "name": evaluated.name,
        "split": evaluated.results["split"],
        "baseline": evaluated.baseline,
        "measures": measures,
        "queryCount": len(evaluated.queries),
        "systems": evaluated.systems,
        "comparisons": list(evaluated.results.get("comparisons", [])),
        "table": shown_table(table),
        "conclusion": conclusion(evaluated),
        "meanings": meanings(table.columns),
        "origin": origin_of(evaluated),
        "judgesFew": judges_few(evaluated.dataset.qrels),
        "detailed": detailed_places,
        "perQuery": _per_query(evaluated, scores, plotted_places),
        "failures": {
            name: {
                kind: [len(places), [place for place in places if place in drawn][:LISTED]]
                for kind, places in of_system.items()
            }
            for name, of_system in failures.items()
        },
        "reranked": depths,
        "recall": recall_curves(evaluated),
        "scores": score_histograms(evaluated),
        "lengths": document_lengths(evaluated),
        "termCounts": term_counts,
        "trainings": trainings(evaluated.folder),
        "failed": evaluated.failures,
    }
    return data, detailed


def _depths(evaluated: EvaluatedSet) -> dict[str, int | None]:
    systems = {str(system["name"]): system for system in evaluated.systems}
    texts = {name: str(system.get("pipeline", name)) for name, system in systems.items()}
    pipelines = {**evaluated.config.pipelines, **texts}
    chosen = {
        name: str(system["fitted"][-1].get("shown"))
        for name, system in systems.items()
        if system.get("fitted")
    }
    return {name: reranked_depth(name, pipelines, chosen) for name in systems}


def _per_query(
    evaluated: EvaluatedSet, scores: Mapping[str, Scores], places: Sequence[int]
) -> dict[str, Any]:
    queries = [evaluated.queries[place] for place in places]
    values = {
        measure: {
            name: figures([each.per_query[measure][query] for query in queries])
            for name, each in scores.items()
        }
        for measure in next(iter(scores.values())).mean
    }
    texts = [cut(evaluated.dataset.queries.get(query, ""), QUERY) for query in queries]
    return {"places": list(places), "ids": queries, "texts": texts, "values": values}


def results_table(evaluated: EvaluatedSet) -> Table:
    """Return the results as a table with marks: measures first, then the recorded costs."""
    measures = list(evaluated.systems[0]["measures"])
    table = Table(columns=dict.fromkeys(measures, ".4f"))
    table.rows = {
        str(system["name"]): {m: system["measures"].get(m) for m in measures}
        for system in evaluated.systems
    }
    add_costs(table, {str(system["name"]): system for system in evaluated.systems})
    tested = list(evaluated.results.get("comparisons", []))
    for each in tested:
        if each["significant"]:
            table.marks[each["system"], each["measure"]] = MARK
    if tested:
        table.caption = evaluated.config.evaluate.testing.table_caption(
            str(tested[0]["baseline"]), len(evaluated.systems) - 1, len(evaluated.queries)
        )
    return table


def shown_table(table: Table) -> dict[str, Any]:
    """Return a table for the page, with the texts to copy."""
    return {
        "systems": table.to_dict()["systems"],
        "columns": table.columns,
        "caption": table.caption,
        "marks": [list(place) for place in table.marks],
        "copies": {
            "Markdown": table.to_markdown(),
            "LaTeX": table.to_latex(),
            "CSV": table.to_csv(),
        },
    }


def overview(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return a suite's tables by measure, systems by dataset, as its ``results.json`` has them."""
    tables = {}
    for measure, stored in (results.get("tables") or {}).items():
        columns = [column for column in stored["systems"][0] if column != "name"]
        table = Table(
            columns=dict.fromkeys(columns, ".4f"),
            rows={row["name"]: {c: row.get(c) for c in columns} for row in stored["systems"]},
            caption=stored.get("caption", ""),
        )
        for each in stored.get("comparisons", []):
            if each["significant"] and each.get("dataset") in columns:
                table.marks[each["system"], each["dataset"]] = MARK
        tables[measure] = shown_table(table)
    return tables


def trainings(folder: Path) -> list[dict[str, Any]]:
    """Return the curves of an experiment's training runs, at most 300 points each."""
    from sluice.training.journal.curves import METRICS, panels_of, read_trainings

    folders = [folder / name for name in JOURNALS if any((folder / name).rglob(METRICS))]
    try:
        runs = read_trainings(folders) if folders else []
    except DataError:  # a training run without log lines
        return []
    curves = []
    for training in runs:
        panels = []
        for panel in panels_of([training]):
            lines = []
            for name in panel.names:
                series = training.series[name]
                every = max(1, -(-len(series.steps) // POINTS))
                steps, values = series.steps[::every], series.values[::every]
                lines.append(
                    {
                        "name": name.removeprefix(panel.prefix),
                        "steps": steps,
                        "values": figures(values),
                        "target": training.targets.get(name) if panel.targets else None,
                    }
                )
            panels.append({"title": panel.title, "axis": panel.axis, "lines": lines})
        curves.append({"name": training.name, "panels": panels})
    return curves
