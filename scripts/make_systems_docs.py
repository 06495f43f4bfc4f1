"""Write docs/systems.md from scripts/systems.yaml: python scripts/make_systems_docs.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "systems.md"
TABLE = ROOT / "scripts" / "systems.yaml"
HEAD = """# Systems of the literature

<!-- written by scripts/make_systems_docs.py from scripts/systems.yaml -->

Each system with its YAML name, a config, what proves it, and what is not shown. *Config* is a file,
a section whose block runs, or lines to put into `configs/train-dense-mined.yaml` in place of its
own. *Figure* is what the command gave, as the page behind it has it: most are of minutes of
training on two processor cores and say nothing of large models. Formulas are held by tests against
independent computations.
"""


def rows() -> dict[str, list[dict[str, Any]]]:
    """Return the table, by group."""
    table: dict[str, list[dict[str, Any]]] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return table


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for group, systems in rows().items():
        parts.append(f"\n## {group}\n\n| system | YAML | config | proof | figure | not shown |\n")
        parts.append("|---|---|---|---|---|---|\n")
        parts += [_line(row) for row in systems]
    return "".join(parts)


def _line(row: dict[str, Any]) -> str:
    name, config, proof = (str(row[key]).replace("|", "\\|") for key in ("name", "config", "proof"))
    figure = str(row["figure"]).replace("|", "\\|")
    if row["page"]:
        figure = f"{figure} [(page)]({row['page']})".strip()
    shown = proof if proof in ("script not kept", "tests by formula") else f"`{proof}`"
    cells = [row["system"], f"`{name}`", _config(config), shown, figure, row["open"]]
    return f"| {' | '.join(cells)} |\n"


def _config(config: str) -> str:
    """Return a file as code, a section as a link, lines as code."""
    if ".md#" in config:
        return f"[{config.partition('#')[2].replace('-', ' ')}]({config})"
    return f"`{config}`".replace("\n", "`, `")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
