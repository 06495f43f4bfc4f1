"""What the report shows of one dataset: values for JSON, the result in a sentence, its columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.evaluation.measures import parse_measure
from sluice.retrieval.evaluation.scores import Scores
from sluice.retrieval.evaluation.table import Table, add_costs, stored_table
from sluice.retrieval.studies.report.evaluated import (
    EvaluatedSet,
    document_lengths,
    figures,
    recall_curves,
    score_histograms,
)
from sluice.retrieval.studies.report.failures import buckets, judges_few, reranked_depth
from sluice.retrieval.studies.report.origin import origin_of
from sluice.retrieval.studies.report.queries import QUERY, choose, cut, details, plotted


def conclusion(evaluated: EvaluatedSet) -> str:
    """Return the sentence: by the first measure the best system, and which is the fastest."""
    systems = {str(each["name"]): each for each in evaluated.systems}
    measure = next(iter(next(iter(systems.values()))["measures"]))
    values = {name: float(each["measures"][measure]) for name, each in systems.items()}
    best = max(values, key=values.__getitem__)
    tied = [name for name, value in values.items() if value == values[best]]
    value = f"{measure} {short(values[best])}"
    if len(systems) == 1:
        return f"{best} has {value}{_time(systems[best])}."
    if len(tied) > 1:
        verb = f"{', '.join(tied[:-1])} and {tied[-1]} are best: {value}"
    elif best == evaluated.baseline:
        verb = f"{best}, the baseline, is best: {value}{_time(systems[best])}"
    else:
        against = _against(evaluated.results.get("comparisons") or [], best, measure)
        verb = f"{best} is best: {value}{against}{_time(systems[best])}"
    cheapest = _cheapest(systems)
    if cheapest == best:
        return f"{verb}; it is the fastest too."
    if cheapest is None:
        return f"{verb}."
    return f"{verb}; {cheapest} is the fastest{_time(systems[cheapest])}."


def short(value: float, sign: str = "") -> str:
    """Return a number as tables of results have it: .511, or 1.250."""
    text = format(value, f"{sign}.3f").replace("-", "−")
    return text.replace("0.", ".", 1) if abs(float(f"{value:.3f}")) < 1 else text


def _against(comparisons: Sequence[Mapping[str, Any]], system: str, measure: str) -> str:
    for each in comparisons:
        if (each["system"], each["measure"]) != (system, measure):
            continue
        low, high = each.get("low"), each.get("high")
        interval = (
            "" if low is None or high is None else f" [{short(low, '+')}, {short(high, '+')}]"
        )
        doubt = "" if each["significant"] else ", which may be chance"
        return f", {short(each['difference'], '+')}{interval} over {each['baseline']}{doubt}"
    return ""


def _time(system: Mapping[str, Any]) -> str:
    median = (system.get("latency_ms") or {}).get("p50")
    return "" if median is None else f", {_milliseconds(median)} a query"


def _milliseconds(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 10 else f"{value:.1f} ms"


def _cheapest(systems: Mapping[str, Mapping[str, Any]]) -> str | None:
    times = {
        name: median
        for name, each in systems.items()
        if (median := (each.get("latency_ms") or {}).get("p50")) is not None
    }
    return min(times, key=times.__getitem__) if len(times) > 1 else None


# docs/measures.md has the formulas and their sources; ``{at}`` is "the first 10" or "all".
MEANINGS: Final = {
    "nDCG": "gain of {at} documents, discounted by rank, over that of the best order; 1 is perfect",
    "nDCG_exp": "as nDCG over {at} documents, with gains 2^grade - 1; 1 is perfect",
    "P": "share of {at} documents that are relevant",
    "R": "share of a query's relevant documents that are among {at}",
    "R_cap": "relevant documents among {at}, over as many as could be there",
    "Success": "share of queries with a relevant document among {at}",
    "AP": "precision at each relevant document, averaged over a query's relevant documents",
    "GMAP": "geometric mean of AP over queries: weak queries weigh more",
    "RR": "1 / rank of the first relevant document among {at} (MRR)",
    "Rprec": "precision at the rank that is a query's number of relevant documents",
    "Bpref": "judged non-relevant documents below relevant ones; unjudged ones do not count",
    "infAP": "AP estimated from a sampled pool of judgements",
    "IPrec": "best precision at this recall or more",
    "SetP": "share of all retrieved documents that are relevant",
    "SetRelP": "relevant documents retrieved, over as many as could be",
    "SetR": "share of a query's relevant documents that were retrieved",
    "SetF": "weighted harmonic mean of precision and recall of all retrieved documents",
    "SetAP": "precision times recall of all retrieved documents",
    "NumRet": "documents retrieved, summed over queries",
    "NumRel": "relevant documents in the judgements, summed over queries",
    "NumRelRet": "relevant documents retrieved, summed over queries",
    "ERR": "expected 1 / rank at which a user who is satisfied by grades stops",
    "RBP": "gain of a user who continues to the next document with probability p",
    "RBP_residual": "what RBP could gain if everything unjudged were relevant",
    "Judged": "share of {at} documents that have a judgement",
    "Hole": "share of {at} documents that have no judgement",
}
COSTS: Final = {
    "p50 ms": "median time of one query alone, encoding included, in milliseconds",
    "p95 ms": "19 of 20 queries take no longer, in milliseconds",
    "p99 ms": "99 of 100 queries take no longer, in milliseconds",
    "queries/s": "queries a second, all of them handed over at once",
    "index MB": "size of every index that the system searches, in megabytes",
    "resident MB": "how much of the indexes should fit into memory, in megabytes",
    "bytes/doc": "size of the indexes for each document, in bytes",
    "indexed docs/s": "documents a second when the indexes were built, encoding included",
    "peak MB": "most memory of the process during the run, models included, in megabytes",
}


def meanings(columns: Iterable[str]) -> dict[str, str]:
    """Return what each of the columns means; a user's own measures are left out."""
    texts = {}
    for column in columns:
        text = COSTS.get(column) or _of_measure(column)
        if text:
            texts[column] = text
    return texts


def _of_measure(column: str) -> str:
    try:
        measure = parse_measure(column)
    except ConfigError:
        return ""
    at = f"the first {measure.cutoff:,}" if measure.cutoff else "all retrieved"
    text = MEANINGS.get(measure.name, "").format(at=at)
    level = f" (relevant is a grade of {measure.level} or more)" if measure.level != 1 else ""
    return text + level if text else ""


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
    tested = list(evaluated.results.get("comparisons", []))
    systems = [{"name": str(each["name"]), **each["measures"]} for each in evaluated.systems]
    table = stored_table({"systems": systems, "comparisons": tested})
    add_costs(table, {str(system["name"]): system for system in evaluated.systems})
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


def trainings(folder: Path) -> list[dict[str, Any]]:
    """Return the curves of an experiment's training runs, at most 300 points each."""
    from sluice.training.journal import METRICS, panels_of, read_trainings

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
