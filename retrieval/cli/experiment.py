"""The verbs that run an experiment or read its output."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from sluice.encoders.foundation.errors import ConfigError, SluiceError
from sluice.retrieval.cli.options import (
    Command,
    ConfigFile,
    Overrides,
    argument,
    flag,
    option,
    plural,
    refuse_options,
)

log = logging.getLogger("sluice")


def run(config: ConfigFile, overrides: Overrides = None) -> None:
    """Train, index and evaluate an experiment.

    Models go to OUTPUT/models/NAME, retrievers to OUTPUT/retrievers/NAME, runs to
    OUTPUT/runs/NAME.trec.gz, figures to OUTPUT/results.json, report.md and report.html. Finished
    parts are reused, so an interrupted run continues where it stopped.

    Examples:
      sluice run configs/quickstart.yaml
      sluice run configs/quickstart.yaml output=runs/mine
    """
    from sluice.retrieval.jobs import run as run_experiment

    if _run_suite(config, overrides):
        return
    table, experiment = run_experiment(config, overrides or [])
    typer.echo(str(table))
    _print_results(experiment.output, page=experiment.config.evaluate.report)
    from sluice.retrieval.experiments.evaluation import next_steps

    typer.echo("try next:")
    for line in next_steps(experiment):
        typer.echo(f"  {line.replace('`', '')}")


def train(config: ConfigFile, overrides: Overrides = None) -> None:
    """Train one encoder or cross-encoder.

    The model goes to OUTPUT/model, a folder that sentence-transformers loads too. OUTPUT/training
    holds metrics.jsonl, the mining report and checkpoints. Run the command again to resume an
    interrupted training run.

    Example:
      sluice train configs/train-dense.yaml trainer.max_steps=50
    """
    from sluice.retrieval.jobs import train as train_one

    typer.echo(train_one(config, overrides or []))


def index(
    config: ConfigFile,
    overrides: Overrides = None,
    only: Annotated[
        list[str] | None, option("NAME", "Build this retriever only; may be repeated.")
    ] = None,
    dry_run: Annotated[
        bool, flag("Estimate time, disk and memory; index nothing.", "--dry-run")
    ] = False,
) -> None:
    """Build the retrievers of an experiment.

    Each goes to OUTPUT/retrievers/NAME. Document vectors are cached by encoder and text, so a
    second index over the same corpus, or the same one after an interruption, encodes only what is
    missing.

    Examples:
      sluice index configs/bm25.yaml dataset=scifact
      sluice index configs/index-splade.yaml --dry-run
    """
    if dry_run:
        from sluice.retrieval.jobs import estimate

        for name, cost in estimate(config, overrides or [], only=only).items():
            typer.echo(f"{name}: {cost or 'nothing to encode'}")
        return
    from sluice.indexing.wrappers.passages import PassageIndex
    from sluice.retrieval.jobs import index as build

    for retriever in build(config, overrides or [], only=only):
        head = retriever.head
        counts = plural(head.documents, "document")
        if head.passages is not None and isinstance(retriever.index, PassageIndex):
            counts += f" in {plural(retriever.index.passages, 'passage')}"
        typer.echo(f"{retriever.path}: {counts}, {head.index_bytes:,} bytes")


def evaluate(config: ConfigFile, overrides: Overrides = None) -> None:
    """Evaluate the pipelines of an experiment.

    Missing models and indexes are built first. Saved runs are reused: after an interruption the
    same command continues, and adding a pipeline runs only that pipeline. `dataset` may be a list,
    or beir:* for all of BEIR: each dataset becomes an experiment in OUTPUT/datasets/NAME, and one
    that fails does not stop the others (exit code 1).

    Examples:
      sluice evaluate configs/beir.yaml dataset=nfcorpus output=runs/nfcorpus
      sluice evaluate configs/beir.yaml 'dataset=[scifact, nfcorpus]' output=runs/beir
    """
    from sluice.retrieval.jobs import run as run_experiment

    if _run_suite(config, overrides):
        return
    table, experiment = run_experiment(config, overrides or [])
    typer.echo(str(table))
    _print_results(experiment.output, page=experiment.config.evaluate.report)


def tune(config: ConfigFile, overrides: Overrides = None) -> None:
    """Find the best pipeline within a budget.

    Every retriever and reranker of the experiment is timed on this machine. Depths, fusion weights,
    interpolation and early exits are tried on the dev split over cached scores. The chosen pipeline
    is measured on the test split, with its predicted and its measured latency. OUTPUT/tune gets
    front.svg, trials.csv and tuned.yaml.

    Examples:
      sluice tune configs/tune.yaml dataset=scifact tune.budget.p95_ms=20
      sluice evaluate runs/tune/tune/tuned.yaml
    """
    from sluice.retrieval.jobs import tune as tune_parts

    table, tuning = tune_parts(config, overrides or [])
    typer.echo(str(table))
    typer.echo(f"\ntuned: {tuning.chosen.pipeline}")
    typer.echo(f"best of {len(tuning.trials):,}: {tuning.best.pipeline}")


def reproduce(
    folder: Annotated[Path, argument("FOLDER", "The output folder of run or evaluate.")],
    output: Annotated[
        Path | None, option("FOLDER", "The folder of the second run.", default="FOLDER/reproduced")
    ] = None,
    tolerance: Annotated[
        float, option("X", "Figures that differ by at most X count as equal.")
    ] = 5e-5,
) -> None:
    """Repeat an experiment and compare the figures.

    Trains, indexes and evaluates again from the record in results.json. A dataset or model that is
    missing or has changed is reported before anything runs. The exit code is 0 if all figures are
    equal, else 1.

    Example:
      sluice reproduce runs/nfcorpus
    """
    from sluice.retrieval.experiments.reproduction import reproduce as reproduce_experiment

    reproduction = reproduce_experiment(folder, output, tolerance=tolerance)
    typer.echo(str(reproduction.table))
    for change in reproduction.changed:
        typer.echo(f"changed since: {change}")
    if not reproduction.same:
        raise typer.Exit(1)


def report(
    folders: Annotated[
        list[Path],
        argument(
            "FOLDER",
            "The output folder of run or evaluate; two are compared. With --curves or --csv: one "
            "or more such folders, or those of training runs.",
        ),
    ],
    output: Annotated[
        Path | None, option("FILE", "The HTML file to write.", default="FOLDER/report.html")
    ] = None,
    queries: Annotated[
        int | None,
        option(
            "N",
            "Queries of each dataset that are shown with their documents.",
            default="200, fewer for many datasets",
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        option(
            "MODULE:CLASS", "An encoder class of your own that FOLDER may import; may be repeated."
        ),
    ] = None,
    curves: Annotated[
        Path | None,
        option("FILE", "Draw training curves instead, into an .svg, .png or .pdf file."),
    ] = None,
    csv: Annotated[
        Path | None,
        option("FILE", "Write training curves as a table: run, name, step, value."),
    ] = None,
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
        path = build_comparison(*folders, output=output, allow=allow or ())
        typer.echo(f"{path}: {path.stat().st_size:,} bytes")
        return
    from sluice.retrieval.studies.report.page import build_report

    path = build_report(folders[0], output=output, queries=queries, allow=allow or ())
    typer.echo(f"{path}: {path.stat().st_size:,} bytes")


def _write_curves(folders: list[Path], figure: Path | None, table: Path | None) -> None:
    from sluice.encoders.foundation.files import write_text
    from sluice.training.journal.curves import as_csv, read_trainings

    runs = read_trainings(folders)
    names = ", ".join(run.name for run in runs)
    if figure is not None:
        from sluice.training.journal.plot import plot_trainings

        typer.echo(f"{plot_trainings(runs, figure)}: {names}")
    if table is not None:
        table.parent.mkdir(parents=True, exist_ok=True)
        write_text(table, as_csv(runs))
        typer.echo(f"{table}: {names}")


def _print_results(output: Path, *, page: bool) -> None:
    """Print the paths of the results, and write the report."""
    line = f"\nresults: {output}/results.json, {output}/report.md"
    if page:
        from sluice.retrieval.studies.report.page import build_report

        try:
            line += f", {build_report(output)}"
        except SluiceError as error:  # the results are saved all the same
            log.warning("report.html was not written: %s", error)
    typer.echo(line)


def _run_suite(config: Path, overrides: list[str] | None) -> bool:
    """Evaluate a config of several datasets and print its tables; exit code 1 if one failed."""
    from sluice.retrieval.jobs import suite as run_suite

    suite = run_suite(config, overrides or [])
    if suite is None:
        return False
    typer.echo(str(suite))
    _print_results(suite.output, page=suite.report)
    if suite.failed:
        raise typer.Exit(1)
    return True


COMMANDS: dict[str, Command] = {
    "run": run, "train": train, "index": index, "evaluate": evaluate, "tune": tune,
    "reproduce": reproduce, "report": report,
}  # fmt: skip
