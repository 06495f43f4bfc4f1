"""Write the table of losses in docs/training.md: python scripts/make_training_docs.py."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "training.md"
BEGIN, END = "<!-- losses: scripts/make_training_docs.py -->\n", "<!-- end of losses -->\n"
FAMILIES = ("contrastive", "listwise", "distillation", "composed", "queue", "")
NAMES = {
    "dense": "dense", "gaussian": "Gaussian", "splade": "SPLADE", "tokens": "tokens",
    "cross_encoder": "cross-encoders", "hypencoder": "Hypencoder",
    "pseudo_queries": "pseudo-queries", "seal": "SEAL", "dsi": "DSI",
}  # fmt: skip
# What a loss needs to be made; all others are made from their defaults.
ARGUMENTS: dict[str, dict[str, Any]] = {"sum": {"losses": [{"type": "info_nce"}]}}


def page(text: str) -> str:
    """Return the page with its table of losses made from the classes."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{table()}{END}{tail}"


def table() -> str:
    """Return one row for each loss, family by family."""
    from sluice.training.losses import LOSSES

    def family(name: str) -> int:
        room = LOSSES[name].partition(":")[0].split(".")[3:-1]
        return FAMILIES.index(room[0] if room else "")

    rows = [row(name, LOSSES[name]) for name in sorted(LOSSES, key=lambda n: (family(n), n))]
    return "\n".join(["| `type` | what it is | from | for |", "|---|---|---|---|", *rows]) + "\n"


def row(name: str, place: str) -> str:
    """Return a loss's row: its name, summary, paper, and what it trains or needs."""
    module, _, cls = place.partition(":")
    loss = getattr(importlib.import_module(module), cls)(**ARGUMENTS.get(name, {}))
    from sluice.encoders.tuning.learning import SCORED, types_that_make

    encoders = types_that_make(loss.forms)
    # Which one loss alone trains.
    named = {**NAMES, "three_heads": "three heads", "csr": "CSR", "listwise": "listwise rerankers"}
    uses = [] if set(loss.forms) == set(SCORED) else [named[encoder] for encoder in encoders]
    if loss.needs_teacher:
        uses.append("`teacher`")
    if loss.ranks == "columns":
        uses.append("`negatives: {type: live}`")
    return f"| `{name}` | {loss.summary} | {loss.paper} | {', '.join(uses)} |"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE)
