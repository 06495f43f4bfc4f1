"""Reads lines and JSON objects of text files, compressed or not; a bad line is a ``DataError``."""

from __future__ import annotations

import difflib
import json
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.input.bounded import lines_of, open_bytes

# What other collections call a field, where the spelling does not show it.
ALIASES = {"_id": ("docid", "docno", "qid"), "text": ("contents", "content", "body", "passage")}


def all_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Stream (line number from 1, text with its end) of a file in UTF-8, compressed or not.

    A byte order mark at the beginning is dropped. ``DataError`` with the line for what is not
    UTF-8, too long or damaged.
    """
    number = 0
    try:
        with open_bytes(path) as stream:
            for number, raw in enumerate(lines_of(path, stream), 1):
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}:{number}: byte {error.start} of the line is not UTF-8 "
            f"({error.reason}); convert the file, for instance with iconv -t UTF-8"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}:{number + 1}: cannot be read any further ({error}); fetch the file again"
        ) from None


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Stream (line number from 1, text) of the lines that are not blank."""
    for number, line in all_lines(path):
        if line and not line.isspace():
            yield number, line.rstrip("\r\n")


def read_objects(path: Path, expected: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Stream (line number, object) of a JSON-lines file; ``expected`` shows one in messages."""
    for number, line in read_lines(path):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{path}:{number}: not JSON ({error}); expected one object per line: {expected}"
            ) from None
        if not isinstance(value, dict):
            raise DataError(
                f"{path}:{number}: a JSON {type(value).__name__}, expected an object: {expected}"
            )
        refuse_surrogates(f"{path}:{number}", line, value)
        yield number, value


def refuse_surrogates(place: str, text: str, value: Any) -> None:
    """Raise ``DataError`` for the value of a JSON text that holds half a surrogate pair."""
    # Only an escape can put one into valid UTF-8, so few values are tested.
    if "\\ud" not in text and "\\uD" not in text:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(
            f"{place}: an escape \\ud... without its partner is not a character; remove it"
        ) from None


def field_of(place: str, value: Mapping[str, Any], field: str, expected: str) -> Any:
    """Return a field of an object; ``DataError`` where it is missing."""
    if field not in value:
        raise DataError(f"{place}: {missing_field(field, value)}; expected {expected}")
    return value[field]


def missing_field(field: str, present: Collection[str], kind: str = "field") -> str:
    """Return the sentence that a field or column is missing, or which one is misnamed."""
    aliases = [name for name in ALIASES.get(field, ()) if name in present]
    near = aliases or difflib.get_close_matches(field, list(present), n=1)
    if near:
        return f"it has {near[0]!r} and should have {field!r}: rename it"
    listed = ", ".join(map(repr, list(present)[:8])) or "none"
    return f"no {kind} {field!r}; the {kind}s are {listed}"
