#!/usr/bin/env python
"""Feedback before, after or around interpolation: nDCG@10 and R@100 of the four ways, tested.

    python scripts/prove_feedback.py nfcorpus --dense runs/prove/nfcorpus/zero-retriever
    python scripts/prove_feedback.py FOLDER --dense RETRIEVER --splade MODEL --k 3 --json FILE
    python scripts/prove_feedback.py vaswani

Without ``--dense`` only RM3 over the sparse retrievers is measured. P-values are of paired t-tests
against the table's first line, corrected by Holm.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import options as parsed, write_record

MEASURES = ["nDCG@10", "R@100", "AP@1000"]


OPTIONS = {
    "dataset": "A dataset: folder, ir_datasets id, name.",
    "--dense": (Path, "A dense retriever's folder."),
    "--splade": (str, "A SPLADE model's folder: a second sparse retriever."),
    "--k": (3, "Feedback documents of the dense side."),
    "--kind": {"choices": ("average", "rocchio"), "default": "average"}, "--alpha": float,
    "--beta": float, "--documents": (10, "Feedback documents of RM3."), "--terms": 10,
    "--original-weight": 0.5, "--json": (Path, "Write the figures here too."),
}  # fmt: skip


def sparse_retrievers(dataset: Any, splade: str | None, folder: Path) -> dict[str, Any]:
    from sluice import BM25Encoder, InvertedIndex, Retriever, SpladeEncoder

    encoders: dict[str, Any] = {"bm25": BM25Encoder()}
    if splade:
        encoders["splade"] = SpladeEncoder.from_pretrained(splade)
    return {
        name: Retriever.build(
            encoder, dataset.corpus, index=InvertedIndex(), path=folder / name, name=name
        )
        for name, encoder in encoders.items()
    }


def four_ways(sparse: Any, dense: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pipelines by name; lists are fused by weighted min-max scores everywhere."""
    from sluice.retrieval.pipelines.fusion_calls import weighted
    from sluice.retrieval.stages.feedback.dense import prf

    hybrid, again = weighted(sparse, dense), prf(dense, **options)
    return {
        "none": hybrid, "before": hybrid >> again, "after": weighted(sparse, again),
        "both": weighted(sparse, hybrid >> again),
    }  # fmt: skip


def measured(systems: Mapping[str, Any], dataset: Any, title: str) -> dict[str, Any]:
    """Run the systems, print their table and return it with the seconds each took."""
    from sluice.retrieval import compare

    runs, seconds = {}, {}
    for name, system in systems.items():
        start = time.monotonic()
        runs[name] = system.run(dataset.queries, k=1000)
        seconds[name] = round(time.monotonic() - start, 2)
    table = compare(runs, dataset.qrels, MEASURES)
    print(f"\n{title}\n\n{table.to_markdown()}")
    for each in table.comparisons:
        print(
            f"{each.system} - {each.baseline}, {each.measure}: {each.difference:+.4f}, "
            f"p {each.p:.4f}, corrected {each.p_corrected:.4f}"
        )
    return {**table.to_dict(), "seconds": seconds}


def main() -> None:
    from sluice.retrieval import Retriever, load_dataset
    from sluice.retrieval.stages.feedback.dense import prf
    from sluice.retrieval.stages.feedback.stage import rm3

    asked = parsed(__doc__, OPTIONS)
    dataset = load_dataset(asked.dataset, "test")
    weights = {"alpha": asked.alpha, "beta": asked.beta}
    options = {"k": asked.k, "kind": asked.kind, **weights}
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for sparse in sparse_retrievers(dataset, asked.splade, Path(name)).values():
            expanded = rm3(
                sparse, documents=asked.documents, terms=asked.terms,
                original_weight=asked.original_weight,
            )  # fmt: skip
            systems = {sparse.name: sparse, "rm3": expanded}
            title = f"RM3 over {sparse.name}"
            figures[title] = measured(systems, dataset, title)
            if asked.dense:
                dense = Retriever.open(asked.dense)
                single = {"dense": dense, "prf": prf(dense, **options)}
                figures["prf"] = measured(single, dataset, "Feedback from the dense list alone")
                title = f"Four ways with {sparse.name}"
                figures[title] = measured(four_ways(sparse, dense, options), dataset, title)
    write_record(asked.json, figures)


if __name__ == "__main__":
    main()
