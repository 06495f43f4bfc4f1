#!/usr/bin/env python
"""Measure how much of a list repeated passes of windows put in order, and what they cost.

    scripts/prove_full_ranking.py [--lists 20] [--noise 0 3 10]

No language model: windows of 20 of 100 candidates, 10 places apart, are ordered by true ranks to
which each window adds noise of its own (a standard deviation in ranks). The first order is random.
Printed are Kendall's tau of the whole list, the share of the best ten among the first ten, and the
windows a list took, by the number of passes; the last is that until every list is in order.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import options
from scipy.stats import kendalltau

COUNT, WIDTH, STEP = 100, 20, 10


class Noisy:
    """Orders a window by the numbers its texts begin with, and noise drawn for the window."""

    def __init__(self, noise: float) -> None:
        self.noise = noise
        self.fingerprint = f"noisy {noise}"

    def completions(self, prompts: Sequence[Any], max_new_tokens: int) -> list[str]:
        """Return an order for each window."""
        answers = []
        for prompt in prompts:
            ranks = np.array([int(text.split()[0]) for text in prompt.slots[1:-1]], float)
            draw = np.random.default_rng([len(ranks), *ranks.astype(int).tolist()])
            order = np.argsort(ranks + draw.normal(0, self.noise, len(ranks)), kind="stable")
            answers.append(" > ".join(f"[{place + 1}]" for place in order))
        return answers


def main() -> None:
    from sluice import Dataset, Document, Run
    from sluice.retrieval.training_data.written.full_rankings import (
        Windows,
        passes_needed,
        rank_dataset,
    )

    asked = options(__doc__, {"--lists": 20, "--noise": [0.0, 3.0, 10.0]})
    draw = np.random.default_rng(13)
    corpus = [Document(f"d{rank}", "", f"{rank} is its rank") for rank in range(COUNT)]
    queries = {f"q{number}": f"query {number}" for number in range(asked.lists)}
    run = {
        query: {f"d{rank}": float(-place) for place, rank in enumerate(draw.permutation(COUNT))}
        for query in queries
    }
    needed = passes_needed(COUNT, WIDTH, STEP)
    print("| noise | passes | tau | best ten | windows a list |\n|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as home:
        first = Path(home) / "first.trec"
        Run(run).save(first)
        data = Dataset.from_memory(corpus, queries, {q: {"d0": 1} for q in queries}, split="train")
        for noise in asked.noise:
            for passes in (1, 2, 4, needed):
                output = Path(home) / f"{noise}-{passes}.jsonl"
                over = Windows(WIDTH, STEP, passes)
                report = rank_dataset(Noisy(noise), data, str(first), output, over=over)
                tau, best = measured(output)
                each = report.windows / asked.lists
                print(f"| {noise:g} | {passes} | {tau:.3f} | {best:.3f} | {each:.1f} |", flush=True)


def measured(path: Path) -> tuple[float, float]:
    """Return the means of tau and of the share of the best ten among the first ten."""
    import json

    orders = [
        [int(name.removeprefix("d")) for name in json.loads(line)["doc_ids"]]
        for line in path.read_text("utf-8").splitlines()
    ]
    taus = [kendalltau(range(COUNT), own).statistic for own in orders]
    best = [sum(rank < 10 for rank in own[:10]) / 10 for own in orders]
    return float(np.mean(taus)), float(np.mean(best))


if __name__ == "__main__":
    main()
