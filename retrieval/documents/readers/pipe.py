"""Reads standard input: JSON lines, or one text a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.documents.readers.documents import Documents
from sluice.retrieval.documents.readers.fields import Asked
from sluice.retrieval.documents.readers.memory import documents_in

NAME = "standard input"


def documents_in_pipe(asked: Asked) -> Documents:
    """Return the documents of standard input, which is read to its end and kept in memory.

    Lines that begin with ``{`` are JSON objects, all or none; otherwise a line is a text.
    """
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{NAME}: not UTF-8 ({error.reason} at byte {error.start})") from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise DataError(f"{NAME}: empty; expected one document a line, as JSON or as text")
    if lines[0][1].lstrip().startswith("{"):
        return documents_in(list(_objects(lines)), asked, name=NAME)
    return documents_in([line.strip() for _, line in lines], asked, name=NAME)


def _objects(lines: list[tuple[int, str]]) -> Iterator[dict[str, Any]]:
    for number, line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{NAME}:{number}: not JSON ({error})") from None
        if not isinstance(value, dict):
            raise DataError(f"{NAME}:{number}: {line[:60]!r}; the first line is a JSON object")
        yield value
