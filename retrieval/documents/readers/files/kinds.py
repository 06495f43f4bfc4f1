"""The kinds of files that are read as texts, the packages they need, and what reading returns."""

from __future__ import annotations

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
