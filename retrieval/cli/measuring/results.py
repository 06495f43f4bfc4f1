"""Draws training curves, trade-offs and differences; writes reports; repeats experiments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.encoders.foundation.disk.figures import check_format, save_figure
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.trust import refuse_links
from sluice.retrieval.cli.terminal.printing import echo, show
from sluice.retrieval.cli.terminal.verbs import Allow, Command, Shown, allowed, refuse_options

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PLOT = """Draw training, trade-offs, differences.

Figures for papers and talks, from the folders that the other verbs write: svg, png or pdf, in
colours that the colour-blind and a grey printer tell apart. docs/gallery.md shows them with the
line of Python that makes each. They need matplotlib: `pip install 'sluice-ir[plots]'`.
"""
Evaluated = Annotated[Path, "FOLDER", "The output folder of run or evaluate."]
Output = Annotated[
    Path | None, "The .svg, .png or .pdf file to write.", Shown("FOLDER/plots/VERB.svg")
]
MeasureName = Annotated[str | None, "MEASURE", "The measure to draw.", Shown("the first")]


def training(
    folders: Annotated[
        list[Path], "FOLDER", "Folders of training runs, finished or not, or of run."
    ],
    *,
    output: Output = None,
    panel: Annotated[
        str | None, "TITLE", "Draw this part only, as Loss.", Shown("all that were logged")
    ] = None,
) -> None:
    """Draw loss, dev measures and rates by step.

    Several folders are overlaid. A star marks the best value of a dev measure.

    Example:
      sluice plot training runs/quickstart --output curves.pdf
    """
    from sluice.retrieval.studies.plots import plot_training

    path = _path(output, folders[0], "training")
    if output is None:
        refuse_links(folders[0], ())  # plots/ in somebody's folder may lead elsewhere
    _write(plot_training(*folders, panel=panel), path)


def tradeoff(
    folder: Evaluated,
    *,
    output: Output = None,
    measure: MeasureName = None,
    cost: Annotated[str, "p50 ms, p95 ms, p99 ms, index MB, bytes/doc or peak MB."] = "p50 ms",
    allow: Allow = None,
) -> None:
    """Draw the systems by cost and quality.

    Retrievers that differ in their `search` parameters only, as nprobe or ef_search, are one line.

    Example:
      sluice plot tradeoff runs/indexes -m R@100 --cost 'index MB'
    """
    from sluice.retrieval.studies.plots import plot_tradeoff

    path = _path(output, folder, "tradeoff")
    _write(plot_tradeoff(folder, measure, cost, allow=allowed(allow)), path)


def cascades(
    folder: Annotated[Path, "FOLDER", "The output folder of tune."],
    *,
    output: Output = None,
    allow: Allow = None,
) -> None:
    """Draw what tune tried, by depth and cost.

    Example:
      sluice plot cascades runs/tune
    """
    from sluice.retrieval.studies.plots import plot_cascades

    path = _path(output, folder, "cascades")
    _write(plot_cascades(folder, allow=allowed(allow)), path)


def differences(
    folder: Evaluated,
    *,
    output: Output = None,
    system: Annotated[
        str | None, "NAME", "The system to draw.", Shown("the best beside the baseline")
    ] = None,
    baseline: Annotated[
        str | None, "NAME", "What it is compared with.", Shown("the evaluation's baseline")
    ] = None,
    measure: MeasureName = None,
    allow: Allow = None,
) -> None:
    """Draw a bar per query: gained or lost.

    Example:
      sluice plot differences runs/quickstart --system cascade --baseline bm25
    """
    from sluice.retrieval.studies.plots import plot_differences

    path = _path(output, folder, "differences")
    _write(plot_differences(folder, system, baseline, measure, allow=allowed(allow)), path)


def depths(folder: Evaluated, *, output: Output = None, allow: Allow = None) -> None:
    """Draw recall by the depth of the list.

    Example:
      sluice plot depths runs/quickstart
    """
    from sluice.retrieval.studies.plots import plot_depths

    path = _path(output, folder, "depths")
    _write(plot_depths(folder, allow=allowed(allow)), path)


def _path(output: Path | None, folder: Path, verb: str) -> Path:
    """Return where the figure goes; its ending is checked before any work."""
    path = folder / "plots" / f"{verb}.svg" if output is None else output
    check_format(path)
    return path


def _write(figure: Figure, path: Path) -> None:
    save_figure(figure, path)
    echo(f"{path}: {path.stat().st_size:,} bytes")


PLOT_COMMANDS: dict[str, Command] = {
    "training": training, "tradeoff": tradeoff, "cascades": cascades,
    "differences": differences, "depths": depths,
}  # fmt: skip


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
    from sluice.training.journal import as_csv, read_trainings

    runs = read_trainings(folders)
    names = ", ".join(run.name for run in runs)
    if figure is not None:
        from sluice.training.journal import plot_trainings

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
