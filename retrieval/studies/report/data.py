"""Everything one dataset's part of the report shows, as plain values for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.evaluation.comparison import MARK
from sluice.retrieval.evaluation.scores import Scores
from sluice.retrieval.evaluation.table import Table, add_costs
from sluice.retrieval.studies.report.distributions import (
    document_lengths,
    figures,
    recall_curves,
    score_histograms,
)
from sluice.retrieval.studies.report.evaluated import EvaluatedSet
from sluice.retrieval.studies.report.failures import buckets, reranked_depth
from sluice.retrieval.studies.report.queries import QUERY, choose, cut, details, plotted

LISTED = 300  # queries of a failure bucket that the page lists
POINTS = 300  # of a training's series
JOURNALS = ("training", "models")  # folders with trainings


def set_data(given: EvaluatedSet, shown: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return one dataset's figures, and apart from them the ``shown`` queries' details."""
    measures = list(given.systems[0]["measures"])
    scores = given.scores(measures)
    depths = _depths(given)
    failures = {
        name: buckets(run, given.dataset.qrels, given.queries, depths[name], given.dataset.level)
        for name, run in given.runs.items()
    }
    places = choose(scores, given.queries, given.baseline, failures, shown)
    detailed, term_counts = details(given, places)
    kept = plotted(given.queries, places)
    drawn = set(kept)
    table = results_table(given)
    data = {
        "name": given.name,
        "split": given.results["split"],
        "baseline": given.baseline,
        "measures": measures,
        "queryCount": len(given.queries),
        "systems": given.systems,
        "comparisons": list(given.results.get("comparisons", [])),
        "table": shown_table(table),
        "detailed": places,
        "perQuery": _per_query(given, scores, kept),
        "failures": {
            name: {
                kind: [len(found), [place for place in found if place in drawn][:LISTED]]
                for kind, found in of_system.items()
            }
            for name, of_system in failures.items()
        },
        "reranked": depths,
        "recall": recall_curves(given),
        "scores": score_histograms(given),
        "lengths": document_lengths(given),
        "termCounts": term_counts,
        "trainings": trainings(given.folder),
        "failed": given.failures,
    }
    return data, detailed


def _depths(given: EvaluatedSet) -> dict[str, int | None]:
    pipelines = given.config.pipelines
    return {
        str(system["name"]): reranked_depth(str(system.get("pipeline", system["name"])), pipelines)
        for system in given.systems
    }


def _per_query(
    given: EvaluatedSet, scores: Mapping[str, Scores], places: Sequence[int]
) -> dict[str, Any]:
    queries = [given.queries[place] for place in places]
    values = {
        measure: {
            name: figures([found.per_query[measure][query] for query in queries])
            for name, found in scores.items()
        }
        for measure in next(iter(scores.values())).mean
    }
    texts = [cut(given.dataset.queries.get(query, ""), QUERY) for query in queries]
    return {"places": list(places), "ids": queries, "texts": texts, "values": values}


def results_table(given: EvaluatedSet) -> Table:
    """Return the results as a table with marks: measures first, then every cost that is known."""
    measures = list(given.systems[0]["measures"])
    table = Table(columns=dict.fromkeys(measures, ".4f"))
    table.rows = {
        str(system["name"]): {m: system["measures"].get(m) for m in measures}
        for system in given.systems
    }
    add_costs(table, {str(system["name"]): system for system in given.systems})
    tested = list(given.results.get("comparisons", []))
    for each in tested:
        if each["significant"]:
            table.marks[each["system"], each["measure"]] = MARK
    if tested:
        table.caption = given.config.evaluate.testing.table_caption(
            str(tested[0]["baseline"]), len(given.systems) - 1, len(given.queries)
        )
    return table


def shown_table(table: Table) -> dict[str, Any]:
    """Return a table as the page draws it, and the texts it offers to copy."""
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
    made = {}
    for measure, found in (results.get("tables") or {}).items():
        columns = [column for column in found["systems"][0] if column != "name"]
        table = Table(
            columns=dict.fromkeys(columns, ".4f"),
            rows={row["name"]: {c: row.get(c) for c in columns} for row in found["systems"]},
            caption=found.get("caption", ""),
        )
        for each in found.get("comparisons", []):
            if each["significant"] and each.get("dataset") in columns:
                table.marks[each["system"], each["dataset"]] = MARK
        made[measure] = shown_table(table)
    return made


def trainings(folder: Path) -> list[dict[str, Any]]:
    """Return the curves of every training in an experiment's folder, at most 300 points each."""
    from sluice.training.journal.curves import METRICS, panels_of, read_trainings

    folders = [folder / name for name in JOURNALS if any((folder / name).rglob(METRICS))]
    try:
        found = read_trainings(folders) if folders else []
    except DataError:  # a training that has logged nothing yet
        return []
    made = []
    for training in found:
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
        made.append({"name": training.name, "panels": panels})
    return made
