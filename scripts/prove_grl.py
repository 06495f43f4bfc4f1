#!/usr/bin/env python
"""GRL beside its contrast alone: a small decoder from random weights, on pydocs.

    python scripts/prove_grl.py --work runs/grl

Trains the same GPT-2 on the train split's judgements with BM25's negatives by InfoNCE, and by GRL
with preferences and supervised. Printed are nDCG@10 and R@100 of test queries, and of held-out
pairs how often the model would rather write a query's document than a BM25 negative of it (by the
mean log-probability of a token), and the mean cross-entropy of the document's tokens.
"""

from __future__ import annotations

import json
import random
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from harness import options, random_decoder, trainer

LENGTHS = {"query_length": 24, "document_length": 48}


OPTIONS = {
    "--work": Path("runs/grl"), "--steps": 200, "--batch": 16, "--width": 64,
    "--queries": (200, "Test queries."), "--documents": (2_000, "Searched, beside theirs."),
    "--seeds": [13],
}  # fmt: skip


def with_negatives(split: Any, bm25: Any) -> list[Any]:
    """Return the judged pairs, each with BM25's first hit that is not relevant."""
    from sluice.training import Example, Text

    texts = {each.id: each.full_text for each in split.corpus}
    run = bm25.run({query: split.queries[query] for query in split.qrels}, k=5)
    made = []
    for query, grades in split.qrels.items():
        relevant = [doc for doc, grade in grades.items() if grade > 0]
        others = [doc for doc in run[query].doc_ids if doc not in grades] if query in run else []
        if relevant and others:
            documents = tuple(Text(doc, texts[doc]) for doc in (relevant[0], others[0]))
            asked_for = Text(query, split.queries[query])
            made.append(Example(asked_for, documents, relevant=frozenset(relevant)))
    return made


def written(encoder: Any, examples: list[Any]) -> dict[str, float]:
    """Return how often the positive is rather written, and the cross-entropy of its tokens."""
    import torch

    from sluice.encoders.generative.constrained_decoding import OwnWriting

    own, means = OwnWriting(encoder), []
    encoder.module.eval()
    for start in range(0, len(examples), 32):
        part = examples[start : start + 32]
        documents = [each.documents[place].text for each in part for place in (0, 1)]
        features = {"query": encoder.tokenize([each.query.text for each in part], "query"),
                    "document": encoder.tokenize(documents, "document")}  # fmt: skip
        rows = torch.arange(len(documents))
        with torch.no_grad():
            sums, lengths = own.log_probabilities(features, rows // 2, rows)
        means.append((sums / lengths).numpy().reshape(-1, 2))
    both = np.concatenate(means)
    preferred = float((both[:, 0] > both[:, 1]).mean())
    return {"preferred": preferred, "entropy": -float(both[:, 0].mean())}


def main() -> None:
    from sluice import BM25Encoder, DenseEncoder, Retriever, evaluate, load_dataset
    from sluice.training import fit
    from sluice.training.losses.contrastive.softmax import InfoNCE
    from sluice.training.losses.own.grl import GRL

    asked = options(__doc__, OPTIONS)
    asked.work.mkdir(parents=True, exist_ok=True)
    train, test = load_dataset("pydocs", "train"), load_dataset("pydocs", "test")
    model = random_decoder(asked.work, (e.full_text for e in train.corpus), asked.width, 128)
    bm25 = Retriever.build(BM25Encoder(), train.corpus)
    examples, held_out = with_negatives(train, bm25), with_negatives(test, bm25)
    names = sorted(test.qrels)
    random.Random(13).shuffle(names)
    names = names[: asked.queries]
    needed = {doc for name in names for doc in test.qrels[name]}
    documents = list(test.corpus)
    random.Random(13).shuffle(documents)
    rest = islice((each for each in documents if each.id not in needed), asked.documents)
    corpus = [*(each for each in documents if each.id in needed), *rest]
    queries = {name: test.queries[name] for name in names}
    qrels = {name: test.qrels[name] for name in names}
    losses = {
        "untrained": None, "info_nce": InfoNCE(temperature=0.05),
        "grl, supervised": GRL(writing="supervised"), "grl, preference": GRL(),
    }  # fmt: skip
    rows: dict[str, Any] = {}
    settings = trainer(asked.steps, asked.batch, 1e-3, bf16=False)
    for seed in asked.seeds:
        for name, loss in losses.items():
            encoder = DenseEncoder.from_pretrained(model, attention="bidirectional", **LENGTHS)
            start = time.perf_counter()
            if loss is not None:
                fit(encoder, examples, loss, output=asked.work / f"{name}-{seed}", trainer=settings,
                    seed=seed)  # fmt: skip
            seconds = time.perf_counter() - start
            run = Retriever.build(encoder, corpus).run(queries, k=100)
            row = dict(evaluate(run, qrels, ["nDCG@10", "R@100"]).mean)
            row |= {**written(encoder, held_out), "seconds": seconds}
            rows[f"{name}, {seed}"] = row
            print(f"{name}, {seed}", json.dumps({k: round(v, 4) for k, v in row.items()}),
                  flush=True)  # fmt: skip
    print(f"{len(examples):,} pairs, {len(corpus):,} documents, {len(queries)} test queries")
    (asked.work / "result.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
