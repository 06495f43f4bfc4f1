"""Runs the rules of a suite on one part, and says which rule is broken."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from sluice.encoders.foundation.errors import ConfigError, suggest

World = TypeVar("World")
TEXTS = (
    "gold in the river",
    "a sluice is a channel of water that washes gold from stone",
    "dense and sparse vectors",
    "the weight of a term in a document",
    "Rank the DOCUMENTS by score; learn to rank.",
    "deep water " * 12,
    "gold in the river",
    "stone",
)
QUERIES = {"q2": "gold river", "q1": "sparse vectors", "q3": "rank documents by score"}
DOCUMENTS = {f"d{number}": text for number, text in enumerate(TEXTS)}


class BrokenRule(AssertionError):
    """A part does not do what its contract says; the message has the rule and an example."""


def verify(
    subject: str, rules: Sequence[Callable[[World], None]], world: World, skip: Collection[str]
) -> None:
    """Check every rule but those in ``skip``, which are named as their functions are.

    A rule is a function that raises; the first line of its docstring is what messages say.
    Raises ``BrokenRule`` at the first that does not hold, ``ConfigError`` for an unknown name.
    """
    names = [rule.__name__ for rule in rules]
    for name in skip:
        if name not in names:
            raise ConfigError(
                f"skip: unknown rule {name!r}; known: {', '.join(names)}{suggest(name, names)}"
            )
    for rule in rules:
        if rule.__name__ in skip:
            continue
        said = (inspect.getdoc(rule) or "").partition("\n")[0]
        try:
            rule(world)
        except BrokenRule as error:
            raise BrokenRule(f"{subject}: {said} ({rule.__name__})\n  {error}") from None
        except Exception as error:
            raise BrokenRule(
                f"{subject}: {said} ({rule.__name__})\n  it raised {type(error).__name__}: {error}"
            ) from error


def expect(holds: object, example: str) -> None:
    """Raise ``BrokenRule`` with an example, unless a condition holds."""
    if not holds:
        raise BrokenRule(example)
