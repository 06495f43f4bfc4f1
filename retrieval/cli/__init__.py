"""The command line: ``sluice VERB``. An error in the input is one line on stderr and exit code 2.

Each other module of this room holds the verbs of one kind of work. They import what they
need when they run, so that ``sluice --help`` stays fast.

May import: everything below.
"""

from __future__ import annotations

import os
import sys

import typer

from sluice.encoders.foundation.errors import SluiceError
from sluice.retrieval.cli.app import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line; an error in the input ends with exit code 2."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    # numpy's BLAS threads spin for 2^26 cycles after a product and starve torch's meanwhile, which
    # slows the next query's encoding (docs/experiments.md, the quickstart).
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "10")
    try:
        app(prog_name="sluice")
    except SluiceError as error:
        _fail(str(error))
    except BrokenPipeError:  # `sluice ... | head`
        sys.stdout = None
        sys.exit(0)
    except OSError as error:  # no such folder, no permission, a full disk
        _fail(f"{error.filename or ''}: {error.strerror or error}".removeprefix(": "))
    except KeyboardInterrupt:
        typer.echo("interrupted; run the same command again to continue", err=True)
        sys.exit(130)


def _fail(message: str) -> None:
    typer.echo(f"error: {message}", err=True)
    sys.exit(2)
