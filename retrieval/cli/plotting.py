"""``plot``: training curves as a figure or a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sluice.encoders.foundation.errors import ConfigError


def plot(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER...", help="Trainings' folders, or experiments' outputs."),
    ],
    output: Annotated[
        Path | None, typer.Option(help="The figure to write: .svg, .png or .pdf.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Also, or instead, a table: training, name, step, value.")
    ] = None,
) -> None:
    """Plot the curves of trainings, finished or still running, from their metrics.jsonl.

    Panels show the loss and its penalties, dev measures (a star at the best), the learning rate,
    gradient norms, active terms and their targets, and how old the negatives are: what there is.
    Several trainings are laid over each other.

    Examples:
      sluice plot runs/quickstart --output curves.svg
      sluice plot runs/a runs/b --output compared.pdf --csv compared.csv
    """
    if output is None and csv is None:
        raise ConfigError("plot: nothing to write; give --output curves.svg, or --csv curves.csv")
    from sluice.encoders.foundation.files import write_text
    from sluice.training.journal.curves import as_csv, read_trainings

    trainings = read_trainings(folders)
    names = ", ".join(training.name for training in trainings)
    if output is not None:
        from sluice.training.journal.plot import plot_trainings

        typer.echo(f"{plot_trainings(trainings, output)}: {names}")
    if csv is not None:
        csv.parent.mkdir(parents=True, exist_ok=True)
        write_text(csv, as_csv(trainings))
        typer.echo(f"{csv}: {names}")


COMMANDS = (plot,)
