#!/usr/bin/env python
"""A listwise reranker trained from random weights on full rankings of pydocs, and what lists cost.

    scripts/prove_listwise.py --work runs/listwise [--steps 1500] [--importance 0 1] [--seeds 13]
    SLUICE_DATA=FOLDER scripts/prove_listwise.py --dataset cranfield --queries queries.jsonl
        [--model smollm2] [--steps 100] [--batch 4] [--seeds 13]

A GPT-2 of random weights learns to order lists of five entries for one of them, its name being the
query, as MiniLM orders them. Printed are, of lists never seen and of lists learnt from, how often
MiniLM's first is first, and Kendall's tau. `--cost` prints instead the tokens that 100 documents
take, all in one prompt and in windows.

With ``--queries``, written by ``sluice teach generate``, a model learns the order in which
all-mpnet-base-v2 (``sluice model get mpnet``) puts BM25's first documents for these, and orders
those for the questions of the collection's test: by what it writes, by the chances of the first
letter, and by these after FIRST's loss over them (``--only`` names some of the three).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import STILL, generated_pairs, options, random_decoder, trainer
from numpy.typing import NDArray
from scipy.stats import kendalltau

WORDS, LENGTH, MEASURED = 8, 192, 200
WAYS = {"written": (False, 0.0), "first letter": (True, 0.0), "first letter, FIRST": (True, 10.0)}
PROMPT = "{query} : {documents} ranking :"


OPTIONS = {
    "--work": Path("runs/listwise"), "--steps": 1_500, "--batch": 32, "--width": 96,
    "--lists": 4_000, "--documents": (5, "Of a list."), "--importance": [0.0, 1.0], "--seeds": [13],
    "--cost": False, "--dataset": "cranfield", "--queries": {"type": Path}, "--model": "smollm2",
    "--only": {"nargs": "+", "choices": list(WAYS), "default": list(WAYS)},
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


def of_a_collection(asked: argparse.Namespace) -> None:
    """Print nDCG@10 of the first documents in the orders of a model, before and after it learns."""
    from sluice.encoders import BM25Encoder, DenseEncoder
    from sluice.encoders.generative.listwise import ListwiseRanker
    from sluice.retrieval import Rerank, Retriever, evaluate, load_dataset
    from sluice.retrieval.evaluation.significance import paired_t_test
    from sluice.training import Example, Text, fit
    from sluice.training.losses.sequences import Rankings

    test = load_dataset(asked.dataset, "test")
    texts = {each.id: each.full_text for each in test.corpus}
    first = Retriever.build(BM25Encoder(), test.corpus)
    teacher = DenseEncoder.from_pretrained("mpnet", dtype="auto")
    vectors = dict(zip(texts, teacher.encode_documents(list(texts.values())), strict=True))

    def taught(queries: dict[str, str], run: Any) -> dict[str, list[str]]:
        asking = dict(zip(queries, teacher.encode_queries(list(queries.values())), strict=True))
        orders = {}
        for query in queries:
            ids = [name for name, _ in list(run[query])[: asked.documents]]
            worth = np.array([vectors[name] @ asking[query] for name in ids])
            orders[query] = [ids[place] for place in np.argsort(-worth, kind="stable")]
        return orders

    pairs = generated_pairs(asked.queries, texts)
    chosen = np.random.default_rng(13).permutation(len(pairs))[: asked.steps * asked.batch]
    written = {pairs[at].query.id: pairs[at].query.text for at in chosen}
    examples = [
        Example(
            Text(query, written[query]), tuple(Text(name, texts[name]) for name in names),
            tuple(1 / np.log2(1 + rank) for rank in range(1, len(names) + 1)),
        )
        for query, names in taught(written, first.run(written, k=asked.documents)).items()
        if len(names) == asked.documents
    ]  # fmt: skip
    queries = {name: test.queries[name] for name in test.qrels}
    run = first.run(queries, k=100)
    values: dict[str, list[Any]] = {}

    def note(name: str, found: Any) -> None:
        scores = evaluate(found, test.qrels, ["nDCG@10"]).per_query["nDCG@10"]
        values.setdefault(name, []).append(np.array(list(scores.values())))

    class Taught:
        def score_lists(self, queries: Any, heads: Any, documents: Any) -> Any:
            orders = taught(dict(queries), run)
            return {q: np.array([-orders[q].index(d) for d in heads[q].doc_ids]) for q in heads}

    note("BM25", run)
    note("all-mpnet-base-v2", Rerank(Taught(), asked.documents).run(queries, run))
    for seed in asked.seeds:
        for way in asked.only:
            first_token, weight = WAYS[way]
            ranker = ListwiseRanker.from_pretrained(
                asked.model, document_length=48, max_length=1_024, first_token=first_token
            )
            stage = Rerank(ranker, asked.documents, documents=first.store)
            if seed == asked.seeds[0] and not weight:
                note(f"untrained, {way}", stage.run(queries, run))
            begun = time.process_time()
            output = asked.work / f"{way.replace(', ', '-')}-{seed}"
            fit(ranker, examples, Rankings(first=weight), output=output, seed=seed,
                trainer=trainer(asked.steps, asked.batch, 5e-5))  # fmt: skip
            print(way, seed, round(time.process_time() - begun), "s", flush=True)
            note(f"trained, {way}", stage.run(queries, run))
    base = values["BM25"][0]
    for name, by_seed in values.items():
        own = np.mean(by_seed, axis=0)
        seeds = ", ".join(f"{each.mean():.4f}" for each in by_seed)
        print(f"| {name} | {own.mean():.4f} ({seeds}) | p {paired_t_test(own, base):.2g} |")


def main() -> None:
    from sluice.encoders.generative.listwise import ListwiseRanker
    from sluice.retrieval import load_dataset
    from sluice.training import fit
    from sluice.training.losses.sequences import Rankings

    asked = options(__doc__, OPTIONS)
    if asked.cost:
        return costs()
    if asked.queries:
        return of_a_collection(asked)
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
