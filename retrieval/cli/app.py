"""The command line: ``sluice VERB``. An input's fault is one line on stderr and exit code 2."""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Callable

import typer

from sluice.encoders.foundation.errors import SluiceError
from sluice.retrieval.cli import (
    caching,
    collection,
    exchange,
    experiment,
    fitting,
    generating,
    judging,
    learning_to_rank,
    plotting,
    pruning,
    reporting,
    robustness,
    scoring,
    searching,
    souping,
    teaching,
)


def _help(command: Callable[..., None]) -> str:
    """Return a command's docstring, its examples marked to stay one a line."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    kept = (f"\b\n{part}" if part.startswith("Example") else part for part in paragraphs)
    return "\n\n".join(kept)


app = typer.Typer(
    name="sluice",
    help=(
        "Dense and sparse neural retrieval: train, index, cascade, evaluate.\n\n"
        "Start with:  sluice run configs/quickstart.yaml\n\n"
        "A YAML file describes an experiment; any key of it can be overridden behind the file, "
        "as in  sluice run x.yaml output=runs/mine train.dense.trainer.max_steps=100"
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    *experiment.COMMANDS,
    *searching.COMMANDS,
    *scoring.COMMANDS,
    *judging.COMMANDS,
    *collection.COMMANDS,
    *exchange.COMMANDS,
    *caching.COMMANDS,
    *plotting.COMMANDS,
    *reporting.COMMANDS,
    *souping.COMMANDS,
    *teaching.COMMANDS,
    *generating.COMMANDS,
    *fitting.COMMANDS,
    *pruning.COMMANDS,
    *learning_to_rank.COMMANDS,
    *robustness.COMMANDS,
):
    names = {"help_option_names": ["-h", "--help"]}
    app.command(help=_help(command), context_settings=names)(command)


@app.callback()
def _settings(
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Only warnings and errors."),
) -> None:
    logging.basicConfig(format="%(message)s", stream=sys.stderr, force=True)
    logging.getLogger("sluice").setLevel(logging.WARNING if quiet else logging.INFO)


def main() -> None:
    """Run the command line; every error that is the input's fault ends in exit code 2."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    # numpy's BLAS threads spin for 2^26 cycles after a product and starve torch's meanwhile, which
    # slows the next query's encoding (docs/experiments.md, the quickstart).
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "10")
    try:
        app()
    except SluiceError as error:
        _fail(str(error))
    except BrokenPipeError:  # `sluice ... | head`
        sys.stdout = None
        sys.exit(0)
    except OSError as error:  # no such folder, no permission, a full disk
        _fail(f"{error.filename or ''}: {error.strerror or error}".removeprefix(": "))
    except KeyboardInterrupt:
        typer.echo("interrupted; the same command goes on from what is whole", err=True)
        sys.exit(130)


def _fail(message: str) -> None:
    typer.echo(f"error: {message}", err=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
