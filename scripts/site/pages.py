"""Copies docs/ into the folder that the site is built from, with every link leading into the site.

A link to a file of the repository (an example, a configuration, a test) leads to a page that shows
the file, a link to a folder to a page that lists it. What GitHub's Markdown accepts and
Python-Markdown does not (a list right below a paragraph, an escaped bar in a table's code) is
rewritten.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

LINK = re.compile(r"(\]\()([^)\s]+)(\))")
ITEM = re.compile(r"(?:[-*]|\d+\.) ")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "sh", ".toml": "toml", ".json": "json"}
# Copied files and design decisions are found by links alone: a search is for readers of pages.
HIDDEN = "---\nsearch:\n  exclude: true\n---\n\n"


class Pages:
    """The pages of one site; ``problems`` has a line for each link that leads nowhere."""

    def __init__(self, root: Path, into: Path) -> None:
        self.root, self.into = root.resolve(), into
        self.docs = self.root / "docs"
        self.problems: list[str] = []
        self._copied: set[Path] = set()

    def write(self) -> None:
        """Write the folder anew."""
        shutil.rmtree(self.into, ignore_errors=True)
        for file in sorted(self.docs.rglob("*")):
            if file.is_dir() or file.suffix == ".py" or "__pycache__" in file.parts:
                continue
            place = self.into / file.relative_to(self.docs)
            place.parent.mkdir(parents=True, exist_ok=True)
            if file.suffix == ".md":
                place.write_text(self._page(file, place), encoding="utf-8")
            else:
                shutil.copyfile(file, place)
        if (self.docs / "decisions").is_dir():
            self._shown(self.docs / "decisions")

    def _page(self, file: Path, place: Path) -> str:
        """Return a page's text as the generator reads it; ``place`` is where it will lie."""

        def link(match: re.Match[str]) -> str:
            return match[1] + self._target(match[2], file, place) + match[3]

        text = outside_code(as_python_markdown(file.read_text(encoding="utf-8")), LINK, link)
        return HIDDEN + text if self.docs / "decisions" in file.parents else text

    def _target(self, target: str, file: Path, place: Path) -> str:
        path, mark, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return target
        meant = (file.parent / path).resolve()
        if not meant.exists() or not meant.is_relative_to(self.root):
            self.problems.append(f"{file.relative_to(self.root)}: no file {target}")
            return target
        goal = self._shown(meant)
        return os.path.relpath(goal, place.parent) + mark + anchor

    def _shown(self, file: Path) -> Path:
        """Return the file's place in the site; one outside docs/ gets a page there."""
        inside = file.is_relative_to(self.docs)
        if inside and file.is_file() and file.suffix != ".py":
            return self.into / file.relative_to(self.docs)
        if file.is_dir():
            base = self.into if inside else self.into / "source"
            place = base / file.relative_to(self.docs if inside else self.root) / "index.md"
        else:
            name = str(file.relative_to(self.root)).removesuffix(".md")
            place = self.into / "source" / f"{name}.md"
        if place not in self._copied:
            self._copied.add(place)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(self._source(file, place), encoding="utf-8")
        return place

    def _source(self, file: Path, place: Path) -> str:
        name = file.relative_to(self.root)
        if file.is_dir():
            entries = [each for each in sorted(file.iterdir()) if each.is_file()]
            lines = [
                f"- [{title(each)}]({os.path.relpath(self._shown(each), place.parent)})"
                for each in entries
            ]
            heads = {"docs/decisions": "Design decisions", "docs/examples": "Parts of your own"}
            head = "" if place.is_relative_to(self.into / "decisions") else HIDDEN
            return f"{head}# {heads.get(str(name), name)}\n\n" + "\n".join(lines) + "\n"
        if file.suffix == ".md":
            return HIDDEN + self._page(file, place).removeprefix(HIDDEN)
        text = file.read_text(encoding="utf-8").rstrip("\n")
        language = LANGUAGES.get(file.suffix, "text")
        return f"{HIDDEN}# {name}\n\n`````{language}\n{text}\n`````\n"


def title(file: Path) -> str:
    """Return a page's first heading, or the name of a file that has none."""
    if file.suffix == ".md":
        found = re.search(r"^# (.+)$", file.read_text(encoding="utf-8"), re.M)
        if found:
            return found[1]
    return file.name


def outside_code(text: str, what: re.Pattern[str], change: Callable[[re.Match[str]], str]) -> str:
    """Replace matches outside blocks and spans of code."""
    lines, fence = [], ""
    for line in text.split("\n"):
        mark = re.match(r"\s*(`{3,})", line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence:
            # A link's own text may be code; a whole link inside code is none.
            line = re.sub(r"`[^`]*\]\([^`]*`", lambda m: m[0].replace("](", "]\0("), line)
            line = what.sub(change, line).replace("]\0(", "](")
        lines.append(line)
    return "\n".join(lines)


def as_python_markdown(text: str) -> str:
    """Rewrite what GitHub reads otherwise: lists below a paragraph, escaped bars in code."""
    lines: list[str] = []
    fence, listed = "", False
    for line in text.split("\n"):
        mark = re.match(r"\s*(`{3,})", line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence:
            item = bool(ITEM.match(line))
            if item and not listed and lines and lines[-1].strip():
                lines.append("")
            listed = item or (listed and (not line.strip() or line.startswith(" ")))
            if line.startswith("|"):
                line = re.sub(r"`[^`]+`", lambda code: code[0].replace("\\|", "|"), line)
        lines.append(line)
    return "\n".join(lines)
