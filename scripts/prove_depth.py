#!/usr/bin/env python
"""Depth by query: mean depth of adaptive cut-offs against the best one depth of equal success.

    python scripts/prove_depth.py runs/zero-retriever nfcorpus
    python scripts/prove_depth.py RETRIEVER FOLDER --folds 5 --json FILE

Cut-offs are fitted on train queries and measured on test queries; with ``--folds`` on all folds but
one of both together, and measured on that one, which has less noise (for a retriever that was
trained on none of them). Success is the share of queries with a relevant document inside the depth.
The one depth it is held against is chosen on the measured queries themselves, which flatters it:
the smallest with the same success, parts of a document counted.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from harness import options, write_record

OPTIONS = {
    "retriever": "A retriever folder.", "dataset": "A dataset with train and test: folder or name.",
    "--depth": (100, "Candidates of a query."), "--n": ([25, 100], "Scores looked at."),
    "--alpha": [1.0, 0.01], "--folds": (int, "Cross-validate over train and test together."),
    "--json": (Path, "Write the figures here too."),
}  # fmt: skip


def smallest(ranks: Any, success: float, most: int) -> float:
    """Return the smallest depth for all with this success, parts of a document too."""
    import numpy as np

    reached = np.array([(ranks <= depth).mean() for depth in range(most + 1)])
    depth = int(np.argmax(reached >= success - 1e-12))
    if depth == 0:
        return 0.0
    return depth - 1 + (success - reached[depth - 1]) / (reached[depth] - reached[depth - 1])


def judged(
    asked: argparse.Namespace,
) -> tuple[Any, dict[str, Any], list[tuple[list[str], list[str]]]]:
    """Return the run, the judgements, and pairs of queries to fit on and to measure."""
    import numpy as np

    from sluice.retrieval import Retriever, Run, load_dataset
    from sluice.retrieval.retrievers.candidate_lists import run_on

    retriever = Retriever.open(asked.retriever)
    splits = [load_dataset(asked.dataset, name) for name in ("train", "test")]
    runs = [run_on(retriever, split, asked.depth) for split in splits]
    run = Run({query: run[query] for run in runs for query in run})
    names = [[q for q, grades in split.qrels.items() if q in run and max(grades.values()) > 0]
             for split in splits]  # fmt: skip
    qrels = {q: split.qrels[q] for split, own in zip(splits, names, strict=True) for q in own}
    if not asked.folds:
        return run, qrels, [(names[0], names[1])]
    every = np.random.default_rng(13).permutation([*names[0], *names[1]]).tolist()
    parts = [every[fold :: asked.folds] for fold in range(asked.folds)]
    return run, qrels, [([q for q in every if q not in set(part)], part) for part in parts]


def main() -> None:
    import numpy as np

    from sluice.retrieval.stages.adaptive_depth import CumulativeScore, fit_cut_off

    asked = options(__doc__, OPTIONS)
    run, qrels, folds = judged(asked)
    rules: dict[str, dict[str, Any] | float] = {
        f"share {share}": share for share in (0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
    }
    for n in asked.n:
        for alpha in asked.alpha:
            for extra in (0, 1, 2, 5, 10, 20, 40):
                rules[f"ridge n={n} alpha={alpha:g} + {extra}"] = {
                    "n": n, "alpha": alpha, "extra": extra
                }  # fmt: skip
    ranks = np.array([
        next((r for r, doc in enumerate(run[q].doc_ids, 1) if qrels[q].get(doc, 0) > 0), np.inf)
        for _, measured in folds for q in measured
    ])  # fmt: skip
    figures = []
    for name, rule in rules.items():
        depths = []
        for fitted, measured in folds:
            made: Any = (
                fit_cut_off(run, {q: qrels[q] for q in fitted}, **rule)
                if isinstance(rule, dict)
                else CumulativeScore(rule)
            )
            depths += [min(made.depth(run[q]), asked.depth) for q in measured]
        success = float((ranks <= np.array(depths)).mean())
        depth, static = float(np.mean(depths)), smallest(ranks, success, asked.depth)
        saved = 1 - depth / static if static else 0.0
        figures.append({"rule": name, "mean_depth": depth, "success": success,
                        "static_depth": static, "saved": saved})  # fmt: skip
        print(f"{name:<28} depth {depth:6.2f}  success {success:.4f}  "
              f"one depth {static:6.2f}  saved {saved:+.1%}")  # fmt: skip
    print(f"{len(ranks):,} queries")
    write_record(asked.json, figures)


if __name__ == "__main__":
    main()
