"""The exceptions Sluice raises, drawn once.

    SluiceError
    ├── ConfigError         a key, type, name or measure in YAML, on the command line or in a call
    ├── DataError           a corpus, queries, qrels or run file; vectors; texts
    │   └── UnknownDocumentError    an id that no document has; a KeyError too
    ├── ModelError          a model folder or id that cannot be loaded or is of the wrong kind
    ├── IndexFormatError    a saved index or retriever: missing, damaged, newer, another encoder's
    └── MissingPackageError an optional package that is not installed

Every message says where, what was found, what was expected, and the remedy, in clauses with ``; ``
between them, the first one short. The command line gives each a line and exits with code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

LONGEST_MESSAGE = 4_000  # characters: two screens
ENDING = 1_000  # of these, from the end, where the remedy stands
LONGEST_NAME = 200  # characters that are compared with other names


class SluiceError(Exception):
    """The root of every error whose cause is the input, not the program.

    A message longer than ``LONGEST_MESSAGE`` keeps its beginning and its end: a value from the
    input may be of any length.
    """

    def __init__(self, message: object = "") -> None:
        text = str(message)
        if len(text) > LONGEST_MESSAGE:
            cut = len(text) - LONGEST_MESSAGE
            head, tail = text[: LONGEST_MESSAGE - ENDING], text[-ENDING:]
            text = f"{head} [... {cut:,} characters more ...] {tail}"
        super().__init__(text)


class ConfigError(SluiceError):
    """A setting that is unknown, of the wrong type, or contradicts another."""


class DataError(SluiceError):
    """Input data that cannot be read as what it claims to be."""


class UnknownDocumentError(DataError, KeyError):
    """A document asked for by an id that none has."""

    __str__ = Exception.__str__  # a KeyError's would quote the message


class ModelError(SluiceError):
    """A model that cannot be found, read, or used for this purpose."""


class IndexFormatError(SluiceError):
    """A saved index or retriever that is missing, damaged, too new, or bound to another encoder."""


class MissingPackageError(SluiceError):
    """An optional package is missing; the message has the command that installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed: "
            f"pip install 'sluice-ir[{extra}]'"
        )


@contextmanager
def needed_package(package: str, extra: str, purpose: str) -> Iterator[None]:
    """Raise ``MissingPackageError`` where what is imported inside is not installed."""
    try:
        yield
    except ImportError:
        raise MissingPackageError(package, extra, purpose) from None


def listed(names: Iterable[object], most: int = 10) -> str:
    """Return names as a message lists them: ``a, b and 32 more``; "none" of none."""
    names = list(names)
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return (", ".join(f"{name!s:.60}" for name in names[:most]) or "none") + more


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the known name nearest to ``name``, or an empty string."""
    if len(name) > LONGEST_NAME:
        return ""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    near = near or [each for each in names if each.lower() == name.lower()]
    return f"; did you mean {near[0]!r}?" if near else ""
