"""Checks a built site: each link and anchor leads somewhere, nothing comes from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

ELSEWHERE = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//|mailto:|data:|javascript:")
UNRESOLVED = re.compile(r"(?<!\w)\[[^\]\n]+\](?:\([^)\n]*\)|\[[^\]\n]*\])")  # not M[a][b]
LOADING = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class _Page(HTMLParser):
    """What a page links to, what it loads, its anchors, and its text outside code."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.text: list[str] = []
        self._code = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {key: value or "" for key, value in attrs}
        self.anchors |= {named[key] for key in ("id", "name") if named.get(key)}
        self._code += tag in ("code", "script", "style")
        if tag == "a" and "href" in named:
            self.links.append(named["href"])
        if named.get(LOADING.get(tag, "")):
            self.loads.append(named[LOADING[tag]])

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in ("code", "script", "style")

    def handle_data(self, data: str) -> None:
        if not self._code:
            self.text.append(data)


def problems(site: Path) -> list[str]:
    """Return a line for each thing that is wrong with the built site."""
    pages = {file: _read(file) for file in sorted(site.rglob("*.html"))}
    if not pages:
        return [f"{site}: no page was built"]
    return [
        f"{file.relative_to(site)}: {line}"
        for file, page in pages.items() if file.name != "404.html"
        for line in _of_page(file, page, pages)
    ]  # fmt: skip


def _read(file: Path) -> _Page:
    page = _Page()
    page.feed(file.read_text(encoding="utf-8"))
    return page


def _of_page(file: Path, page: _Page, pages: dict[Path, _Page]) -> Iterator[str]:
    for target in page.loads:
        if ELSEWHERE.match(target) and not target.startswith("data:"):
            yield f"loads {target} from elsewhere"
        elif not ELSEWHERE.match(target) and not _goal(file, target).exists():
            yield f"loads {target}, which does not exist"
    for target in page.links:
        if ELSEWHERE.match(target):
            continue
        goal, anchor = _goal(file, target), unquote(target.partition("#")[2])
        if not goal.exists():
            yield f"links to {target}, which does not exist"
        elif anchor and goal in pages and anchor not in pages[goal].anchors:
            yield f"links to {target}: the page has no such heading"
    for found in UNRESOLVED.findall("".join(page.text)):
        yield f"shows {found!r}: a link or reference that was not resolved"


def _goal(file: Path, target: str) -> Path:
    path = unquote(target.partition("#")[0].partition("?")[0])
    goal = (file.parent / path).resolve() if path else file
    return goal / "index.html" if goal.is_dir() else goal
