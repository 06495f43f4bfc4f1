"""``report``: an evaluation as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The output of evaluate or run.")],
    output: Annotated[Path | None, typer.Option(help="The page to write: DIR/report.html.")] = None,
    queries: Annotated[
        int | None,
        typer.Option(help="Queries of each dataset with their documents: 200, fewer for many."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="An encoder class of yours, module:Class, that DIR may import."),
    ] = None,
) -> None:
    """Make the page of an evaluation: tables, figures and single queries in one HTML file.

    It shows all measures and costs with their tests, quality against latency and size, differences
    query by query with documents, term weights and relevant documents' ranks, recall by depth,
    failures, score distributions and training curves. The file needs no network, and no document
    in it can run a script.

    Examples:
      sluice report runs/nfcorpus
      sluice report runs/suite --output suite.html --queries 50
    """
    from sluice.retrieval.studies.report.page import build_report

    path = build_report(folder, output=output, queries=queries, allow=allow or ())
    typer.echo(f"{path}: {path.stat().st_size:,} bytes")


COMMANDS = (report,)
