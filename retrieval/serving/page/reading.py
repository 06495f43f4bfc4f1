"""Reads the page's files, each under the address that it is served at."""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple


class PageFile(NamedTuple):
    """A file's bytes and their type."""

    body: bytes
    media: str


FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/judge": ("judge.html", "text/html; charset=utf-8"),
    "/judge.js": ("judge.js", "text/javascript; charset=utf-8"),
    "/judge.css": ("judge.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def page_files() -> dict[str, PageFile]:
    """Return the page's files by address."""
    folder = files("sluice.retrieval.serving.page") / "files"
    return {
        address: PageFile((folder / name).read_bytes(), media)
        for address, (name, media) in FILES.items()
    }
