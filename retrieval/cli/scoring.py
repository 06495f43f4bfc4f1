"""``score`` and ``compare``: run files against judgements, as trec_eval scores them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.encoders.foundation.errors import ConfigError

if TYPE_CHECKING:
    from sluice.retrieval.evaluation.scores import Scores

Measures = Annotated[
    list[str] | None,
    typer.Option("-m", "--measure", help="nDCG@10, R@100, RR@10, AP, P@5, ... (may be repeated)."),
]
QRELS = "Judgements: a file (TREC, or BEIR's tsv), or a dataset whose test split has them."
DEFAULT = ("nDCG@10", "R@100")


def score(
    run: Annotated[Path, typer.Argument(help="A run: TREC, or Tevatron's three columns; .gz too.")],
    qrels: Annotated[str, typer.Argument(help=QRELS)],
    measure: Measures = None,
    per_query: Annotated[bool, typer.Option("-q", "--per-query", help="Per query too.")] = False,
) -> None:
    """Score a run; the values are trec_eval's (with -c: a query the run misses counts 0).

    docs/measures.md has every measure, its other spellings, and where other tools differ.

    Examples:
      sluice score run.trec qrels.tsv -m nDCG@10 -m AP -q
      sluice score run.trec qrels.tsv -m Bpref -m Rprec -m 'RBP(p=0.8)' -m ERR@20
    """
    from sluice.retrieval.datasets.judgements import judgements
    from sluice.retrieval.evaluation.measures import parse_measure
    from sluice.retrieval.evaluation.scores import evaluate
    from sluice.retrieval.runs.run import Run

    wanted = [parse_measure(text) for text in measure or DEFAULT]
    scores = evaluate(Run.load(run), judgements(qrels), wanted)
    lines = []
    if per_query:
        for query in scores.per_query[str(wanted[0])]:
            lines += [
                f"{name}\t{query}\t{values[query]:.4f}" for name, values in scores.per_query.items()
            ]
    lines += [f"{name}\tall\t{value:.4f}" for name, value in scores.mean.items()]
    typer.echo("\n".join(lines))
    _say_unmatched(scores)


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two runs or more.")],
    qrels: Annotated[str, typer.Option(help=QRELS)],
    measure: Measures = None,
    baseline: Annotated[
        str | None, typer.Option(help="A run's name; the first by default.")
    ] = None,
    test: Annotated[str, typer.Option(help="t-test, fisher or bootstrap.")] = "t-test",
    correction: Annotated[str, typer.Option(help="holm, bonferroni or none.")] = "holm",
    alpha: Annotated[float, typer.Option(help="Level of the tests and intervals.")] = 0.05,
    equivalent: Annotated[
        float | None,
        typer.Option(help="Also test equality to within this share of the baseline's mean (TOST)."),
    ] = None,
    per_query: Annotated[
        Path | None,
        typer.Option(help="CSV to write: the first measure by query, by difference."),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="text, markdown, csv, latex, html or json.")
    ] = "text",
) -> None:
    """Compare runs: means, significance against a baseline, effect sizes, wins and losses.

    P-values are corrected over the systems, measure by measure. Runs may come from any tool.

    Examples:
      sluice compare bm25.trec dense.trec --qrels qrels.tsv -m nDCG@10
      sluice compare a.trec b.trec --qrels q.tsv --test fisher --per-query by-query.csv
    """
    from sluice.encoders.foundation.files import write_text
    from sluice.retrieval.datasets.judgements import judgements
    from sluice.retrieval.evaluation.comparison import (
        SignificanceTest,
        baseline_of,
        compare_scores,
        differences,
    )
    from sluice.retrieval.evaluation.per_query import equivalences, per_query_csv
    from sluice.retrieval.evaluation.scores import evaluate
    from sluice.retrieval.runs.run import Run

    forms = ("text", "markdown", "csv", "latex", "html", "json")
    if form not in forms:
        raise ConfigError(f"--format: {form!r}; expected one of {', '.join(forms)}")
    testing = SignificanceTest(test, correction, alpha)  # type: ignore[arg-type]
    loaded: dict[str, Run] = {}
    for path in runs:
        opened = Run.load(path)
        name = opened.name if opened.name not in loaded else str(path)
        if name in loaded:
            raise ConfigError(f"compare: {path} is given twice")
        loaded[name] = opened
    if len(loaded) < 2:
        raise ConfigError("compare: give two runs or more")
    baseline_of(loaded, baseline)
    judged, wanted = judgements(qrels), list(measure or DEFAULT)
    scores = {name: evaluate(run, judged, wanted) for name, run in loaded.items()}
    tables = [compare_scores(scores, baseline=baseline, testing=testing)]
    if form in ("text", "markdown"):
        tables.append(differences(tables[0].comparisons))
    if equivalent is not None:
        tables.append(equivalences(scores, equivalent, baseline))
    if per_query is not None:
        write_text(per_query, per_query_csv(scores, wanted[0], baseline))
    for name, each in scores.items():
        _say_unmatched(each, f"{name}: ")
    if form == "json":
        whole = tables[0].to_dict()
        if equivalent is not None:
            whole["equivalences"] = tables[-1].to_dict()
        typer.echo(json.dumps(whole, indent=2, ensure_ascii=False))
        return
    told = (str(each) if form == "text" else getattr(each, f"to_{form}")() for each in tables)
    typer.echo("\n\n".join(text.rstrip("\n") for text in told))


def _say_unmatched(scores: Scores, title: str = "") -> None:
    """Say how many queries are in one of the two files alone."""
    if scores.missing:
        typer.echo(
            f"{title}{scores.missing:,} judged queries are not in the run; scored 0", err=True
        )
    if scores.ignored:
        typer.echo(
            f"{title}{scores.ignored:,} queries of the run have no judgements; ignored", err=True
        )


COMMANDS = (score, compare)
