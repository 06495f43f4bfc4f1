"""Write docs/cli.md and the README's list of verbs, from the help of every verb.

Run ``python scripts/make_cli_docs.py`` after a change of the help.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "cli.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- verbs: written by scripts/make_cli_docs.py -->\n", "<!-- end of verbs -->\n"
OPTIONS: dict[str, Any] = {"resilient_parsing": True, "terminal_width": 80}

HEAD = """# The command line

Made from the help of the verbs by `scripts/make_cli_docs.py`; a test keeps the two the same.
`sluice VERB -h` prints the same text. `python -m sluice` is `sluice`.
"""


def page() -> str:
    """Return the page: the help of ``sluice``, then that of each verb under its heading."""
    from sluice.retrieval.cli.app import HEADINGS, app

    root = typer.main.get_command(app).make_context("sluice", [], **OPTIONS)
    parts = [HEAD, help_of(root, "##")]
    for heading in HEADINGS:
        parts.append(f"## {heading}\n")
        for name, command in root.command.commands.items():  # type: ignore[attr-defined]
            if command.rich_help_panel == heading:
                parts += sections(command.make_context(name, [], parent=root, **OPTIONS), "###")
    return "\n".join(parts)


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
    """Return a verb's section: its name and its help."""
    text = context.command.get_help(context).rstrip()
    return f"{level} {context.command_path}\n\n```text\n{text}\n```\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page(), encoding="utf-8")
    README.write_text(readme(), encoding="utf-8")
    print(PAGE, README)
