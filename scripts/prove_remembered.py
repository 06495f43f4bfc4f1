#!/usr/bin/env python
"""What a reranker gains by remembering a collection's documents: four kinds over one hybrid.

    SLUICE_DATA=FOLDER scripts/prove_remembered.py [COLLECTION] [--seed 13] [--output FOLDER]

The recipe is that of configs/reference.yaml with its cross-encoder exchanged: a small SPLADE's body
(``sluice model get splade-tiny``) with either head, and random weights in its shape. The fourth has
no network: documents that were relevant in training get one deviation more. Each stands over all
tested queries, and over those of which training had no relevant document.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml
from harness import options

from sluice.retrieval import Run, load_dataset
from sluice.retrieval.datasets.dataset import training_splits
from sluice.retrieval.evaluation.comparison import SignificanceTest
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.experiments.unseen import unseen_judgements
from sluice.retrieval.jobs import run

ROOT = Path(__file__).resolve().parent.parent
HYBRID, MEASURE, DEPTH = "hybrid", "nDCG@10", 20
STARTS: dict[str, dict[str, Any]] = {
    "splade": {}, "splade-sim": {"head": "similarity"}, "drawn": {"start": {"type": "drawn"}},
}  # fmt: skip


def config_of(collection: str, seed: int, output: Path) -> dict[str, Any]:
    """Return the reference recipe with a cascade for each start."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "configs/reference.yaml").read_text("utf-8"))
    config |= {"dataset": collection, "seed": seed, "output": str(output), "rerankers": {}}
    del config["train"]["cross-ft"], config["pipelines"]["cascade"]
    for name, start in STARTS.items():
        config["train"][f"x-{name}"] = {
            "encoder": {
                "type": "cross_encoder", "max_length": 256, "model": "splade-tiny", **start
            },
            "loss": {"type": "localized_softmax"},
            "negatives": {
                "type": "mined", "retriever": HYBRID, "mode": "naive", "per_query": 7,
                "sampling": "random", "range_max": 30,
            },
            "trainer": {
                "max_steps": 300, "per_device_train_batch_size": 8, "learning_rate": 3.0e-4,
                "bf16": False, "save_strategy": "no",
            },
        }  # fmt: skip
        config["rerankers"][f"r-{name}"] = {
            "type": "cross_encoder", "model": f"x-{name}", "max_length": 256,
        }  # fmt: skip
        config["pipelines"][f"c-{name}"] = f"{HYBRID} % 50 >> fitted(r-{name}, depth={DEPTH})"
    config["evaluate"] |= {"baseline": HYBRID, "latency_queries": 20}
    return config


def with_bonus(hits: Run, trained: set[str]) -> Run:
    """Add one deviation of a query's first scores to documents that were relevant in training."""
    lists = {}
    for query in hits:
        head = list(hits[query])[:DEPTH]
        scores = np.array([score for _, score in head])
        scores = (scores - scores.mean()) / (scores.std() + 1e-9)
        scores += [name in trained for name, _ in head]
        lists[query] = [(head[place][0], float(scores[place])) for place in np.argsort(-scores)]
    return Run(lists)


def main() -> None:
    """Train and evaluate what is missing, and print the table."""
    arguments = options(__doc__, {
        "collection": ({"nargs": "?", "default": "scifact"}, "the collection"),
        "--seed": (13, "seed of the trainings"),
        "--output": (ROOT / "runs/remembered", "where the experiment is, and stays"),
    })  # fmt: skip
    config = config_of(arguments.collection, arguments.seed, arguments.output)
    _, experiment = run(config)
    test = load_dataset(config["dataset"], "test")
    rest = unseen_judgements(experiment.config, set(experiment.nodes()), test)
    train = training_splits(test, arguments.seed)[0]
    trained = {d for grades in train.qrels.values() for d, g in grades.items() if g >= train.level}
    names = [HYBRID, *(f"c-{name}" for name in STARTS), "hybrid-zero-shot"]
    runs = {name: Run.load(experiment.output / f"runs/{name}.trec.gz") for name in names}
    runs["bonus"] = with_bonus(runs[HYBRID], trained)
    print(f"{len(rest):,} of {len(test.qrels):,} queries have no relevant document of training")
    values = {
        name: evaluate(each, test, [MEASURE]).per_query[MEASURE] for name, each in runs.items()
    }
    for name in runs:
        cells = []
        for queries in (list(values[HYBRID]), list(rest)):
            own, base = (
                np.array([values[system][query] for query in queries]) for system in (name, HYBRID)
            )
            found = SignificanceTest().compared(name, HYBRID, MEASURE, own, base)
            cells.append(f"{own.mean():.4f} {found.difference:+.4f} (p {found.p:.2g})")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
