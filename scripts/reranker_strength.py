#!/usr/bin/env python
"""How well a reranker must tell documents apart to add anything to a first stage.

    SLUICE_DATA=FOLDER scripts/reranker_strength.py DATASET FIRST.trec.gz [OTHER.trec.gz ...]
        [--depth 20] [--seeds 3]

A made scorer gives every relevant document d more than others and normal noise to all, whatever the
query, so that it puts a relevant document of the first ``depth`` above another one with chance a =
Phi(d / sqrt 2). What it adds is measured as for a real one: the share of the earlier score is
chosen on four fifths of the queries and applied to the fifth (``fit_rerank``). The OTHER runs stand
beside it: their chance on the same candidates, and what they add.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from harness import options
from scipy.stats import norm

from sluice.retrieval import Run, load_dataset
from sluice.retrieval.pipelines.fitting.rerank_fit import fit_rerank

CHANCES = (0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9)
Qrels = dict[str, dict[str, int]]


def chance(scored: Run, qrels: Qrels) -> float:
    """Return how often a relevant document is above another; the mean over queries with both."""
    found = []
    for query in scored:
        hits = list(scored[query])
        relevant = np.array([qrels.get(query, {}).get(name, 0) > 0 for name, _ in hits])
        scores = np.array([score for _, score in hits])
        if 0 < relevant.sum() < len(hits):
            apart = scores[relevant][:, None] - scores[~relevant][None]
            found.append(float(np.mean((apart > 0) + 0.5 * (apart == 0))))
    return float(np.mean(found))


def made(head: Run, qrels: Qrels, distance: float, seed: int) -> Run:
    """Return the candidates by a made scorer."""
    draw = np.random.default_rng(seed)
    lists: dict[str, list[tuple[str, float]]] = {}
    for query in head:
        names = [name for name, _ in head[query]]
        noise = draw.standard_normal(len(names))
        graded = [distance * (qrels.get(query, {}).get(name, 0) > 0) for name in names]
        lists[query] = list(zip(names, (noise + graded).tolist(), strict=True))
    return Run(lists)


def of_run(head: Run, other: Run) -> Run:
    """Return the candidates by another run's scores; what it lacks is below all of it."""
    lists: dict[str, list[tuple[str, float]]] = {}
    for query in head:
        known = dict(other[query]) if query in other else {}
        least = min(known.values(), default=0.0) - 1e-6
        lists[query] = [(name, known.get(name, least)) for name, _ in head[query]]
    return Run(lists)


def main() -> None:
    """Print a table: the chance of each scorer, and what it adds."""
    arguments = options(__doc__, {
        "dataset": (str, "the collection, at its test split"),
        "runs": ({"nargs": "+", "type": Path}, "the first stage's run, then other systems'"),
        "--depth": (20, "documents that are reranked"),
        "--seeds": (3, "made scorers of each strength"),
    })  # fmt: skip
    qrels = load_dataset(arguments.dataset, "test").qrels
    first, *others = map(Run.load, arguments.runs)
    head = first.top(arguments.depth)

    def added(scored: Run) -> float:
        fit = fit_rerank(first, scored, qrels, depth=arguments.depth, steps=False)
        return 0.0 if fit.gain is None else fit.gain.mean

    base = fit_rerank(first, head, qrels, depth=arguments.depth, steps=False)
    print(f"{arguments.dataset}: first stage {base.first:.4f}, chance {chance(head, qrels):.3f}")
    print("| scorer | chance | added |\n|---|---|---|")
    for wanted in CHANCES:
        distance = float(norm.ppf(wanted)) * 2**0.5
        gains = [added(made(head, qrels, distance, seed)) for seed in range(arguments.seeds)]
        print(f"| made | {wanted:.2f} | {np.mean(gains):+.4f} |")
    for path, other in zip(arguments.runs[1:], others, strict=True):
        scored = of_run(head, other)
        print(f"| {path.name.partition('.')[0]} | {chance(scored, qrels):.3f} "
              f"| {added(scored):+.4f} |")  # fmt: skip


if __name__ == "__main__":
    main()
