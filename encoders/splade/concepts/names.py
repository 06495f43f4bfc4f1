"""Reads a list of concepts: a text file with one name a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.errors import ConfigError

MOST = 1_000_000  # concepts; of more, the head alone takes gigabytes


def read_concepts(file: str | Path) -> list[str]:
    """Return the names in a file, one a line, without white space around them.

    Raises ``ConfigError`` with the line for a blank one, or a name that was there before, in
    whatever case; and for a file that is missing, not UTF-8, or has fewer than two.
    """
    path = expanded(str(file))
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise ConfigError(
            f"vocabulary: no file {str(file)!r}; expected a text file, one concept a line"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"vocabulary: {file}: not readable as UTF-8 text ({error})") from None
    return checked_concepts(lines, f"vocabulary: {file}")


def checked_concepts(lines: Sequence[str], where: str) -> list[str]:
    """Return the names of lines; ``where`` is put before the line's number in errors."""
    names, first = [], dict[str, int]()
    for number, line in enumerate(lines, 1):
        name = " ".join(line.split())
        if not name:
            raise ConfigError(f"{where}:{number}: a blank line; every line names a concept")
        if name.casefold() in first:
            raise ConfigError(
                f"{where}:{number}: {name!r} is in line {first[name.casefold()]} too; delete one"
            )
        first[name.casefold()] = number
        names.append(name)
    if not 2 <= len(names) <= MOST:
        raise ConfigError(f"{where}: {len(names):,} concepts, expected 2 to {MOST:,}")
    return names
