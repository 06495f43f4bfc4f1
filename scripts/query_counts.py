#!/usr/bin/env python
"""Print how many queries show a difference, from the spreads that evaluations recorded.

    scripts/query_counts.py FOLDER ... [--measure nDCG@10] [--only hybrid dense]

``FOLDER`` is the output of ``sluice evaluate``, of one dataset or several. A row has the systems'
difference by the measure, the standard deviation of the differences by query, the least difference
that the collection's queries show four times out of five, and the queries that smaller ones need.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from harness import options

from sluice.retrieval.evaluation.significance import queries_needed, smallest_difference

SOUGHT = (0.05, 0.02, 0.01)


def rows(file: Path, measure: str, only: list[str] | None) -> list[str]:
    """Return the table's rows of one ``results.json``."""
    results = json.loads(file.read_text(encoding="utf-8"))
    lines = []
    for each in results.get("comparisons") or ():
        if each["measure"] != measure or not each["effect_size"]:
            continue
        if only and each["system"] not in only:
            continue
        spread = each["difference"] / each["effect_size"]
        queries = each["wins"] + each["ties"] + each["losses"]
        least = smallest_difference(queries, spread)
        needed = " | ".join(f"{queries_needed(sought, spread):,}" for sought in SOUGHT)
        lines.append(
            f"| {results['dataset']}, {queries:,} | {each['system']} and {each['baseline']} | "
            f"{each['difference']:+.4f} | {spread:.3f} | {least:.3f} | {needed} |"
        )
    return lines


def main() -> None:
    arguments = options(__doc__, {
        "folders": {"nargs": "+", "type": Path}, "--measure": "nDCG@10",
        "--only": ({"nargs": "+"}, "systems"),
    })  # fmt: skip
    sought = " | ".join(f"queries for {each:g}" for each in SOUGHT)
    lines = [
        f"| collection, queries | systems | difference | spread | least shown | {sought} |",
        "|---|---|---|---|---|" + "---|" * len(SOUGHT),
    ]
    for folder in arguments.folders:
        for file in sorted([*folder.glob("results.json"), *folder.glob("datasets/*/results.json")]):
            lines += rows(file, arguments.measure, arguments.only)
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
