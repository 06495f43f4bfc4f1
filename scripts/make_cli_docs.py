"""Write docs/cli.md from the help of every verb: python scripts/make_cli_docs.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "cli.md"
OPTIONS: dict[str, Any] = {"resilient_parsing": True, "terminal_width": 80}

HEAD = """# The command line

Made from the help of the verbs by `scripts/make_cli_docs.py`; a test keeps the two the same.
`sluice VERB -h` prints the same text. `python -m sluice.retrieval.cli` is `sluice`.
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
    print(PAGE)
