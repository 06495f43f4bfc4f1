"""The verbs that score run files against judgements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from annotated_types import Ge

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.printing import echo
from sluice.retrieval.cli.terminal.verbs import (
    PERSISTENCE,
    Command,
    Form,
    Measures,
    Shown,
    plural,
    refuse_options,
    show_table,
    split_measures,
    takes,
)

if TYPE_CHECKING:
    from sluice.retrieval.evaluation.comparison import SignificanceTest
    from sluice.retrieval.evaluation.scores import Scores
    from sluice.retrieval.evaluation.table import Table
    from sluice.retrieval.runs.run import Run

QRELS = "Judgements: a TREC or BEIR qrels file, or a dataset, whose test split is used."
SIMILARITY = "Similarity of rankings"
DEFAULT = ("nDCG@10", "R@100")


def score(
    run: Annotated[Path, "RUN", "A run file: TREC, or Tevatron's three columns; .gz is read too."],
    qrels: Annotated[str, QRELS],
    *,
    measure: Measures = None,
    per_query: Annotated[
        bool,
        "Print the values of each query too.",
        Shown(names=("-q", "--per-query")),
    ] = False,
) -> None:
    """Score a run as trec_eval does.

    The values are those of trec_eval -c: a judged query that the run misses counts 0. Without -m
    they are nDCG@10 and R@100. docs/measures.md has every measure and its other spellings.

    Examples:
      sluice score run.trec qrels.tsv -m ndcg@10,map -q
      sluice score run.trec qrels.tsv -m Bpref -m 'RBP(p=0.8)' -m ERR@20
    """
    from sluice.retrieval.datasets.dataset import judgements
    from sluice.retrieval.evaluation.measures import parse_measure
    from sluice.retrieval.evaluation.scores import evaluate
    from sluice.retrieval.runs.run import Run

    measures = [parse_measure(text) for text in split_measures(measure, DEFAULT)]
    scores = evaluate(Run.load(run), judgements(qrels), measures)
    lines = []
    if per_query:
        for query in scores.per_query[str(measures[0])]:
            lines += [
                f"{name}\t{query}\t{values[query]:.4f}" for name, values in scores.per_query.items()
            ]
    lines += [f"{name}\tall\t{value:.4f}" for name, value in scores.mean.items()]
    echo("\n".join(lines))
    _warn_of_unmatched(scores)


@takes(
    "sluice.retrieval.cli.measuring.score:_overlaps",
    panels={SIMILARITY: "overlap k p"},
    p=PERSISTENCE,
)
def compare(
    runs: Annotated[list[Path], "RUN", "Two run files or more, of any tool."],
    *,
    qrels: Annotated[str | None, f"{QRELS} Needed without --overlap."] = None,
    measure: Measures = None,
    baseline: Annotated[
        str | None, "NAME", "The run to compare with.", Shown("the first run")
    ] = None,
    test: Annotated[str, "Paired test: t-test, fisher or bootstrap."] = "t-test",
    correction: Annotated[
        str, "NAME", "Correction of p-values over the runs: holm, bonferroni or none."
    ] = "holm",
    alpha: Annotated[float, "P", "Level of the tests and confidence intervals."] = 0.05,
    equivalent: Annotated[
        float | None,
        "SHARE",
        "Test equivalence too (TOST): within this share of the baseline's mean.",
    ] = None,
    per_query: Annotated[
        Path | None, "Write the first measure by query as CSV, the largest differences first."
    ] = None,
    form: Form = "text",
    overlap: Annotated[
        bool,
        "Compare the rankings themselves with the baseline's: rank-biased overlap, "
        "shared documents of the first k, Kendall's tau.",
    ] = False,
    **values: Any,
) -> None:
    """Compare runs, with significance tests.

    Means, p-values against the baseline, effect sizes, wins and losses. P-values are corrected over
    the runs, measure by measure. --overlap needs no judgements.

    Examples:
      sluice compare bm25.trec dense.trec --qrels qrels.tsv -m nDCG@10
      sluice compare a.trec b.trec --qrels q.tsv --test fisher --per-query by-query.csv
      sluice compare bm25.trec dense.trec --overlap -k 20
    """
    from sluice.retrieval.evaluation.comparison import SignificanceTest, baseline_of

    if qrels is None and not overlap:
        raise ConfigError(
            "compare: no judgements; give --qrels FILE, or --overlap, which compares the rankings "
            "alone"
        )
    if not overlap:
        refuse_options("for --overlap", k=values.get("k"), persistence=values.get("p"))
    if qrels is None:
        options = {"measure": measure, "equivalent": equivalent, "per_query": per_query}
        refuse_options("for judged runs; give --qrels too", **options)
    testing = SignificanceTest(test, correction, alpha)  # type: ignore[arg-type]
    loaded = _load_runs(runs)
    baseline_of(loaded, baseline)
    tables: dict[str, Table] = {}
    if qrels is not None:
        tables = _judged_tables(
            loaded, qrels, split_measures(measure, DEFAULT), baseline, testing, equivalent,
            per_query, differences=form in ("text", "markdown"),
        )  # fmt: skip
    if overlap:
        tables["overlap"] = _overlaps(loaded, baseline, **values)
    if form == "json":
        shown = tables.pop("scores" if qrels is not None else "overlap").to_dict()
        shown.update({name: table.to_dict() for name, table in tables.items()})
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    echo("\n\n".join(show_table(table, form) for table in tables.values()))


def _load_runs(paths: list[Path]) -> dict[str, Run]:
    from sluice.retrieval.runs.run import Run

    runs: dict[str, Run] = {}
    for path in paths:
        run = Run.load(path)
        name = run.name if run.name not in runs else str(path)
        if name in runs:
            raise ConfigError(f"compare: {path} occurs twice")
        runs[name] = run
    if len(runs) < 2:
        raise ConfigError("compare: expected at least two runs, got 1")
    return runs


def _judged_tables(
    runs: dict[str, Run],
    qrels: str,
    measures: list[str],
    baseline: str | None,
    testing: SignificanceTest,
    equivalent: float | None,
    per_query: Path | None,
    *,
    differences: bool,
) -> dict[str, Table]:
    """Return the tables of scores, differences and equivalences; write the CSV by query."""
    from sluice.encoders.foundation.disk.files import write_text
    from sluice.retrieval.datasets.dataset import judgements
    from sluice.retrieval.evaluation.comparison import (
        compare_scores,
        differences as difference_table,
        equivalences,
        per_query_csv,
    )
    from sluice.retrieval.evaluation.scores import evaluate

    judged = judgements(qrels)
    scores = {name: evaluate(run, judged, measures) for name, run in runs.items()}
    tables = {"scores": compare_scores(scores, baseline=baseline, testing=testing)}
    if differences:
        tables["differences"] = difference_table(tables["scores"].comparisons)
    if equivalent is not None:
        tables["equivalences"] = equivalences(scores, equivalent, baseline)
    if per_query is not None:
        write_text(per_query, per_query_csv(scores, measures[0], baseline))
    for name, each in scores.items():
        _warn_of_unmatched(each, f"{name}: ")
    return tables


def _overlaps(
    runs: dict[str, Run],
    baseline: str | None,
    k: Annotated[int, Ge(1), "Depth of the shared documents."] = 10,
    p: Annotated[float, "P", "Persistence of rank-biased overlap, between 0 and 1."] = 0.9,
) -> Table:
    """Return how similar each run's rankings are to the baseline's."""
    from sluice.retrieval.evaluation.table import Table
    from sluice.retrieval.runs.several_runs import compare_rankings

    first = baseline or next(iter(runs))
    columns = ("RBO", f"overlap@{k}", "Kendall's tau")
    table = Table(columns=dict.fromkeys(columns, ".4f") | {"queries": ",d"})
    for name, run in runs.items():
        if name == first:
            continue
        alike = compare_rankings(runs[first], run, k=k, p=p)
        values = (alike.rbo, alike.overlap, alike.tau, alike.queries)
        table.rows[name] = dict(zip(table.columns, values, strict=True))
    table.caption = f"rankings compared with those of {first}; RBO with persistence {p:g}"
    return table


def _warn_of_unmatched(scores: Scores, title: str = "") -> None:
    """Warn of queries that occur in only one of the two files."""
    if scores.missing:
        verb = "is" if scores.missing == 1 else "are"
        count = plural(scores.missing, "judged query")
        echo(f"{title}{count} {verb} not in the run; scored 0", err=True)
    if scores.ignored:
        verb = "has" if scores.ignored == 1 else "have"
        count = plural(scores.ignored, "query")
        echo(f"{title}{count} of the run {verb} no judgements; ignored", err=True)


COMMANDS: dict[str, Command] = {"score": score, "compare": compare}
