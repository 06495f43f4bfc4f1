"""The command ``sluice`` in this process: words in; exit code, output and errors out."""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import typer

Call = Callable[..., tuple[int, str, str]]


@functools.cache
def contexts() -> dict[str, Any]:
    """Return the parsing context of ``sluice``, of every verb and of every sub-verb, by path."""
    from sluice.retrieval.cli import app

    root = typer.main.get_command(app)
    context = root.make_context("sluice", [], resilient_parsing=True, terminal_width=80)
    return {each.command_path: each for each in _below(context)}


def _below(context: Any) -> Iterator[Any]:
    yield context
    for name, command in getattr(context.command, "commands", {}).items():
        options = {"resilient_parsing": True, "terminal_width": 80}
        yield from _below(command.make_context(name, [], parent=context, **options))


def verb_of(words: Sequence[str]) -> Any:
    """Parse the words behind ``sluice``, as the command line does, and return the verb.

    An unknown verb or option, or a missing argument, is a usage error.
    """
    context = contexts()["sluice"].command.make_context("sluice", list(words))
    while hasattr(context.command, "commands"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = context.command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return context.command


def joined(err: str) -> str:
    """Return what a command wrote to stderr with its error on one line, as it was raised."""
    before, error, after = err.rpartition("error: ")
    return before + error + re.sub(r"\n  (?=\S)", "; ", after) if error else err
