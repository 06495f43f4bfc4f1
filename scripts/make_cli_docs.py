"""Write docs/cli.md and the README's list of verbs, from the help of every verb.

Run ``python scripts/make_cli_docs.py`` after a change of the help.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "cli.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- verbs: written by scripts/make_cli_docs.py -->\n", "<!-- end of verbs -->\n"
OPTIONS: dict[str, Any] = {"resilient_parsing": True, "terminal_width": 80}

HEAD = """# The command line

Made from the help of the verbs by `scripts/make_cli_docs.py`. `sluice VERB -h` prints the help of
one, with the [arguments and options of several verbs](#arguments-and-options-of-several-verbs),
which stand here once, at the end. `python -m sluice` is `sluice`.
"""
Entry = tuple[str, str]  # an option with its value, and what it is
HELP: Entry = ("-h, --help", "Show this message and exit.")
COMMON = "Arguments and options of several verbs"
LISTED = re.compile(r"^(\w[^\n]*:)\n((?:  +\S[^\n]*\n?)+)", re.M)  # a heading, and what it lists


def page() -> str:
    """Return the page: the help of ``sluice``, then that of each verb under its heading."""
    from sluice.retrieval.cli.app import HEADINGS, app

    root = typer.main.get_command(app).make_context("sluice", [], **OPTIONS)
    parts: list[str] = []
    for heading in HEADINGS:
        parts.append(f"## {heading}\n")
        for name, command in root.command.commands.items():  # type: ignore[attr-defined]
            if command.rich_help_panel == heading:
                parts += sections(command.make_context(name, [], parent=root, **OPTIONS), "###")
    times = Counter(entry for part in parts for entry in _entries(part))
    common: dict[str, Entry] = {}  # what most verbs mean by a name
    for entry, verbs in times.most_common():
        if verbs >= 3 and entry != HELP:
            common.setdefault(_plain(entry), entry)
    named = sorted(common.values(), key=lambda entry: entry[0].lstrip("-").lower())
    end = [f"## {COMMON}\n", *(f"- `{name}`: {text}" for name, text in named), ""]
    kept = [_without(part, set(common.values())) for part in parts]
    return "\n".join([HEAD, help_of(root, "##"), *kept, *end])


def _entries(section: str) -> dict[Entry, str]:
    """Return the lines of each argument and option of a verb."""
    entries: dict[Entry, str] = {}
    for heading, listed in LISTED.findall(section):
        if heading != "Examples:":
            for lines in re.split(r"\n(?=  \S)", listed.rstrip()):
                name, _, text = lines.strip().partition("  ")
                entries[name, " ".join(text.split())] = lines
    return entries


def _plain(entry: Entry) -> str:
    """Return `--measure` for `-m, --measure MEASURE`."""
    return entry[0].rpartition(", ")[2].partition(" ")[0]


def _without(section: str, common: Set[Entry]) -> str:
    """Return a verb's section with what it shares named alone."""
    entries = _entries(section)
    for entry, lines in entries.items():
        if entry in common or entry == HELP:
            section = section.replace(f"{lines}\n", "", 1)
    section = re.sub(r"\n\w[^\n]*:\n(?=\n|```)", "", section)
    names = [f"`{_plain(entry)}`" for entry in entries if entry in common]
    return section + (f"\nAnd {', '.join(names)}.\n" if names else "")


def readme() -> str:
    """Return the README with the list of verbs, a row for each heading of the help."""
    from sluice.retrieval.cli.app import HEADINGS, app

    root = typer.main.get_command(app).make_context("sluice", [], **OPTIONS)
    rows = ["| | |", "|---|---|"]
    for heading in HEADINGS:
        verbs = [
            _with_sub_verbs(name, command)
            for name, command in root.command.commands.items()  # type: ignore[attr-defined]
            if command.rich_help_panel == heading
        ]
        rows.append(f"| {heading} | {', '.join(verbs)} |")
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    return before + BEGIN + "\n".join(rows) + "\n" + END + after


def _with_sub_verbs(name: str, command: Any) -> str:
    names = ", ".join(f"`{each}`" for each in getattr(command, "commands", ()))
    return f"`{name}` ({names})" if names else f"`{name}`"


def sections(context: Any, level: str) -> Iterator[str]:
    """Yield a section for a verb, and one for each of its sub-verbs."""
    yield help_of(context, level)
    for name, command in getattr(context.command, "commands", {}).items():
        yield from sections(command.make_context(name, [], parent=context, **OPTIONS), f"{level}#")


def help_of(context: Any, level: str) -> str:
    """Return a verb's section: its name and its help, without the list of verbs below it."""
    text = context.command.get_help(context).rstrip() + "\n"
    for listed in LISTED.finditer(text):
        lines = [line.split()[0] for line in listed[2].splitlines()]
        if set(lines) <= set(getattr(context.command, "commands", ())):
            text = text.replace(f"{listed[0]}\n", "").replace(listed[0], "")
    text = text.removeprefix("Usage: ").replace(" [OPTIONS]", "", 1).rstrip()
    return f"{level} {context.command_path}\n\n```text\n{text}\n```\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page(), encoding="utf-8")
    README.write_text(readme(), encoding="utf-8")
    print(PAGE, README)
