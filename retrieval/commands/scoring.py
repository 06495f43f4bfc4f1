"""``score`` and ``compare``: run files against judgements, as trec_eval scores them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from encoders.errors import ConfigError

if TYPE_CHECKING:
    from retrieval.evaluation import Scores

Measures = Annotated[
    list[str] | None,
    typer.Option("-m", "--measure", help="nDCG@10, R@100, RR@10, AP, P@5, ... (may be repeated)."),
]
DEFAULT = ("nDCG@10", "R@100")


def score(
    run: Annotated[Path, typer.Argument(help="A run: TREC, or Tevatron's three columns; .gz too.")],
    qrels: Annotated[Path, typer.Argument(help="Judgements: TREC, or BEIR's tsv.")],
    measure: Measures = None,
    per_query: Annotated[bool, typer.Option("-q", "--per-query", help="Per query too.")] = False,
) -> None:
    """Score a run; the values are trec_eval's (with -c: a query the run misses counts 0).

    docs/measures.md has every measure, its other spellings, and where other tools differ.

    Examples:
      sluice score run.trec qrels.tsv -m nDCG@10 -m AP -q
      sluice score run.trec qrels.tsv -m Bpref -m Rprec -m 'RBP(p=0.8)' -m ERR@20
    """
    from retrieval.evaluation import evaluate
    from retrieval.measures import parse_measure
    from retrieval.ranking import Run
    from retrieval.trec_files import read_qrels

    wanted = [parse_measure(text) for text in measure or DEFAULT]
    scores = evaluate(Run.load(run), read_qrels(qrels), wanted)
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
    qrels: Annotated[Path, typer.Option(help="Judgements: TREC, or BEIR's tsv.")],
    measure: Measures = None,
    baseline: Annotated[
        str | None, typer.Option(help="A run's name; the first by default.")
    ] = None,
    test: Annotated[str, typer.Option(help="t-test or fisher.")] = "t-test",
    form: Annotated[
        str, typer.Option("--format", help="text, markdown, csv, latex, html or json.")
    ] = "text",
) -> None:
    """Compare runs: means, significance against a baseline (Holm-corrected), wins and losses.

    Example:  sluice compare bm25.trec dense.trec --qrels qrels.tsv -m nDCG@10
    """
    from retrieval.comparison import compare_scores
    from retrieval.evaluation import evaluate
    from retrieval.ranking import Run
    from retrieval.trec_files import read_qrels

    forms = ("text", "markdown", "csv", "latex", "html", "json")
    if form not in forms:
        raise ConfigError(f"--format: {form!r}; expected one of {', '.join(forms)}")
    loaded: dict[str, Run] = {}
    for path in runs:
        opened = Run.load(path)
        name = opened.name if opened.name not in loaded else str(path)
        loaded[name] = opened
    if len(loaded) < 2:
        raise ConfigError("compare: give two runs or more")
    judged = read_qrels(qrels)
    scores = {name: evaluate(run, judged, measure or DEFAULT) for name, run in loaded.items()}
    table = compare_scores(scores, baseline=baseline, test=test)  # type: ignore[arg-type]
    typer.echo(str(table) if form == "text" else getattr(table, f"to_{form}")().rstrip("\n"))
    if form == "text":
        for item in table.comparisons:
            typer.echo(
                f"{item.measure}: {item.system} - {item.baseline} = {item.difference:+.4f}  "
                f"p = {item.p_corrected:.4g} (Holm)  "
                f"win/tie/loss {item.wins}/{item.ties}/{item.losses}"
            )
    for name, each in scores.items():
        _say_unmatched(each, f"{name}: ")


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
