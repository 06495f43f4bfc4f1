"""The verb that makes a page, or training curves, of what experiments wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.options import Allow, allowed, refuse_options
from sluice.retrieval.cli.terminal.output import echo
from sluice.retrieval.cli.terminal.verbs import Shown


def report(
    folders: Annotated[
        list[Path],
        "FOLDER",
        "The output folder of run or evaluate; two are compared. With --curves or --csv: "
        "one or more such folders, or those of training runs.",
    ],
    *,
    output: Annotated[Path | None, "The HTML file to write.", Shown("FOLDER/report.html")] = None,
    queries: Annotated[
        int | None,
        "Queries of each dataset that are shown with their documents.",
        Shown("200, fewer for many datasets"),
    ] = None,
    allow: Allow = None,
    curves: Annotated[
        Path | None, "Draw training curves instead, into an .svg, .png or .pdf file."
    ] = None,
    csv: Annotated[Path | None, "Write training curves as a table: run, name, step, value."] = None,
) -> None:
    """Write an HTML report, or training curves.

    The report is one file: measures and costs with their tests, quality against latency and size,
    differences query by query with documents, term weights and ranks, recall by depth, failures,
    score distributions and training curves. It needs no network, and no document in it can run a
    script.

    Two folders give one page: the differences of systems with the same name, tested query by query,
    their costs, the settings that differ, and the queries that changed most.

    With --curves or --csv the metrics.jsonl of training runs, finished or not, become a figure or a
    table: loss, penalties, dev measures (a star at the best), learning rate, gradient norms, active
    terms and the age of the negatives, as far as recorded.

    Examples:
      sluice report runs/nfcorpus
      sluice report runs/suite --output suite.html --queries 50
      sluice report runs/before runs/after
      sluice report runs/a runs/b --curves compared.pdf --csv compared.csv
    """
    if curves is not None or csv is not None:
        refuse_options(
            "for the HTML report, not for --curves or --csv",
            output=output, queries=queries, allow=allow,
        )  # fmt: skip
        _write_curves(folders, curves, csv)
        return
    if len(folders) > 2:
        raise ConfigError(
            f"report: {len(folders)} folders; expected one, or two to compare (several go into one "
            "figure with --curves curves.svg)"
        )
    if len(folders) == 2:
        from sluice.retrieval.studies.report.compared import build_comparison

        refuse_options("for the report of one folder, not for a comparison", queries=queries)
        path = build_comparison(*folders, output=output, allow=allowed(allow))
        echo(f"{path}: {path.stat().st_size:,} bytes")
        return
    from sluice.retrieval.studies.report.page import build_report

    path = build_report(folders[0], output=output, queries=queries, allow=allowed(allow))
    echo(f"{path}: {path.stat().st_size:,} bytes")


def _write_curves(folders: list[Path], figure: Path | None, table: Path | None) -> None:
    from sluice.encoders.foundation.disk.files import write_text
    from sluice.training.journal.curves import as_csv, read_trainings

    runs = read_trainings(folders)
    names = ", ".join(run.name for run in runs)
    if figure is not None:
        from sluice.training.journal.plot import plot_trainings

        echo(f"{plot_trainings(runs, figure)}: {names}")
    if table is not None:
        table.parent.mkdir(parents=True, exist_ok=True)
        write_text(table, as_csv(runs))
        echo(f"{table}: {names}")
