#!/usr/bin/env python
"""Make docs/results.md: seven collections by six systems, from configs/reference*.yaml.

    SLUICE_DATA=FOLDER scripts/reference_results.py [--only-write]

Trains a dense encoder, a SPLADE encoder and a cross-encoder on each collection that has a train
split, and takes FeedbackQA's to the others. What is made already is not made again, so a killed run
goes on where it was; ``--only-write`` makes nothing and writes the page from what is there.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ("configs/reference.yaml", "configs/reference-transfer.yaml")
MEASURES = ("nDCG@10", "R@100", "RR@10")
# nDCG@10 on the test split: BEIR's leaderboard and Anserini's flat BM25; the model's own card.
PUBLISHED = {
    ("scifact", "bm25"): 0.6789, ("scifact", "dense-zero-shot"): 0.6451,
    ("nfcorpus", "bm25"): 0.3218, ("nfcorpus", "dense-zero-shot"): 0.3159,
    ("feedbackqa", "dense-zero-shot"): 0.5823,
}  # fmt: skip

HEAD = """Made by `scripts/reference_results.py` from `configs/reference.yaml` and
`configs/reference-transfer.yaml`: one seed, two CPU cores, training runs of one to five minutes
from all-MiniLM-L6-v2, encoded in bfloat16. SciFact, NFCorpus and FeedbackQA train on their own
train split; the other collections are searched with FeedbackQA's models: their rows show transfer.
† differs from BM25 (paired t-test, p < .05, Holm over the systems of the collection). Test
splits; MS MARCO's is a pool of 30,045 passages with the queries of TREC DL 2019 and 2020. The
cascade returns 50 documents, which bounds its recall."""
COST = "Latency of one query, encoding included, one thread; the indexes of all stages."


def page(results: dict[str, Any]) -> str:
    """Return the Markdown of the results by collection."""
    systems = [system["name"] for system in next(iter(results.values()))["systems"]]
    lines = ["# Reference results", "", *HEAD.splitlines()]
    for measure in MEASURES:
        lines += ["", f"## {measure}", "", "| | " + " | ".join(results) + " |"]
        lines += ["|---" * (len(results) + 1) + "|"]
        for system in systems:
            cells = [_cell(found, system, measure) for found in results.values()]
            lines.append(f"| {system} | " + " | ".join(cells) + " |")
        if measure == MEASURES[0]:
            lines += _published(results)
    lines += ["", "## Cost", "", COST]
    for name, found in results.items():
        lines += ["", f"| {name} | p50 ms | p95 ms | p99 ms | index MB | bytes a document |"]
        lines += ["|---|---|---|---|---|---|"]
        for system in found["systems"]:
            spent = system["latency_ms"] or {}
            times = [f"{spent[key]:.1f}" if spent else "-" for key in ("p50", "p95", "p99")]
            size = [f"{system['index_bytes'] / 1e6:.1f}", f"{system['bytes_per_document']:,.0f}"]
            lines.append(f"| {system['name']} | " + " | ".join([*times, *size]) + " |")
    return "\n".join(lines) + "\n"


def _cell(found: dict[str, Any], system: str, measure: str) -> str:
    values = {each["name"]: each["measures"] for each in found["systems"]}
    marked = any(
        each["system"] == system and each["measure"] == measure and each["significant"]
        for each in found["comparisons"]
    )
    return f"{values[system][measure]:.4f}{'†' * marked}"


def _published(results: dict[str, Any]) -> list[str]:
    lines = ["", "| published nDCG@10 | theirs | here |", "|---|---|---|"]
    for (name, system), value in PUBLISHED.items():
        if name in results:
            here = _cell(results[name], system, "nDCG@10").rstrip("†")
            lines.append(f"| {name}, {system} | {value:.4f} | {here} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only-write", action="store_true")
    chosen = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from sluice.retrieval.config.sections import load_values
    from sluice.retrieval.jobs import suite

    found = {}
    for config in CONFIGS:
        file = ROOT / config
        if not chosen.only_write:
            suite(file)
        values = load_values(file)
        for name in values["dataset"]:
            results = Path(values["output"]) / "datasets" / name / "results.json"
            if results.exists():
                found[name] = json.loads(results.read_text(encoding="utf-8"))
    (ROOT / "docs" / "results.md").write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
