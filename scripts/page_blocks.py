"""The blocks of a page: run in order in a folder of their own, their outputs compared or written.

A block of shell or Python may be followed by a block of ``text``, which is what it prints. Of the
numbers there only measures (0.1234) are compared, within 0.02: latencies and sizes differ between
machines.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.S | re.M)
MEASURE = re.compile(r"(?<![\w.])[+-]?\d\.\d{4}(?![\d])")
NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d,.]*")
TOLERANCE = 0.02


class Block(NamedTuple):
    """A block's language, its code, and the output that stands below it, if any."""

    language: str
    code: str
    output: str | None


def blocks(text: str) -> list[Block]:
    """Return a page's blocks that are run: all but installations."""
    found = [Block(*match) for match in (each.groups() for each in BLOCK.finditer(text))]
    return [
        each for each in found
        if each.language in ("sh", "python") and not each.code.startswith("pip install")
    ]  # fmt: skip


def difference(expected: str, printed: str) -> str:
    """Return what differs between two outputs, or nothing; behind ``...`` anything may follow."""
    if expected.endswith("\n...\n"):
        expected, printed = expected[:-4], _head(printed, expected.count("\n") - 1)
    lines = [[_worded(line) for line in text.strip().splitlines()] for text in (expected, printed)]
    for number, (first, second) in enumerate(zip(*lines, strict=False), start=1):
        if first != second:
            return f"line {number}: {second!r} instead of {first!r}"
    if len(lines[0]) != len(lines[1]):
        return f"{len(lines[1])} lines instead of {len(lines[0])}"
    figures = [[float(each) for each in MEASURE.findall(text)] for text in (expected, printed)]
    for first, second in zip(*figures, strict=True):
        if abs(first - second) > TOLERANCE:
            return f"{second} instead of {first}"
    return ""


def _head(text: str, lines: int) -> str:
    return "".join(text.splitlines(keepends=True)[:lines])


def _worded(line: str) -> str:
    """Return a line's words, with its numbers, rules and gaps made alike."""
    masked = NUMBER.sub("#", MEASURE.sub("0.0000", line))
    return re.sub(r"\s+", " ", re.sub(r"-{3,}", "---", masked)).strip()


def run(page: Path, execute: Callable[[Block], str], *, write: bool = False) -> list[str]:
    """Run a page's blocks with ``execute`` and return the differences; ``write`` mends the page."""
    text = page.read_text(encoding="utf-8")
    problems = []
    for block in blocks(text):
        printed = execute(block)
        if block.output is None:
            continue
        found = difference(block.output, printed)
        if found and not write:
            first = block.code.strip().splitlines()[-1]
            problems.append(f"{page.name}: {first}: {found}")
        if found and write:
            lines = "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines())
            if block.output.endswith("\n...\n"):
                lines = _head(lines, block.output.count("\n") - 1) + "...\n"
            old = f"{block.code}```\n\n```text\n{block.output}```\n"
            text = text.replace(old, f"{block.code}```\n\n```text\n{lines}```\n")
    if write:
        page.write_text(text, encoding="utf-8")
    return problems


def main() -> None:
    page, write = Path(sys.argv[1]).resolve(), "--write" in sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

        def execute(block: Block) -> str:
            print("$", block.code.strip().splitlines()[-1], flush=True)
            shell = ["bash", "-euc"] if block.language == "sh" else [sys.executable, "-c"]
            done = subprocess.run(
                [*shell, block.code], cwd=folder, env={**os.environ, "PATH": path},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                sys.exit(f"failed: {block.code}\n{done.stderr}")
            return done.stdout

        problems = run(page, execute, write=write)
    for line in problems:
        print(line, file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
