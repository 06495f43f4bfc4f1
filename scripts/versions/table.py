"""Writes the tables of docs/versions.md: versions tried, and how the samples of tests went."""

from __future__ import annotations

import re
from collections.abc import Iterator

from locked import LOCK, ROOT, asked_by, read_pins

PAGE = ROOT / "docs" / "versions.md"
BEGIN, END = "<!-- scripts/versions/table.py writes from here -->\n", "<!-- to here -->\n"
RUNS = ("oldest", "newest")
LEFT_OUT = ("dev", "docs", "lock", "bench")  # what makes, tests or measures Sluice


def record(
    which: str = "", versions: dict[str, str] | None = None, words: tuple[str, ...] = ()
) -> None:
    """Put the versions and result of a run into the page; the locked versions in any case."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    written, _, after = rest.partition(END)
    rows = {cells[0]: cells[1:] for cells in _cells(written)}
    runs = {name: rows.get(name, ("not run", "", "", "")) for name in RUNS}
    locked = {pin.name: pin.version for pin in read_pins(LOCK.read_text(encoding="utf-8"))}
    if versions is not None:
        runs[which] = words
    lines = ["| versions | result | day | Python | packages installed |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join((name, *runs[name]))} |" for name in RUNS]
    lines += ["", "| package | oldest | locked | newest |", "|---|---|---|---|"]
    for name in sorted(asked_by(*LEFT_OUT)):
        old = dict(zip(RUNS, rows.get(name, ("", "", ""))[::2], strict=True))
        new = {**old, which: versions.get(name, "not tried")} if versions is not None else old
        lines.append(f"| {name} | {new['oldest']} | {locked.get(name, '')} | {new['newest']} |")
    PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after, encoding="utf-8")


def _cells(text: str) -> Iterator[tuple[str, ...]]:
    for line in text.splitlines():
        if re.match(r"\| [a-z]", line):
            yield tuple(cell.strip() for cell in line.strip("|").split("|"))
