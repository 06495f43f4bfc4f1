"""``ltr``: a ranker over lexical, positional and neural features."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.retrieval.cli.experiment import ConfigFile, Overrides
from sluice.retrieval.evaluation.table import Table

SHOWN = 15  # features


def ltr(
    config: ConfigFile,
    overrides: Overrides = None,
    folds: Annotated[
        int | None,
        typer.Option(help="Cross-validate by query in so many folds; no ranker is kept."),
    ] = None,
) -> None:
    """Learn to rank: train the ranker of a config's section `ranker`.

    It reranks the candidates by BM25, language models, matches and their places, and the scores of
    retrievers; LambdaMART (LightGBM) or a linear model. A pipeline uses the folder by
    `hybrid >> ltr(bm25, dense, model='OUTPUT/ranker', depth=200)`.

    Examples:
      sluice ltr configs/ltr.yaml
      sluice ltr configs/ltr.yaml --folds 5
    """
    from sluice.retrieval import jobs

    if folds is not None:
        report = jobs.ltr_folds(config, overrides or [], folds=folds)
        typer.echo(f"{report}\n\n{_first(report.importances)}")
        return
    made = jobs.ltr(config, overrides or [])
    typer.echo(str(_first(made.ranker.importances())))
    typer.echo(
        f"\n{made.path}: taught by {made.queries:,} queries; nDCG@10 of {made.dev_queries:,} dev "
        f"queries {made.dev:.4f}, in the order given {made.dev_given:.4f}"
    )


def _first(table: Table) -> Table:
    return Table(table.columns, dict(list(table.rows.items())[:SHOWN]))


COMMANDS = (ltr,)
