#!/usr/bin/env python
"""How often `sluice gate` is wrong, and what it sees, beside other ways to decide.

    SLUICE_DATA=FOLDER python scripts/prove_gate.py nfcorpus scifact cranfield feedbackqa cosqa
        [--dense minilm:scifact e5:feedbackqa] [--edge 10000]

Changes are simulated from real values by query. Two BM25 runs of a collection differ by some
amount on each query; a change draws queries with replacement and turns the direction of each
difference at random, so that the true loss is what was asked for, and the values stay those of real
runs. Half of the changes have no true loss, the others .005 to .05. At the budget's edge the true
loss is the budget.

Beside the gate stand a threshold (worse if the mean falls by more than the budget), a script with
ranx's paired t-test (worse if the mean is lower and p < .05, else it passes) and, where they can be
imported, other gates for search by their own functions: rag-eval-harness (a threshold),
toolkit-rag-quality (over the budget and p < .05, by its t-test) and retrieval-eval-gate (its policy
`regression`: lower and p < .05, by 1,000 random signs). None of them can say that it does not know.
--edge draws more changes at the budget's edge, all at once. The last table draws queries of real
worse configurations; those of --dense, MODEL:COLLECTION, are encoded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from harness import options
from scipy import stats

from sluice.retrieval.evaluation.comparison import SignificanceTest, Values
from sluice.retrieval.evaluation.non_inferiority import (
    FEW,
    UNSEEN,
    Decision,
    decide,
    p_above_zero,
)
from sluice.retrieval.evaluation.significance import power

BUDGET = 0.01
MEAN = 0.5  # of the baseline, for budgets that are shares of it
QUERIES = (30, 50, 100, 300, 1000)
LOSSES = (0.005, 0.01, 0.02, 0.03, 0.05)
CONFIGS = {"k1 = 1.2": (1.2, None), "k1 = 9": (9.0, None), "cut to 32 words": (0.9, 32)}
MINILM = {"type": "dense", "model": "minilm"}
E5 = {"type": "dense", "model": "e5-small-4bit", "dtype": "bfloat16"}
DENSE: dict[str, dict[str, Any]] = {  # the first retriever is the baseline
    "minilm": {
        "dense": {"encoder": MINILM},
        "int4": {"encoder": MINILM, "index": {"type": "faiss", "factory": "SQ4"}},
        "cut32": {"encoder": {**MINILM, "document_length": 32}},
    },
    "e5": {
        "e5": {"encoder": E5},
        "unprompted_queries": {"encoder": {**E5, "query_prompt": ""}},
        "exchanged": {"encoder": {**E5, "query_prompt": "passage: "}},
    },
}
OPTIONS = {
    "collections": {"nargs": "+", "help": "Collections: folders or names."},
    "--changes": (1000, "Simulated changes for each number of queries."),
    "--peers": (400, "Of these, those that other gates decide as well."),
    "--draws": (200, "Draws of the queries of each real configuration."),
    "--edge": (0, "Changes of each pool at the budget's edge, drawn at once."),
    "--test": ("t-test", "t-test or fisher."),
    "--dense": {"nargs": "*", "default": [], "help": "MODEL:COLLECTION, as minilm:scifact."},
    "--output": (Path("runs/gate"), "The folder of these evaluations."),
}


def values_of(collection: str) -> dict[str, Values]:
    """Return nDCG@10 by query of BM25 and of its changes."""
    from sluice import BM25Encoder, Document, Retriever, evaluate, load_dataset

    dataset = load_dataset(collection)
    corpus = list(dataset.corpus)
    found = {}
    for name, (k1, words) in {"base": (0.9, None), **CONFIGS}.items():
        texts = [Document(each.id, "", " ".join(each.full_text.split()[:words])) for each in corpus]
        retriever = Retriever.build(BM25Encoder(k1=k1, b=0.4), corpus if words is None else texts)
        scores = evaluate(retriever, dataset, ["nDCG@10"])
        found[name] = np.array(list(scores.per_query["nDCG@10"].values()))
    return found


def dense_values_of(name: str, collection: str, output: Path) -> dict[str, Values]:
    """Return nDCG@10 by query of a dense retriever, ``base``, and of its changes."""
    from sluice import Run, evaluate, load_dataset, run

    folder, retrievers = output / f"{name}-{collection}", DENSE[name]
    settings = {"measures": ["nDCG@10"], "report": False, "latency_queries": 0}
    config = {"dataset": collection, "output": str(folder), "retrievers": retrievers}
    run({**config, "evaluate": settings})
    dataset = load_dataset(collection)
    found = {}
    for place, retriever in enumerate(retrievers):
        ranked = Run.load(folder / "runs" / f"{retriever}.trec.gz")
        values = evaluate(ranked, dataset, ["nDCG@10"]).per_query["nDCG@10"]
        found[retriever if place else "base"] = np.array(list(values.values()))
    return found


def change(sizes: Values, loss: float, shape: Any, rng: np.random.Generator) -> Values:
    """Return losses by query of changes whose true mean loss is ``loss``."""
    drawn = sizes[rng.integers(0, len(sizes), shape)]
    up = rng.random(shape) < 0.5 * (1 + loss / sizes.mean())
    return np.where(up, drawn, -drawn)


def decided(losses: Values, testing: SignificanceTest) -> Decision:
    """Return the gate's decision; a baseline of 0 has these losses."""
    zeros = np.zeros(len(losses))
    return decide({"m": zeros}, {"m": -losses}, {"m": BUDGET}, testing)["m"]


def threshold(losses: Values) -> bool:
    """Return whether the mean falls by more than the budget."""
    return float(losses.mean()) > BUDGET


def ranx(losses: Values) -> bool:
    """Return whether a script with ranx's t-test says worse."""
    from ranx.statistical_tests.paired_student_t_test import paired_student_t_test

    p, _ = paired_student_t_test(np.zeros(len(losses)), -losses, 0.05)
    return float(losses.mean()) > 0 and p < 0.05


def rag_eval_harness(losses: Values) -> bool:
    """Return whether rag-eval-harness says worse."""
    module = import_module("rag_eval_harness.regression.compare")
    head = {"m": MEAN - float(losses.mean())}
    return not module.compare_means({"m": MEAN}, head, threshold=BUDGET).passed


def toolkit_rag_quality(losses: Values) -> bool:
    """Return whether toolkit-rag-quality says worse."""
    compare = import_module("toolkit_rag_quality.compare")

    def report(values: Values) -> Any:
        rows = [{"id": str(n), "recall": float(value)} for n, value in enumerate(values)]
        return compare.RAGReport({"recall_at_k": float(values.mean())}, rows)

    found = compare.compare_reports(
        baseline=report(np.full(len(losses), MEAN)), candidate=report(MEAN - losses),
        budget=compare.CompareBudget(max_recall_regression_pct=100 * BUDGET / MEAN),
        alpha=0.05, test="t-test", n_resamples=10,
    )  # fmt: skip
    return not found["passed"]


def retrieval_eval_gate(losses: Values) -> bool:
    """Return whether retrieval-eval-gate's policy ``regression`` says worse; no floor is set."""
    harness = import_module("rag_eval_gate.harness")
    now = MEAN - losses
    scores: Any = [SimpleNamespace(ndcg=value) for value in now]
    result = harness.ModeResult("m", scores, means={"ndcg@10": float(now.mean())})
    before = [{"ndcg": MEAN}] * len(now)
    return not harness.gate_regression(result, before, {"ndcg@10": -1.0}, 1000)[0]["pass"]


SAY_WORSE: dict[str, Callable[[Values], bool]] = {"threshold": threshold, "ranx t-test": ranx}
OTHERS: dict[str, tuple[str, Callable[[Values], bool]]] = {
    "rag-eval-harness": ("rag_eval_harness", rag_eval_harness),
    "toolkit-rag-quality": ("toolkit_rag_quality", toolkit_rag_quality),
    "retrieval-eval-gate": ("rag_eval_gate", retrieval_eval_gate),
}


def simulated(
    pools: Mapping[str, Values], count: int, changes: int, peers: int, testing: SignificanceTest
) -> dict[tuple[str, str], float]:
    """Return rates over simulated changes of one number of queries: by kind, and who decides."""
    rng = np.random.default_rng(count)
    names = [name for name, sizes in pools.items() if sizes.mean() >= max(LOSSES)]
    edges = [name for name, sizes in pools.items() if sizes.mean() >= BUDGET]
    others = {n: say for n, (module, say) in OTHERS.items() if find_spec(module)}
    said: dict[tuple[str, str], list[float]] = {}

    def note(kind: str, who: str, value: float) -> None:
        said.setdefault((kind, who), []).append(value)

    for number in range(changes):
        equal = number % 2 == 0
        pool = (edges if equal else names)[number // 2 % len(edges if equal else names)]
        sizes, loss = pools[pool], 0.0 if equal else LOSSES[number // 2 % len(LOSSES)]
        losses = change(sizes, loss, count, rng)
        edge = change(pools[edges[number % len(edges)]], BUDGET, count, rng)
        ours, kind = decided(losses, testing), "alarm" if equal else "found"
        spread = float(np.sqrt((sizes**2).mean() - loss**2))
        for who, say in {**SAY_WORSE, **(others if number < peers else {})}.items():
            note(kind, who, say(losses))
            note("edge", who, not say(edge))
        note("edge", "gate", decided(edge, testing).verdict == "not worse")
        note("edge", "its test alone", p_above_zero(BUDGET - edge, testing) < 0.05)
        if equal:
            note("alarm", "gate", ours.verdict == "worse")
            note("passed", "gate", ours.verdict == "not worse")
            note("passed", "theory", power(count, BUDGET, spread, alpha=0.1))
        else:
            note("found", "gate", ours.p_loss < 0.05)
            note("found", "theory", power(count, loss, spread, alpha=0.1))
    return {key: float(np.mean(values)) for key, values in said.items()}


def at_the_edge(
    sizes: Values, count: int, changes: int, rng: np.random.Generator
) -> tuple[float, float, float]:
    """Return how often the gate's t-test passes a loss as large as the budget.

    Behind it the same without Johnson's correction for skewness; and how often equal systems pass.
    """
    rates = []
    for loss in (BUDGET, 0.0):
        losses = change(sizes, loss, (changes, count), rng)
        largest = np.maximum(UNSEEN, np.abs(losses).max(axis=1, keepdims=True))
        few = (losses != 0).sum(axis=1) < FEW
        added = _p_values(np.hstack([losses, largest]))[0]
        plain, careful = _p_values(losses)
        plain = np.where(few, np.maximum(plain, added), plain)
        careful = np.where(few, plain, np.maximum(plain, careful))
        ours = decided(losses[0], SignificanceTest()).p_within
        if abs(ours - careful[0]) > 1e-9:
            raise AssertionError(f"the gate has p {ours}, this simulation {careful[0]}")
        rates += [float((careful < 0.05).mean()), float((plain < 0.05).mean())]
    return rates[0], rates[1], rates[2]


def _p_values(losses: Values) -> tuple[Values, Values]:
    """Return p-values of a loss as large as the budget: Student's, and as Johnson corrects it."""
    count = losses.shape[1]
    left, spread = BUDGET - losses.mean(axis=1), np.maximum(losses.std(axis=1, ddof=1), 1e-12)
    centred = losses - losses.mean(axis=1, keepdims=True)
    third = -(centred**3).sum(axis=1) * count / ((count - 1) * (count - 2))
    top = np.divide(-1.5 * spread**4, third, out=np.full_like(left, np.inf), where=third < 0)
    error, left = spread / np.sqrt(count), np.minimum(left, top)
    moved = left + third / (6 * spread**2 * count) + third * left**2 / (3 * spread**4)
    plain = (BUDGET - losses.mean(axis=1)) / error
    return stats.t.sf(plain, count - 1), stats.t.sf(moved / error, count - 1)


def edge_lines(pools: Mapping[str, Values], changes: int) -> Iterator[str]:
    """Yield the table of passes at the budget's edge, over all pools alike."""
    rng = np.random.default_rng(45)
    edges = {name: sizes for name, sizes in pools.items() if sizes.mean() >= BUDGET}
    yield f"\n{len(edges)} pools, {changes} changes each, their mean with its 95 % interval"
    yield "| queries | passes at the edge | worst pool | without Johnson's | equal passed |"
    yield "|---:|---:|---|---:|---:|"
    for count in QUERIES:
        rates = {name: [at_the_edge(sizes, count, 500, rng) for _ in range(changes // 500)]
                 for name, sizes in edges.items()}  # fmt: skip
        means = {name: np.mean(each, axis=0) for name, each in rates.items()}
        edge, plain, equal = np.mean(list(means.values()), axis=0)
        wide = 1.96 * np.sqrt(edge * (1 - edge) / (changes * len(edges)))
        worst = max(means, key=lambda name: float(means[name][0]))
        yield (
            f"| {count:,} | {edge:.4f} ± {wide:.4f} | {means[worst][0]:.4f} {worst} "
            f"| {plain:.4f} | {equal:.3f} |"
        )


def real(
    found: dict[str, Values], draws: int, testing: SignificanceTest
) -> Iterator[tuple[str, float, dict[int, dict[str, float]]]]:
    """Yield each configuration with its loss, and how often each verdict falls by queries."""
    for name in [each for each in found if each != "base"]:
        losses = found["base"] - found[name]
        rng = np.random.default_rng(0)
        rates: dict[int, dict[str, float]] = {}
        for count in [each for each in QUERIES if each < len(losses)] + [len(losses)]:
            times = draws if count < len(losses) else 1
            verdicts = [
                decided(losses[rng.choice(len(losses), count, replace=False)], testing).verdict
                for _ in range(times)
            ]
            rates[count] = {v: verdicts.count(v) / times for v in sorted(set(verdicts))}
        yield name, float(losses.mean()), rates


def main() -> None:
    """Print the tables."""
    asked = options(__doc__, OPTIONS)
    testing = SignificanceTest(asked.test)
    everything = {name: values_of(name) for name in asked.collections}
    pools = {
        f"{collection}, {name}": np.abs(values["base"] - values[name])
        for collection, values in everything.items()
        for name in CONFIGS
    }
    for each in asked.dense:
        name, _, collection = each.partition(":")
        everything[f"{collection}, {name}"] = dense_values_of(name, collection, asked.output)
    rates = {
        count: simulated(pools, count, asked.changes, asked.peers, testing) for count in QUERIES
    }
    lines = [f"{len(pools)} pools of differences; budget {BUDGET}; {asked.changes} changes"]
    lines += [f"| rate | who | {' | '.join(map(str, QUERIES))} |", "|---|---|" + "---:|" * 5]
    for kind, who in sorted(rates[QUERIES[0]]):
        cells = " | ".join(f"{rates[count][kind, who]:.3f}" for count in QUERIES)
        lines.append(f"| {kind} | {who} | {cells} |")
    lines += edge_lines(pools, asked.edge) if asked.edge else []
    lines += ["", "| collection, change | true loss | verdicts by queries |", "|---|---:|---|"]
    for collection, found in everything.items():
        for name, loss, by_count in real(found, asked.draws, testing):
            parts = []
            for count, each in by_count.items():
                shares = ", ".join(f"{verdict} {share:.0%}" for verdict, share in each.items())
                parts.append(f"{count:,}: {shares}")
            lines.append(f"| {collection}, {name} | {loss:+.4f} | {'; '.join(parts)} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
