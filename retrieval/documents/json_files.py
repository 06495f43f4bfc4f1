"""Reads JSON of text files, compressed or not: objects of lines, and the items of one list."""

from __future__ import annotations

import difflib
import io
import json
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.bounded_input import BLOCK, LONGEST, lines_of, open_bytes, too_long
from sluice.encoders.foundation.errors import DataError

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


SPACE = " \t\r\n"
# How near to the end of what was read a fault lies that more text may mend: within an escape.
NEAR = 16


def json_items(path: Path) -> Iterator[Any]:
    """Stream the items of a JSON list; ``DataError`` names the item that is at fault.

    Memory: one item, of at most ``LONGEST`` characters, and a block.
    """
    number = 0
    try:
        with io.TextIOWrapper(open_bytes(path), "utf-8-sig") as stream:
            for number, (text, value) in enumerate(_items(path, stream)):
                refuse_surrogates(f"{path}: item {number}", text, value)
                yield value
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 behind item {number} ({error.reason}); convert the file, for "
            "instance with iconv -t UTF-8"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: cannot be read behind item {number} ({error}); fetch the file again"
        ) from None


def _items(path: Path, stream: io.TextIOWrapper) -> Iterator[tuple[str, Any]]:
    """Yield the items of a list with the texts that they were read from."""
    decoder = json.JSONDecoder()
    text, place, number = "", 0, 0
    expected = "["  # or "item" (the first one may be missing), ",", or "" behind the list
    first = True
    while True:
        while place < len(text) and text[place] in SPACE:
            place += 1
        fault = ""
        if place < len(text):
            sign = text[place]
            if sign == "]" and (expected == "," or (expected == "item" and first)):
                place, expected = place + 1, ""
                continue
            if expected in ("[", ",") and sign == expected:
                place, expected = place + 1, "item"
                continue
            if expected != "item":
                raise DataError(f"{path}: item {number}: not JSON ({_wrong(expected, sign)})")
            read = _read(f"{path}: item {number}", decoder, text, place)
            if isinstance(read, tuple):
                value, end = read
                yield text[place:end], value
                place, number, expected, first = end, number + 1, ",", False
                continue
            fault = read
        rest = text[place:]
        if len(rest) > LONGEST:
            raise too_long(f"{path}: item {number}")
        block = stream.read(max(BLOCK, len(rest)))
        if not block and not expected:
            return
        if not block:
            reason = fault or "the file ends within the list"
            raise DataError(f"{path}: item {number}: not JSON ({reason})")
        text, place = rest + block, 0


def _read(item: str, decoder: json.JSONDecoder, text: str, place: int) -> tuple[Any, int] | str:
    """Return the value at a place and where it ends; a fault that more text may mend as a text."""
    try:
        return decoder.raw_decode(text, place)
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated") or error.pos >= len(text) - NEAR:
            return error.msg
        fault = error.msg
    except (ValueError, RecursionError) as error:  # thousands of digits, or of brackets
        fault = str(error)
    raise DataError(f"{item}: not JSON ({fault})")


def _wrong(expected: str, sign: str) -> str:
    """Return what stands where something else was expected, in words."""
    if not expected:
        return f"{sign!r} behind the list"
    return f"{sign!r} where {expected!r} was expected"
