"""The lessons of docs/course: run block by block, their numbers compared, or made notebooks.

All blocks of a lesson run in one process, as a notebook's cells do. The last of them leaves the
lesson's number in ``reached``, and a table of the page has the expected number and its tolerance.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COURSE = ROOT / "docs" / "course"
sys.path.insert(0, str(ROOT / "scripts"))

from page_blocks import BLOCK, Block, run  # noqa: E402

NUMBER = re.compile(
    r"^\| number \| expected \| within \|\n\|[-:|]+\|\n\| (.+?) \| ([\d.]+) \| ([\d.]+) \|$", re.M
)
FOLDED = re.compile(r"^<details.*?^</details>\n", re.S | re.M)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]+\)")
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]+\.svg)\)")


class Lesson(NamedTuple):
    """A page of the course: its number, its title, and the number that it leads to."""

    page: Path
    number: int
    title: str
    measured: str
    expected: float
    within: float


def lessons() -> list[Lesson]:
    """Return the lessons in their order."""
    pages = sorted(COURSE.glob("[0-9]-*.md"))
    return [lesson(page, int(page.name.partition("-")[0])) for page in pages]


def lesson(page: Path, number: int) -> Lesson:
    """Read a lesson's title and expected number; ``ValueError`` for a page without them."""
    text = page.read_text(encoding="utf-8")
    title, table = re.search(r"^# (?:Lesson \d+: )?(.+)$", text, re.M), NUMBER.search(text)
    if title is None or table is None:
        raise ValueError(f"{page.name}: no title, or no table of the expected number")
    return Lesson(page, number, title[1], table[1], float(table[2]), float(table[3]))


class Result(NamedTuple):
    """What a lesson reached, and a line for each thing that came out otherwise."""

    lesson: Lesson
    reached: float
    faults: list[str]
    seconds: float

    def lines(self) -> list[str]:
        """Return what the reader sees; the last line goes into the lesson's log."""
        each, word = self.lesson, "off " if self.faults else "PASS"
        log = f"| {date.today()} | {version()} | {platform.python_version()} | {platform.machine()}"
        return [
            f"{word} lesson {each.number}, {each.title}: {each.measured} {self.reached:.4f}, "
            f"expected {each.expected:.4f} within {each.within} ({self.seconds:.0f} s)",
            *(f"     {fault}" for fault in self.faults),
            f"     {log} | {self.reached:.4f} |",
        ]


def version() -> str:
    """Return Sluice's version."""
    import sluice

    return sluice.__version__


def run_lesson(each: Lesson, *, write: bool = False) -> Result:
    """Run a lesson's blocks in this process and in the current folder."""
    namespace: dict[str, Any] = {"__name__": f"lesson_{each.number}"}
    start = time.perf_counter()

    def execute(block: Block) -> str:
        if block.language == "sh":
            return ""  # the command that started this
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(block.code, each.page.name, "exec"), namespace)
        return out.getvalue()

    try:
        faults = run(each.page, execute, write=write)
    except Exception as error:  # a lesson that fails is reported, and the next one runs
        faults = [f"{each.page.name}: {type(error).__name__}: {error}"]
    reached = float(namespace.get("reached", float("nan")))
    if not abs(reached - each.expected) <= each.within:
        faults.append(f"{each.measured}: {reached:.4f} instead of {each.expected:.4f}")
    return Result(each, reached, faults, time.perf_counter() - start)


def notebook(each: Lesson) -> dict[str, Any]:
    """Return a lesson as a notebook (nbformat 4.5) that ends by comparing its number."""
    text = each.page.read_text(encoding="utf-8")
    folded = [range(*match.span()) for match in FOLDED.finditer(text)]
    cells: list[dict[str, Any]] = []
    end = 0

    def add(kind: str, source: str) -> None:
        if source.strip():
            cells.append(_cell(kind, source.strip("\n"), f"lesson{each.number}-{len(cells)}", each))

    for match in BLOCK.finditer(text):
        if match[1] != "python" or any(match.start() in span for span in folded):
            continue
        add("markdown", text[end : match.start()])
        add("code", match[2])
        if match[3]:
            shown = {"output_type": "stream", "name": "stdout", "text": match[3]}
            cells[-1]["outputs"] = [shown]  # what the page shows, until the cell is run
        end = match.end()
    add("markdown", text[end:])
    good = f"abs(reached - {each.expected}) <= {each.within}"
    add("code", f'print(f"{{reached:.4f}}", "PASS" if {good} else "off")')
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _cell(kind: str, source: str, name: str, each: Lesson) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "id": name, "metadata": {}}
    if kind == "code":
        return {**cell, "source": source, "execution_count": None, "outputs": []}
    pictures = {
        Path(target).name: {
            "image/svg+xml": base64.b64encode((each.page.parent / target).read_bytes()).decode()
        }
        for _, target in IMAGE.findall(source)
    }
    source = IMAGE.sub(lambda m: f"![{m[1]}](attachment:{Path(m[2]).name})", source)
    cell["source"] = LINK.sub(r"\1", source)  # the other pages are not beside a notebook
    return {**cell, "attachments": pictures} if pictures else cell


def write_notebooks(chosen: Sequence[Lesson], folder: Path) -> None:
    """Write a notebook for each lesson."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in chosen:
        text = json.dumps(notebook(each), indent=1, ensure_ascii=False)
        (folder / f"{each.page.stem}.ipynb").write_text(text + "\n", encoding="utf-8")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/course", description="Run the lessons of docs/course."
    )
    every = lessons()
    numbers = [each.number for each in every]
    parser.add_argument("lesson", nargs="*", type=int, help="its number; by default all of them")
    parser.add_argument("--write", action="store_true", help="put what was printed into the pages")
    parser.add_argument("--notebooks", type=Path, metavar="OUT", help="write notebooks into OUT")
    settings = parser.parse_args(words)
    unknown = [number for number in settings.lesson if number not in numbers]
    if unknown:
        parser.error(f"lesson {unknown[0]}: expected {numbers[0]} to {numbers[-1]}")
    chosen = [each for each in every if each.number in (settings.lesson or numbers)]
    if settings.notebooks:
        try:
            write_notebooks(chosen, settings.notebooks)
        except OSError as error:
            sys.exit(f"error: {error}; choose another folder with --notebooks")
        print(f"{settings.notebooks}: {len(chosen)} notebooks")
        return
    os.environ.setdefault("SLUICE_PROGRESS", "0")
    failed = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for each in chosen:
            result = run_lesson(each, write=settings.write)
            print("\n".join(result.lines()), flush=True)
            failed += bool(result.faults)
    sys.exit(f"{failed} of {len(chosen)} lessons are off" if failed else 0)


if __name__ == "__main__":
    main()
