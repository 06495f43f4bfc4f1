"""``sluice reproduce``: repeats an experiment, or a run that others have published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.messages import show
from sluice.retrieval.cli.terminal.options import Allow, allowed, refuse_options
from sluice.retrieval.cli.terminal.output import echo
from sluice.retrieval.cli.terminal.verbs import Shown


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
    from sluice.retrieval.experiments.reproduction.repeating import listing, repeat

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
