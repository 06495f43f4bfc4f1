#!/usr/bin/env python
"""Rules before BM25: nDCG@10, R@100 and cost on queries as they are and with spelling mistakes.

    python scripts/prove_spelling.py FOLDER_OF_A_DATASET --seeds 13 14 15 --rate 0.2

Each word of four letters or more gets, with probability ``--rate``, one mistake at a random place:
two neighbours swapped, a letter left out, put in, or replaced. p-values are of Fisher's
randomisation test of nDCG@10 against BM25 on the same queries. Milliseconds are of processor time
a query, one thread. Nothing was chosen by these figures.
"""

from __future__ import annotations

import random
import re
import string
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from harness import options

WORD = re.compile(r"[A-Za-z]{4,}")


def misspelt(text: str, rate: float, chance: random.Random) -> str:
    """Return a text in which some words have one mistake."""

    def changed(match: re.Match[str]) -> str:
        word = match[0]
        if chance.random() >= rate:
            return word
        place = chance.randrange(len(word) - 1)
        letter = chance.choice(string.ascii_lowercase)
        kinds = {
            "swapped": word[:place] + word[place + 1] + word[place] + word[place + 2 :],
            "left out": word[:place] + word[place + 1 :],
            "put in": word[:place] + letter + word[place:],
            "replaced": word[:place] + letter + word[place + 1 :],
        }
        return chance.choice(list(kinds.values()))

    return WORD.sub(changed, text)


def main() -> None:
    from sluice import BM25Encoder, Retriever, evaluate, load_dataset
    from sluice.retrieval.evaluation.significance import fisher_randomisation
    from sluice.retrieval.stages.transforms.rules import key_phrases, spelling

    asked = options(__doc__, {
        "dataset": "A dataset: folder, ir_datasets id, name.", "--split": "test",
        "--seeds": [13, 14, 15], "--rate": 0.2,
    })  # fmt: skip
    dataset = load_dataset(asked.dataset, asked.split)
    queries = dict(dataset.queries)

    def measured(run: Any) -> tuple[np.ndarray, float]:
        found = evaluate(run, dataset.qrels, ["nDCG@10", "R@100"])
        by_query = found.per_query["nDCG@10"]
        return np.array([by_query[query] for query in sorted(by_query)]), found.mean["R@100"]

    with tempfile.TemporaryDirectory() as folder:
        bm25 = Retriever.build(BM25Encoder(), dataset.corpus, path=Path(folder) / "b", name="bm25")
        systems: dict[str, Any] = {
            "bm25": bm25, "spelling": spelling(bm25), "key_phrases": key_phrases(bm25),
        }  # fmt: skip
        start = time.process_time()
        systems["spelling"].search("a first query", 1)
        print(f"words of {len(bm25.documents):,} documents counted in "
              f"{time.process_time() - start:.2f} s; {len(queries):,} queries")  # fmt: skip
        systems["key_phrases"].search("a first query", 1)

        def row(told: str, texts: Mapping[str, str], names: list[str]) -> None:
            base = None
            for name in names:
                begun = time.process_time()
                run = systems[name].run(texts, k=100)
                ms = 1000 * (time.process_time() - begun) / len(texts)
                values, recall = measured(run)
                p = ""
                if base is not None:
                    p = f"p {fisher_randomisation(values, base):.4f}"
                base = values if base is None else base
                print(f"{told:9} {name:12} nDCG@10 {values.mean():.4f}  R@100 {recall:.4f}  "
                      f"{ms:6.2f} ms  {p}", flush=True)  # fmt: skip

        row("as is", queries, ["bm25", "spelling", "key_phrases"])
        for seed in asked.seeds:
            chance = random.Random(seed)
            wrong = {query: misspelt(text, asked.rate, chance) for query, text in queries.items()}
            changed = sum(wrong[query] != queries[query] for query in queries)
            row(f"seed {seed}", wrong, ["bm25", "spelling"])
            fixed = systems["spelling"].transform.variants(list(wrong.values()))
            texts = [
                own[0].text if own else text
                for own, text in zip(fixed, wrong.values(), strict=True)
            ]
            whole = sum(
                text == queries[query] != wrong[query]
                for query, text in zip(queries, texts, strict=True)
            )
            print(f"          {changed} queries with mistakes, {whole} of them as they were again")


if __name__ == "__main__":
    main()
