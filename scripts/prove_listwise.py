#!/usr/bin/env python
"""A listwise reranker trained from random weights on full rankings of pydocs, and what lists cost.

    scripts/prove_listwise.py --work runs/listwise [--steps 1500] [--importance 0 1] [--seeds 13]

A GPT-2 of random weights learns to order lists of five entries for one of them, its name being the
query, as MiniLM orders them. Printed are, of lists never seen and of lists learnt from, how often
MiniLM's first is first, and Kendall's tau. `--cost` prints instead the tokens that 100 documents
take, all in one prompt and in windows.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import STILL, options, random_decoder, trainer
from numpy.typing import NDArray
from scipy.stats import kendalltau

WORDS, LENGTH, MEASURED = 8, 192, 200
PROMPT = "{query} : {documents} ranking :"


OPTIONS = {
    "--work": Path("runs/listwise"), "--steps": 1_500, "--batch": 32, "--width": 96,
    "--lists": 4_000, "--documents": (5, "Of a list."), "--importance": [0.0, 1.0], "--seeds": [13],
    "--cost": False,
}  # fmt: skip


def lists(asked: argparse.Namespace, entries: Sequence[Any]) -> list[Any]:
    """Return lists for the names of entries, in MiniLM's order; the last are never trained on."""
    from sluice.encoders import DenseEncoder
    from sluice.training import Example, Text

    texts = [" ".join(each.text.split()[:WORDS]) for each in entries]
    names = [each.id.replace(".", " ").replace("_", " ") for each in entries]
    teacher = DenseEncoder.from_pretrained("all-MiniLM-L6-v2")
    documents, queries = teacher.encode_documents(texts), teacher.encode_queries(names)
    draw, made = np.random.default_rng(13), []
    for number in range(asked.lists + MEASURED):
        held_out = number >= asked.lists
        own = int(draw.integers(len(entries) * 9 // 10, len(entries)) if held_out
                  else draw.integers(len(entries) * 9 // 10))  # fmt: skip
        others = draw.choice(len(entries), asked.documents - 1, replace=False)
        chosen = np.array([own, *others[others != own]])
        order = chosen[np.argsort(-(documents[chosen] @ queries[own]), kind="stable")]
        made.append(Example(
            Text(f"q{number}", names[own]),
            tuple(Text(entries[place].id, texts[place]) for place in order),
            tuple(1 / np.log2(1 + rank) for rank in range(1, len(order) + 1)),
        ))  # fmt: skip
    return made


def measured(ranker: Any, examples: Sequence[Any]) -> dict[str, float]:
    """Return how often the first is first, and Kendall's tau, of lists in an order drawn."""
    draw = np.random.default_rng(5)
    shown = {each.query.id: draw.permutation(len(each.documents)) for each in examples}
    texts = {each.query.id: [each.documents[place].text for place in shown[each.query.id]]
             for each in examples}  # fmt: skip
    ordered = ranker.ordered({each.query.id: each.query.text for each in examples}, texts)
    ranks = [shown[query][order] for query, order in ordered.orders.items()]
    taus = [kendalltau(np.arange(len(own)), own).statistic for own in ranks]
    return {"first": float(np.mean([own[0] == 0 for own in ranks])), "tau": float(np.mean(taus)),
            "silent": ordered.silent / ordered.asked}  # fmt: skip


class Counting:
    """Leaves every list as it is, and counts the tokens read and written."""

    fingerprint = "counting"

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.read = self.written = self.prompts = 0

    def answers(self, prompts: Sequence[Any], choices: Sequence[str]) -> NDArray[np.float64]:
        """Return nothing of use: lists are written."""
        return np.zeros((len(prompts), len(choices)))

    def completions(self, prompts: Sequence[Any], max_new_tokens: int) -> list[str]:
        """Return the order that texts are shown in."""
        from sluice.encoders.generative.list_order import written_order

        said = [written_order(range(len(prompt.slots) - 2)) for prompt in prompts]
        self.prompts += len(prompts)
        for prompt, text in zip(prompts, said, strict=True):
            self.read += len(self.tokenizer(prompt.text, verbose=False).input_ids)
            self.written += len(self.tokenizer(text, verbose=False).input_ids)
        return said


def costs() -> None:
    """Print the prompts and tokens of ordering 100 documents of SciFact, cut at 100 words."""
    from sluice import DenseEncoder, load_dataset
    from sluice.encoders.generative.list_order import ListOrder

    data = load_dataset("scifact", "test")
    texts = [" ".join(d.full_text.split()[:100]) for _, d in zip(range(100), data.corpus)]  # noqa: B905
    query = next(iter(data.queries.values()))
    tokenizer = DenseEncoder.from_pretrained("all-MiniLM-L6-v2").tokenizer
    print("| | prompts | tokens read | written |\n|---|---:|---:|---:|")
    ways = {"all at once": (None, None, 1), "windows of 20, one pass": (20, 10, 1),
            "windows of 20, all passes": (20, 10, 9)}  # fmt: skip
    for name, (window, step, passes) in ways.items():
        model = Counting(tokenizer)
        ListOrder(model, window=window, step=step, passes=passes).ordered(
            {"q": query}, {"q": texts}
        )
        print(f"| {name} | {model.prompts} | {model.read:,} | {model.written:,} |")


def main() -> None:
    from sluice.encoders.generative.listwise import ListwiseRanker
    from sluice.retrieval import load_dataset
    from sluice.training import fit
    from sluice.training.losses.sequences import Rankings

    asked = options(__doc__, OPTIONS)
    if asked.cost:
        return costs()
    asked.work.mkdir(parents=True, exist_ok=True)
    entries = [
        each for each in load_dataset("pydocs", "train").corpus if len(each.text.split()) > 3
    ]
    texts = [each.full_text for each in entries] + ["[ ] > : ranking 1 2 3 4 5"] * 50
    start = random_decoder(
        asked.work, texts, asked.width, LENGTH, vocabulary=2_048, layers=3, **STILL
    )
    examples = lists(asked, entries)
    rows: dict[str, Any] = {}
    settings = trainer(asked.steps, asked.batch, 1e-3, bf16=False)
    for seed in asked.seeds:
        for importance in [None, *asked.importance]:
            ranker = ListwiseRanker.from_pretrained(start, prompt=PROMPT)
            begun = time.process_time()
            if importance is not None:
                output = asked.work / f"{importance:g}-{seed}-{asked.steps}"
                fit(ranker, examples[: asked.lists], Rankings(importance), output=output,
                    trainer=settings, seed=seed)  # fmt: skip
            seconds = time.process_time() - begun
            name = "untrained" if importance is None else f"importance {importance:g}"
            own = examples[: min(MEASURED, asked.lists)]
            row = {"unseen": measured(ranker, examples[asked.lists :]),
                   "learnt": measured(ranker, own), "seconds": seconds}  # fmt: skip
            rows[f"{name}, {seed}"] = row
            print(name, seed, json.dumps(row), flush=True)
    (asked.work / "result.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
