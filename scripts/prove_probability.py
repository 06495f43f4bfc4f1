#!/usr/bin/env python
"""How well rerankers' fitted probabilities hold on test queries, what they rank, what they cost.

    scripts/prove_probability.py DATASET --output FOLDER [--dense] [--cross MODEL] [--steps 300]
        [--language-model NAME] [--decisions NAME] [--dev 100] [--queries 200]

``--steps`` also trains the cross-encoder, by the recipe of prove_cascade.py's ``splade-sim`` with
BM25's negatives. ``--decisions`` asks a language model behind HTTP (decision_server.py, which this
starts) for a choice in JSON with its probability. ``--dev`` and ``--queries`` draw so many dev and
test queries by ``--seed``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import options, write_beir

from sluice.retrieval import Run, load_dataset, run
from sluice.retrieval.datasets.dataset import training_splits
from sluice.retrieval.evaluation.calibration_error import error_of, probabilities, reliability
from sluice.retrieval.pipelines.fitting.probability_fit import ProbabilityFit

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


def settings(asked: argparse.Namespace, dataset: str, url: str | None) -> dict[str, Any]:
    """Return the experiment: BM25, then each reranker with a fitted probability."""
    pipelines = {"bm25": "bm25"}
    retrievers: dict[str, Any] = {"bm25": {"encoder": {"type": "bm25"}}}
    rerankers: dict[str, Any] = {}
    train: dict[str, Any] = {}
    if asked.dense:
        retrievers["dense"] = {"encoder": {"type": "dense", "model": MINILM, "dtype": "auto"}}
        pipelines["dense"] = f"bm25 >> dot(dense, depth={asked.depth}, probability=True)"
    if asked.cross:
        cross = {"type": "cross_encoder", "model": asked.cross, "head": "similarity",
                 "max_length": asked.length}  # fmt: skip
        rerankers["untrained"] = {**cross, "dtype": "auto"}
        if asked.steps:
            train["trained-cross"] = {
                "encoder": cross, "loss": {"type": "localized_softmax"},
                "negatives": {"type": "mined", "retriever": "bm25", "mode": "naive",
                              "per_query": 7, "range_max": 30, "sampling": "random"},
                "trainer": {"max_steps": asked.steps, "per_device_train_batch_size": 8,
                            "learning_rate": 3.0e-4, "bf16": True, "save_strategy": "no"},
            }  # fmt: skip
            rerankers["trained"] = {"type": "cross_encoder", "model": "trained-cross",
                                    "max_length": asked.length, "dtype": "auto"}  # fmt: skip
    if asked.language_model:
        rerankers["language"] = {"type": "generative", "model": asked.language_model,
                                 "document_length": asked.length, "dtype": "auto"}  # fmt: skip
    if url:
        rerankers["decision"] = {"type": "http", "url": url, "model": asked.decisions,
                                 "structured": True, "document_length": asked.length,
                                 "timeout_s": 300}  # fmt: skip
    for name in rerankers:
        pipelines[name] = f"bm25 >> {name}(depth={asked.depth}, probability=True)"
    return {
        "dataset": dataset, "output": str(asked.output / "runs"), "seed": asked.seed,
        "retrievers": retrievers, "rerankers": rerankers, "pipelines": pipelines,
        **({"train": train} if train else {}),
        "evaluate": {"measures": ["nDCG@10"], "baseline": "bm25", "latency_queries": asked.timed},
    }  # fmt: skip


def drawn(asked: argparse.Namespace) -> str:
    """Write the dataset with as many dev and test queries as asked for; return its folder."""
    if not (asked.dev or asked.queries):
        return str(asked.dataset)
    test = load_dataset(asked.dataset, "test")
    train, dev = training_splits(test, asked.seed)
    chance, queries, qrels = random.Random(asked.seed), dict[str, str](), dict[str, Any]()
    for split, data, count in (("dev", dev, asked.dev), ("test", test, asked.queries),
                               ("train", train, 0)):  # fmt: skip
        known = sorted(data.qrels)
        chosen = chance.sample(known, min(count or len(known), len(known)))
        qrels[split] = {query: data.qrels[query] for query in chosen}
        queries |= {query: data.queries[query] for query in chosen}
    folder = asked.output / "data"
    write_beir(folder, ((each.id, each.title, each.text) for each in test.corpus), queries, qrels)
    return str(folder)


@contextlib.contextmanager
def decisions(model: str) -> Iterator[str | None]:
    """Start the server of decisions, and stop it at the end."""
    if not model:
        yield None
        return
    words = [sys.executable, str(Path(__file__).parent / "decision_server.py"), model]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().strip() or None
        finally:
            process.terminate()


def main() -> None:
    """Print a row for each reranker."""
    asked = options(__doc__, {
        "dataset": "the collection", "--output": ({"type": Path, "required": True}, None),
        "--cross": ("", "a cross-encoder, or the encoder that one starts as"),
        "--steps": (0, "of its training; 0: none"),
        "--language-model": "", "--decisions": "", "--dense": False,
        "--depth": 20, "--length": (128, "tokens of a pair, or of a document beside a prompt"),
        "--timed": (20, "queries that are timed"),
        "--dev": (0, "dev queries; 0: all"), "--queries": (0, "test queries; 0: all"), "--seed": 13,
    })  # fmt: skip
    dataset = drawn(asked)
    with decisions(asked.decisions) as url:
        run(settings(asked, dataset, url))
    rows(asked, load_dataset(dataset, split="test"))


def rows(asked: argparse.Namespace, dataset: Any) -> None:
    """Print what came of each reranker."""
    folder = asked.output / "runs"
    print("| | fitted | sigmoid | dev | held out | Brier, share alone | nDCG@10 | ms |")
    for system in json.loads((folder / "results.json").read_text())["systems"]:
        name, cells = system["name"], ["", "", "", "", ""]
        if name != "bm25":
            fit = ProbabilityFit.load(folder / "fitted" / f"{name}.json")
            found = Run.load(folder / "runs" / f"{name}.trec.gz")
            likely, hits = [], []
            for query, grades in dataset.qrels.items():
                head = found[query][: asked.depth] if query in found else []
                likely += [score for _, score in head]
                hits += [float(grades.get(doc, 0) >= dataset.level) for doc, _ in head]
            chances, relevant = np.clip(np.array(likely), 0, 1), np.array(hits)
            sure = np.clip(chances, 1e-12, 1 - 1e-7)
            logits = np.log(sure) - np.log1p(-sure)
            plain = probabilities((logits - fit.bias) / max(fit.scale, 1e-12), 1.0, 0.0)
            base = np.full(len(relevant), fit.relevant / fit.pairs)
            brier, alone = (((each - relevant) ** 2).mean() for each in (chances, base))
            cells = [
                f"{error_of(reliability(chances, relevant)):.4f}",
                f"{error_of(reliability(plain, relevant)):.4f}",
                f"{fit.value:.4f}", f"{fit.held_out:.4f}", f"{brier:.4f}, {alone:.4f}",
            ]  # fmt: skip
            print(f"{name}: {fit.shown}; {fit.queries} dev queries, {fit.pairs} pairs")
        latency = (system.get("latency_ms") or {}).get("p50", float("nan"))
        cells += [f"{system['measures']['nDCG@10']:.4f}", f"{latency:.0f}"]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
