"""``sluice report`` and ``sluice reproduce``: pages of experiments, and experiments repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.messages import echo, show
from sluice.retrieval.cli.terminal.options import Allow, allowed, refuse_options
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


def reproduce(
    folder: Annotated[Path | None, "FOLDER", "The output folder of run or evaluate."] = None,
    *,
    output: Annotated[
        Path | None,
        "FOLDER",
        "The folder of the second run.",
        Shown("FOLDER/reproduced, or runs/published/NAME"),
    ] = None,
    tolerance: Annotated[
        float | None,
        "Figures that differ by at most X count as equal.",
        Shown("5e-05, or what the list says"),
    ] = None,
    published: Annotated[
        list[str] | None, "NAME", "Repeat a published run of the list instead; may be repeated."
    ] = None,
    dataset: Annotated[
        str | None,
        "Where a published run's collection lies.",
        Shown("the folder of its name, here or in $SLUICE_DATA"),
    ] = None,
    listed: Annotated[bool, "List the published runs.", Shown(names=("--list",))] = False,
    allow: Allow = None,
) -> None:
    """Repeat an experiment, or a published run.

    With FOLDER: trains, indexes and evaluates again from the record in results.json. A dataset or
    model that is missing or has changed is reported before anything runs. The exit code is 0 if all
    figures are equal, else 1.

    With --published: runs a system whose figures others have published, as bm25-scifact, and
    compares. The collection is a folder in BEIR layout, here or below $SLUICE_DATA, or what
    --dataset names as in a YAML file. The last line printed is for a log of reproductions. The exit
    code is 1 if a figure is further off than the list allows.

    Examples:
      sluice reproduce runs/nfcorpus
      sluice reproduce --list
      sluice reproduce --published bm25-scifact --published minilm-scifact
    """
    if listed or published:
        if folder is not None:
            raise ConfigError(f"{folder}: goes without --published and --list; leave it out")
        refuse_options("for the reproduction of a folder", allow=allow)
        if listed:
            refuse_options(
                "for --published, not for --list",
                output=output, tolerance=tolerance, dataset=dataset, published=published or None,
            )  # fmt: skip
        _reproduce_published(published or [], output, tolerance, dataset)
        return
    refuse_options("for --published NAME", dataset=dataset)
    if folder is None:
        raise ConfigError(
            "reproduce: no FOLDER; give the output folder of run or evaluate, or --published NAME "
            "(sluice reproduce --list has the names)"
        )
    from sluice.retrieval.experiments.reproduction.recorded import (
        TOLERANCE,
        reproduce as reproduce_experiment,
    )

    within = TOLERANCE if tolerance is None else tolerance
    reproduction = reproduce_experiment(folder, output, tolerance=within, allow=allowed(allow))
    show(reproduction.table)
    for change in reproduction.changed:
        echo(f"changed since: {change}")
    if not reproduction.same:
        raise typer.Exit(1)


def _reproduce_published(
    names: list[str], output: Path | None, tolerance: float | None, dataset: str | None
) -> None:
    """List the published runs, or repeat those named; exit code 1 if a figure is off."""
    from sluice.retrieval.experiments.reproduction.listed import published_run, published_runs
    from sluice.retrieval.experiments.reproduction.recorded import listing, repeat

    if not names:
        echo(str(listing(published_runs().values())))
        return
    runs = [published_run(name) for name in dict.fromkeys(names)]
    if len(runs) > 1:
        refuse_options("for one published run, not for several", output=output, dataset=dataset)
    held = True
    for run in runs:
        repetition = repeat(run, dataset=dataset, output=output, tolerance=tolerance)
        echo(str(repetition.table))
        echo(f"\n{repetition.log}\n")
        held = held and repetition.held
    if not held:
        raise typer.Exit(1)
