"""Streams the items of a file that is one JSON list, without holding the list."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.input.bounded import BLOCK, LONGEST, open_bytes, too_long
from sluice.retrieval.documents.jsonl import refuse_surrogates

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
