"""Reads the text of a PDF file through pypdf."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

from sluice.retrieval.documents.readers.files.kinds import (
    Text,
    Unreadable,
    is_installed,
    missing_package,
)

# A small file may name one page, or one drawing, a million times: the operations of drawing and the
# pages, each as a thousand of these, are counted.
STEPS = 200_000
STEPS_PER_BYTE = 4
PAGE = 1_000


def pdf_text(data: bytes) -> Text:
    """Return the pages' text, a blank line between them; metadata are pages, author and date.

    Encrypted files are read where the empty password opens them.
    """
    if not is_installed("pdf"):
        raise missing_package("pdf")
    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # remarks on every small fault
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise Unreadable("encrypted")
        pages = list(_texts(reader, STEPS + STEPS_PER_BYTE * len(data)))
        own: Any = reader.metadata or {}
        title, author, created = own.get("/Title"), own.get("/Author"), own.get("/CreationDate")
    except Unreadable:
        raise
    except Exception as error:  # a parser of damaged files raises whatever they make it raise
        raise Unreadable(f"damaged PDF ({type(error).__name__})") from None
    metadata: dict[str, Any] = {"pages": len(pages)}
    if author and str(author).strip():
        metadata["author"] = str(author).strip()
    if created and str(created).startswith("D:") and str(created)[2:10].isdigit():
        day = str(created)[2:10]
        metadata["date"] = f"{day[:4]}-{day[4:6]}-{day[6:]}"
    text = "\n\n".join(page.strip() for page in pages if page.strip())
    # Half a surrogate pair can come out of a damaged font; no file can hold one.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return Text(str(title or "").strip(), text, metadata)


def _texts(reader: Any, steps: int) -> Iterator[str]:
    """Yield the pages' texts; raises ``Unreadable`` for more than so many steps."""

    def counted(*_: object) -> None:
        nonlocal steps
        steps -= 1
        if steps < 0:
            raise Unreadable("a PDF that draws more than its size explains")

    for page in reader.pages:
        steps -= PAGE
        yield page.extract_text(visitor_operand_before=counted)
        counted()
