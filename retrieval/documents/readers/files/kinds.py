"""Turns an HTML page into plain text whose headings, lists and paragraphs still show."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.foundation.errors import MissingPackageError

KINDS = {
    ".txt": "text", ".text": "text", ".rst": "text", ".adoc": "text", ".org": "text",
    ".tex": "text", ".md": "markdown", ".markdown": "markdown", ".mdx": "markdown",
    ".html": "html", ".htm": "html", ".xhtml": "html", ".pdf": "pdf",
}  # fmt: skip
SPELLED = {"text": "text", "markdown": "Markdown", "html": "HTML", "pdf": "PDF"}
PACKAGES = {"html": ("bs4", "beautifulsoup4"), "pdf": ("pypdf", "pypdf")}  # module, distribution
EXTRA = "files"


class Text(NamedTuple):
    """What a file says; ``title`` "" where it has none."""

    title: str
    text: str
    metadata: Mapping[str, Any]
    encoding: str = "utf-8"


class Unreadable(Exception):
    """A file that has no text to index; the message says why, in a few words."""


def kind_of_file(path: Path) -> str | None:
    """Return ``text``, ``markdown``, ``html`` or ``pdf`` by a file's name, ``.gz`` or not."""
    return KINDS.get(Path(path.name.removesuffix(".gz")).suffix.lower())


def is_installed(kind: str) -> bool:
    """Return whether the package that reads this kind of file is installed."""
    return kind not in PACKAGES or find_spec(PACKAGES[kind][0]) is not None


def missing_package(kind: str) -> MissingPackageError:
    """Return the error of the package that this kind of file needs."""
    return MissingPackageError(PACKAGES[kind][1], EXTRA, f"reading {SPELLED[kind]} files")


DROPPED = ("script", "style", "noscript", "template", "svg", "nav", "iframe", "button", "title")
BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "body", "br", "caption", "dd", "details", "div",
    "dl", "dt", "figcaption", "figure", "footer", "form", "header", "hr", "li", "main", "ol", "p",
    "pre", "section", "summary", "table", "tr", "ul",
})  # fmt: skip
HEADINGS = {f"h{level}": level for level in range(1, 7)}
# What opens and what closes it: comments, what Internet Explorer reads, and sections of XML.
OPENINGS = (
    (re.compile(rb"<(!--)"), b"-->"),
    (re.compile(rb"<(!\[)"), b"]>"),
    (re.compile(rb"<(!\[)(?!\s*(?:if|else|endif))", re.IGNORECASE), b"]]>"),
)
NAMES = {"author": "author", "date": "date", "article:published_time": "date",
         "description": "description", "keywords": "keywords"}  # fmt: skip


def html_text(data: bytes) -> Text:
    """Return title, text and metadata (author, date, description, keywords, lang) of a page.

    Of a page with one ``main`` or ``article`` only that is read; navigation and scripts never are.
    Headings become lines of Markdown. The encoding is the page's own.
    """
    if not is_installed("html"):
        raise missing_package("html")
    from bs4 import BeautifulSoup

    logging.getLogger("bs4.dammit").setLevel(logging.CRITICAL)  # remarks on bytes of no encoding
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # XML read as HTML, and texts that look like addresses
        try:
            soup = BeautifulSoup(_closed(data), "html.parser")
        except Exception as error:  # the parser's own assertions on damaged declarations
            raise Unreadable(f"damaged HTML ({type(error).__name__})") from None
    title = " ".join(soup.title.get_text().split()) if soup.title else ""
    metadata = _metadata(soup)
    for element in soup(list(DROPPED)):
        element.decompose()
    body = next((found[0] for name in ("main", "article") if len(found := soup(name)) == 1), None)
    text = _flat(body or soup.body or soup)
    first = soup.find(["h1", "h2"])
    heading = " ".join(first.get_text().split()) if first else ""
    title = title or heading
    opening = re.match(r"#{1,2} (.*)\n*", text)
    if opening and opening[1] == title:
        text = text[opening.end() :]
    return Text(title, text, metadata)


def _closed(data: bytes) -> bytes:
    """Return a page in which a comment, section or tag that nothing closes is text.

    The parser looks for the end of each such opening again: a page of them takes quadratic time.
    """
    for opening, closing in OPENINGS:
        last = data.rfind(closing) + 1
        data = data[:last] + opening.sub(rb"&lt;\1", data[last:])
    last = data.rfind(b">") + 1
    return data[:last] + data[last:].replace(b"<", b"&lt;")


def _metadata(soup: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    lang = soup.html.get("lang") if soup.html else None
    if lang:
        metadata["lang"] = str(lang)
    for element in soup("meta"):
        name = NAMES.get(str(element.get("name") or element.get("property") or "").lower())
        content = str(element.get("content") or "").strip()
        if name and content:
            value = [part.strip() for part in content.split(",")] if name == "keywords" else content
            metadata.setdefault(name, value)
    return metadata


def _flat(root: Any) -> str:
    """Return the text of an element; a stack, because pages may nest deeper than Python calls."""
    from bs4.element import NavigableString, PreformattedString, Tag

    pieces: list[str] = []
    stack: list[Any] = [root]
    preformatted = 0
    while stack:
        node = stack.pop()
        if isinstance(node, str) and not isinstance(node, NavigableString):
            preformatted -= node == "</pre>"
            pieces.append("\n" if node == "</pre>" else node)
        elif isinstance(node, Tag):
            before, after = _around(node.name)
            preformatted += node.name == "pre"
            pieces.append(before)
            stack.append("</pre>" if node.name == "pre" else after)
            stack.extend(reversed(node.contents))
        elif not isinstance(node, PreformattedString):  # comments, declarations
            text = str(node)
            pieces.append(text if preformatted else re.sub(r"\s+", " ", text))
    text = "".join(pieces)
    text = re.sub(r"[ \t]*\n[ \t]*(?=[\n#-])|[ \t]+\n", "\n", text)
    text = re.sub(r"\n (?=\S)", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _around(name: str) -> tuple[str, str]:
    """Return what is written before and after an element."""
    if name in HEADINGS:
        return f"\n\n{'#' * HEADINGS[name]} ", "\n\n"
    if name == "p":
        return "\n\n", "\n\n"
    if name == "li":
        return "\n- ", ""
    if name in ("td", "th"):
        return "", "\t"
    return ("\n", "\n") if name in BLOCKS else ("", "")
