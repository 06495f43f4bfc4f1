#!/usr/bin/env python
"""Late interaction against dense and sparse retrieval, trained alike: a table on standard output.

    SLUICE_DATA=FOLDER scripts/late_interaction_results.py [--seeds 13 14 15] [--only-write]

Makes what configs/late.yaml describes, once for each seed: an encoder of each family is trained
from one start with the same pairs, negatives and steps. What is made already is not made again, so
a killed run goes on where it was; ``--only-write`` makes nothing and prints what is there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from harness import options

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from reference_results import Collection, made  # noqa: E402

CONFIG = ROOT / "configs" / "late.yaml"
SHOWN = ("nDCG@10", "R@100")
# Differences that are tested: a system, and what it is compared with.
PAIRS = (
    ("tokens", "dense"), ("tokens", "splade"), ("tokens", "bm25"), ("bm25-tokens", "tokens"),
    ("splade-tokens", "tokens"), ("splade-tokens", "splade"),
)  # fmt: skip


def table(found: Collection) -> Iterator[str]:
    """Yield the lines of a collection's systems: quality, latency and size."""
    yield "| | nDCG@10 | R@100 | p50 ms | index bytes a document |"
    yield "|---|---:|---:|---:|---:|"
    for system in found.systems:
        cost = found.cost(system)
        spent = cost["latency_ms"] or {}
        cells = [_cell(found.means(system, measure)) for measure in SHOWN]
        cells.append(f"{spent['p50']:.1f}" if spent else "-")
        cells.append(f"{cost['bytes_per_document']:,.0f}")
        yield f"| {system} | " + " | ".join(cells) + " |"


def _cell(values: list[float]) -> str:
    spread = (max(values) - min(values)) / 2
    return f"{np.mean(values):.4f}" + (f" ± {spread:.4f}" if spread else "")


def tests(found: Mapping[str, Collection]) -> Iterator[str]:
    """Yield the lines of the paired tests, each query's values averaged over the seeds."""
    from sluice.retrieval.evaluation.significance import holm, paired_t_test

    yield "| nDCG@10, difference and p | " + " | ".join(found) + " |"
    yield "|---" * (len(found) + 1) + "|"
    cells: dict[str, list[str]] = {}
    for name, each in found.items():
        values = {system: each.by_query(system, SHOWN[0]) for system in each.systems}
        differing = [pair for pair in PAIRS if np.any(values[pair[0]] != values[pair[1]])]
        p = holm([paired_t_test(values[one], values[other]) for one, other in differing])
        adjusted = dict(zip(differing, p, strict=True))
        cells[name] = [
            f"{(values[one] - values[other]).mean():+.4f} (p {adjusted.get((one, other), 1):.2g})"
            for one, other in PAIRS
        ]
    for row, (one, other) in enumerate(PAIRS):
        yield f"| {one} over {other} | " + " | ".join(each[row] for each in cells.values()) + " |"


def page(found: Mapping[str, Collection]) -> str:
    """Return the Markdown of all collections."""
    seeds = max(len(each.results) for each in found.values())
    several = "their mean and half the distance of the largest from the smallest"
    lines = [
        f"Made by `scripts/{Path(__file__).name}` from `configs/{CONFIG.name}`:",
        f"{seeds} seeds, {several}." if seeds > 1 else "One seed.",
        "Test splits. Latency of one query, encoding included, with the first seed; the indexes of",
        "all stages. p of the paired t-test over the queries, by Holm over the rows of a column.",
    ]
    for name, each in found.items():
        lines += ["", f"## {name}", "", *table(each)]
    return "\n".join([*lines, "", *tests(found)]) + "\n"


def main() -> None:
    chosen = options(__doc__, {"--only-write": False, "--seeds": [13, 14, 15]})
    found: dict[str, Collection] = {}
    output = made(CONFIG, chosen.seeds, chosen.only_write, found)
    if not found:
        raise SystemExit(f"{output}-*: nothing is made yet; run without --only-write")
    print(page(found), end="")


if __name__ == "__main__":
    main()
