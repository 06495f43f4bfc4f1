#!/usr/bin/env python
"""How often `sluice gate` is wrong, and what it sees, beside two plain ways to decide.

    SLUICE_DATA=FOLDER python scripts/prove_gate.py nfcorpus scifact cranfield feedbackqa cosqa

Changes are simulated from real values by query. Two BM25 runs of a collection differ by some
amount on each query; a change draws queries with replacement and turns the direction of each
difference at random, so that the true loss is what was asked for, and the values stay those of real
runs. Half of the changes have no true loss, the others .005 to .05. At the budget's edge the true
loss is the budget.

Beside the gate stand a threshold (worse if the mean falls by more than the budget) and a script
with ranx's paired t-test (worse if the mean is lower and p < .05, else it passes). Neither can say
that it does not know. The second table draws queries of real worse configurations.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from harness import options

from sluice.retrieval.evaluation.comparison import SignificanceTest, Values
from sluice.retrieval.evaluation.non_inferiority import Decision, decide, p_above_zero
from sluice.retrieval.evaluation.significance import power

BUDGET = 0.01
QUERIES = (30, 50, 100, 300, 1000)
LOSSES = (0.005, 0.01, 0.02, 0.03, 0.05)
CONFIGS = {"k1 = 1.2": (1.2, None), "k1 = 9": (9.0, None), "cut to 32 words": (0.9, 32)}
OPTIONS = {
    "collections": {"nargs": "+", "help": "Collections: folders or names."},
    "--changes": (1000, "Simulated changes for each number of queries."),
    "--draws": (200, "Draws of the queries of each real configuration."),
    "--test": ("t-test", "t-test or fisher."),
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


def change(sizes: Values, loss: float, count: int, rng: np.random.Generator) -> Values:
    """Return losses by query of a change whose true mean loss is ``loss``."""
    drawn = sizes[rng.integers(0, len(sizes), count)]
    up = rng.random(count) < 0.5 * (1 + loss / sizes.mean())
    return np.where(up, drawn, -drawn)


def decided(losses: Values, testing: SignificanceTest) -> Decision:
    """Return the gate's decision; a baseline of 0 has these losses."""
    zeros = np.zeros(len(losses))
    return decide({"m": zeros}, {"m": -losses}, {"m": BUDGET}, testing)["m"]


def peers(losses: Values) -> dict[str, str]:
    """Return what a threshold and a script with ranx's t-test say."""
    from ranx.statistical_tests.paired_student_t_test import paired_student_t_test

    p, _ = paired_student_t_test(np.zeros(len(losses)), -losses, 0.05)
    mean = float(losses.mean())
    return {
        "threshold": "worse" if mean > BUDGET else "not worse",
        "ranx t-test": "worse" if mean > 0 and p < 0.05 else "not worse",
    }


def simulated(
    pools: dict[str, Values], count: int, changes: int, testing: SignificanceTest
) -> dict[str, Any]:
    """Return rates over simulated changes of one number of queries, the gate's and the peers'."""
    rng = np.random.default_rng(count)
    names = [name for name, sizes in pools.items() if sizes.mean() >= max(LOSSES)]
    edges = [name for name, sizes in pools.items() if sizes.mean() >= BUDGET]
    said: dict[str, list[float]] = {}

    def note(kind: str, who: str, value: float) -> None:
        said.setdefault(f"{kind}, {who}", []).append(value)

    for number in range(changes):
        equal = number % 2 == 0
        pool = (edges if equal else names)[number // 2 % len(edges if equal else names)]
        sizes, loss = pools[pool], 0.0 if equal else LOSSES[number // 2 % len(LOSSES)]
        losses = change(sizes, loss, count, rng)
        ours = decided(losses, testing)
        verdicts = {"gate": ours.verdict, **peers(losses)}
        spread = float(np.sqrt((sizes**2).mean() - loss**2))
        for who, verdict in verdicts.items():
            note("alarm" if equal else "seen", who, verdict == "worse")
        if equal:
            note("passed", "gate", ours.verdict == "not worse")
            note("passed", "theory", power(count, BUDGET, spread, alpha=0.1))
        else:
            note("found", "gate", ours.p_loss < 0.05)
            note("seen", "theory", power(count, loss, spread, alpha=0.1))
        edge = change(pools[edges[number % len(edges)]], BUDGET, count, rng)
        alone = "not worse" if p_above_zero(BUDGET - edge, testing) < 0.05 else "cannot tell"
        verdicts = {"gate": decided(edge, testing).verdict, "alone": alone, **peers(edge)}
        for who, verdict in verdicts.items():
            note("edge", who, verdict == "not worse")
    passed = {
        name: np.mean([
            decided(change(pools[name], BUDGET, count, rng), testing).verdict == "not worse"
            for _ in range(changes // 4)
        ])
        for name in edges
    }  # fmt: skip
    worst = max(passed, key=lambda name: float(passed[name]))
    rates = {kind: float(np.mean(each)) for kind, each in said.items()}
    return {**rates, "worst": (float(passed[worst]), worst)}


def real(
    found: dict[str, Values], draws: int, testing: SignificanceTest
) -> Iterator[tuple[str, float, dict[int, dict[str, float]]]]:
    """Yield each configuration with its loss, and how often each verdict falls by queries."""
    for name in CONFIGS:
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
    """Print both tables."""
    asked = options(__doc__, OPTIONS)
    testing = SignificanceTest(asked.test)
    everything = {name: values_of(name) for name in asked.collections}
    pools = {
        f"{collection}, {name}": np.abs(values["base"] - values[name])
        for collection, values in everything.items()
        for name in CONFIGS
    }
    lines = [
        f"{len(pools)} pools of differences; budget {BUDGET}; {asked.changes} changes a row",
        "| queries | false alarms: gate | threshold | ranx | false passes at the edge: gate "
        "(worst) | its test alone | threshold | ranx | losses found: gate | theory | threshold "
        "| ranx | equal passed: gate | theory |",
        "|---:|" + "---:|" * 13,
    ]
    for count in QUERIES:
        rate = simulated(pools, count, asked.changes, testing)
        share, name = rate["worst"]
        cells = [f"{rate[key]:.3f}" for key in (
            "alarm, gate", "alarm, threshold", "alarm, ranx t-test", "edge, gate",
            "edge, alone", "edge, threshold", "edge, ranx t-test", "found, gate", "seen, theory",
            "seen, threshold", "seen, ranx t-test", "passed, gate", "passed, theory",
        )]  # fmt: skip
        cells[3] += f" ({share:.3f} {name})"
        lines.append(f"| {count:,} | {' | '.join(cells)} |")
    lines += ["", "| collection, change | true loss | verdicts by queries |", "|---|---:|---|"]
    for collection, found in everything.items():
        for name, loss, rates in real(found, asked.draws, testing):
            parts = []
            for count, each in rates.items():
                shares = ", ".join(f"{verdict} {share:.0%}" for verdict, share in each.items())
                parts.append(f"{count:,}: {shares}")
            shown = "; ".join(parts)
            lines.append(f"| {collection}, {name} | {loss:+.4f} | {shown} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
