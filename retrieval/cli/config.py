"""Write, check and look up YAML files.

An editor that knows the schema completes keys and marks errors while you write: each file that
`sluice config init` makes names it in its first line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sluice.retrieval.cli.options import Command, argument, option


def list_names(
    kind: Annotated[
        str,
        argument(
            "KIND",
            "losses, encoders, rerankers, indexes, stages, measures, examples, negatives, tunings, "
            "rankers, teachers, datasets or recipes.",
        ),
    ],
    name: Annotated[str | None, argument("NAME", "Show the arguments of this one.")] = None,
) -> None:
    """List what a YAML file may name.

    With NAME, which may be a module:Class of your own: its arguments, their types and defaults.

    Examples:
      sluice config list losses
      sluice config list losses info_nce
    """
    from sluice.retrieval.config.schema.catalogue import entries, entry, shown

    if name is not None:
        typer.echo(shown(entry(kind, name), kind))
        return
    lines = entries(kind)
    width = max(map(len, lines))
    for each, summary in lines.items():
        typer.echo(f"{each.ljust(width)}  {summary}".rstrip())


def schema(
    output: Annotated[Path | None, option("FILE", "The file to write.", default="print it")] = None,
) -> None:
    """Print the JSON schema of experiment files.

    Name it in the first line of a YAML file for editors with a YAML language server:
    `# yaml-language-server: $schema=sluice.schema.json`.

    Example:
      sluice config schema --output sluice.schema.json
    """
    from sluice.retrieval.config.recipes import SCHEMA, configs

    text = (configs() / SCHEMA).read_text(encoding="utf-8")
    if output is None:
        typer.echo(text, nl=False)
        return
    from sluice.encoders.foundation.files import write_text

    write_text(output, text)
    typer.echo(f"{output}: the schema of experiment files")


COMMANDS: dict[str, Command] = {"list": list_names, "schema": schema}
