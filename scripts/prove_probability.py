"""How well rerankers' fitted probabilities hold on test queries, what they rank, what they cost.

python scripts/prove_probability.py DATASET --output FOLDER [--cross MODEL] [--language-model NAME]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from sluice.retrieval import Run, load_dataset, run
from sluice.retrieval.evaluation.calibration_error import error_of, probabilities, reliability
from sluice.retrieval.pipelines.fitting.probability_fit import ProbabilityFit

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the experiment: BM25, then each reranker with a fitted probability."""
    pipelines = {"bm25": "bm25"}
    retrievers: dict[str, Any] = {"bm25": {"encoder": {"type": "bm25"}}}
    rerankers: dict[str, Any] = {}
    if options.dense:
        retrievers["dense"] = {"encoder": {"type": "dense", "model": MINILM}}
        pipelines["dense"] = f"bm25 >> dot(dense, depth={options.depth}, probability=True)"
    if options.cross:
        rerankers["cross"] = {"type": "cross_encoder", "model": options.cross,
                              "head": "similarity", "max_length": options.length}  # fmt: skip
    if options.language_model:
        rerankers["language"] = {"type": "generative", "model": options.language_model}
    for name in rerankers:
        pipelines[name] = f"bm25 >> {name}(depth={options.depth}, probability=True)"
    return {
        "dataset": options.dataset, "output": str(options.output), "retrievers": retrievers,
        "rerankers": rerankers, "pipelines": pipelines,
        "evaluate": {"measures": ["nDCG@10"], "latency_queries": options.timed},
    }  # fmt: skip


def main() -> None:
    """Print a row for each reranker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--cross", help="a cross-encoder, or the encoder that one starts as")
    parser.add_argument("--language-model")
    parser.add_argument("--dense", action="store_true")
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--length", type=int, default=128, help="tokens of a pair")
    parser.add_argument("--timed", type=int, default=20, help="queries that are timed")
    options = parser.parse_args()
    run(settings(options))
    dataset = load_dataset(options.dataset, split="test")
    systems = json.loads((options.output / "results.json").read_text())["systems"]
    for system in systems:
        name, cells = system["name"], [f"nDCG@10 {system['measures']['nDCG@10']:.4f}"]
        if name != "bm25":
            fit = ProbabilityFit.load(options.output / "fitted" / f"{name}.json")
            found = Run.load(options.output / "runs" / f"{name}.trec.gz")
            likely, hits = [], []
            for query, grades in dataset.qrels.items():
                head = found[query][: options.depth] if query in found else []
                likely += [score for _, score in head]
                hits += [float(grades.get(doc, 0) >= dataset.level) for doc, _ in head]
            chances, relevant = np.clip(np.array(likely), 0, 1), np.array(hits)
            logits = np.log(np.clip(chances, 1e-12, 1 - 1e-7)) - np.log1p(
                -np.clip(chances, 1e-12, 1 - 1e-7)
            )
            plain = probabilities((logits - fit.bias) / max(fit.scale, 1e-12), 1.0, 0.0)
            base = np.full(len(relevant), fit.relevant / fit.pairs)
            errors = {
                "fitted": error_of(reliability(chances, relevant)),
                "sigmoid of the scores": error_of(reliability(plain, relevant)),
                "Brier score": float(((chances - relevant) ** 2).mean()),
                "Brier score of the dev share alone": float(((base - relevant) ** 2).mean()),
            }
            cells += [f"{what} {value:.4f}" for what, value in errors.items()]
            cells += [fit.shown, f"dev {fit.value:.4f}, held out {fit.held_out:.4f}"]
        latency = system.get("latency_ms") or {}
        print(f"{name}: {', '.join(cells)}, ms a query {latency.get('p50', float('nan')):.1f}")


if __name__ == "__main__":
    main()
