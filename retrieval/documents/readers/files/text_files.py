"""Reads one file of text, Markdown, HTML or PDF as title, text and metadata."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.input.bounded import LONGEST, open_bytes
from sluice.retrieval.documents.headings import headings
from sluice.retrieval.documents.readers.files.encodings import FALLBACK, decoded
from sluice.retrieval.documents.readers.files.html_file import html_text
from sluice.retrieval.documents.readers.files.kinds import Text, Unreadable
from sluice.retrieval.documents.readers.files.pdf_file import pdf_text

LONGEST_PDF = 1 << 30  # bytes; most of a large one are pictures
FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\r?\n(.*?)(?:\r?\n)?\1[ \t]*(?:\r?\n|\Z)", re.S)


def read_text_file(path: Path, kind: str) -> Text:
    """Read a file; raises ``Unreadable`` for one that is damaged, binary or without text."""
    longest = LONGEST_PDF if kind == "pdf" else LONGEST
    try:
        with open_bytes(path) as stream:
            data = stream.read(longest + 1)
    except DataError as error:
        raise Unreadable(str(error).removeprefix(f"{path}: ")) from None
    except (OSError, EOFError, zlib.error) as error:
        raise Unreadable(f"not readable ({getattr(error, 'strerror', None) or error})") from None
    if len(data) > longest:
        raise Unreadable(f"larger than {longest >> 20} MB")
    if not data.strip():
        raise Unreadable("empty")
    if kind == "pdf":
        read = pdf_text(data)
    elif kind == "html":
        read = html_text(data)
    else:
        text = decoded(data)
        if text is None:
            raise Unreadable("binary")
        read = _marked_text(*text, markdown=kind == "markdown")
    if not read.text.strip() and not read.title.strip():
        raise Unreadable("without text (a scan?)" if kind == "pdf" else "without text")
    return read


def _marked_text(text: str, encoding: str, *, markdown: bool) -> Text:
    """Return a text without its front matter, titled by this or by the first heading.

    A heading that opens the text and becomes the title is not repeated in the text.
    """
    text, own = _front_matter(text) if markdown else (text, {})
    written = own.pop("title", None)
    title = written.strip() if isinstance(written, str) else ""
    first = next(headings(text), None)
    if first is not None and (not title or first.title == title):
        title = first.title
        if not text[: first.start].strip():
            text = text[first.end :].lstrip("\r\n")
    return Text(title, text, own, encoding if encoding == FALLBACK else "utf-8")


def _front_matter(text: str) -> tuple[str, dict[str, Any]]:
    """Split off the YAML (``---``) or TOML (``+++``) block at the beginning, if it is one."""
    block = FRONT_MATTER.match(text)
    if block is None:
        return text, {}
    try:
        if block[1] == "+++":
            import tomllib

            values: Any = tomllib.loads(block[2].replace("\r\n", "\n"))
        else:
            from sluice.encoders.foundation.input.plain_yaml import load_yaml

            values = load_yaml(block[2])
    except Exception:  # two parsers' errors, and YAML's of dates; it is text, then
        return text, {}
    if values is None:
        return text[block.end() :], {}
    if not isinstance(values, dict):
        return text, {}
    return text[block.end() :], {str(key): value for key, value in values.items()}
