"""Write the floors of pyproject.toml into docs/architecture.md: scripts/make_architecture.py."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- floors -->\n", "<!-- end of floors -->"


def floors() -> str:
    """Return a line for each contract of layers: its package, then its rooms from the top."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    lines = []
    for contract in contracts:
        if contract["type"] == "layers":
            (package,) = contract["containers"]
            layers = [", ".join(re.split(r" [:|] ", layer)) for layer in contract["layers"]]
            lines.append(f"{package}\n    " + "\n    ".join(layers))
    return "```text\n" + "\n\n".join(lines) + "\n```\n"


def page() -> str:
    """Return the page with the floors as they are now."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + floors() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
