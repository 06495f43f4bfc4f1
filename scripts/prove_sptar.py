#!/usr/bin/env python
"""SPTAR beside training on the same few pairs alone, and beside writing without a soft prompt.

    python scripts/prove_sptar.py --work runs/sptar
    SLUICE_DATA=FOLDER python scripts/prove_sptar.py --dataset feedbackqa --model smollm2

A small GPT-2 learns, from random weights, to write key phrases of pydocs' entries: the corpus and
no judgement. Then 50 judgements of the train split teach it a soft prompt; it writes a query for
each of other entries, with the prompt and without, and BM25 filters them. MiniLM is trained on the
pairs alone, and on the pairs with either set of queries, in as many steps, and searches test
queries. Nothing is chosen by these. ``--model`` names a language model in place of that one. A
killed run goes on from what lies in ``--work``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from itertools import islice
from pathlib import Path
from typing import Any

from harness import MODEL, STILL, descend, figures, fresh_gpt2, options, trainer, words_of

MEASURES = ["nDCG@10", "R@100"]
LENGTH = 24  # tokens of a query
BODY = 48  # tokens of a document
PLACES = 256  # of the language model


OPTIONS = {
    "--work": Path("runs/sptar"), "--documents": (2_000, "Of the corpus searched."),
    "--queries": (150, "Test queries."), "--written": (600, "Documents with written queries."),
    "--steps": (600, "Of the language model."), "--width": (128, "Of the language model."),
    "--epochs": (20, "Most, of the soft prompt."), "--consistency": 30, "--student-steps": 40,
    "--seed": 13, "--dataset": "pydocs", "--model": {"metavar": "MODEL"},
}  # fmt: skip


def collection(asked: argparse.Namespace) -> tuple[Any, Any]:
    """Return the train split, and the test split of fewer queries, over a part of the corpus."""
    from sluice.retrieval import Dataset, load_dataset

    train, test = (load_dataset(asked.dataset, each) for each in ("train", "test"))
    draw = random.Random(asked.seed)
    queries = sorted(test.qrels)
    draw.shuffle(queries)
    queries = queries[: asked.queries]
    needed = {doc for query in queries for doc in test.qrels[query]}
    documents = list(test.corpus)
    draw.shuffle(documents)
    needed |= set(islice((each.id for each in documents if each.id not in needed), asked.documents))
    corpus = sorted((each for each in documents if each.id in needed), key=lambda each: each.id)
    known = {each.id for each in corpus}

    def part(split: Any, names: Any, name: str) -> Any:
        qrels = {n: {d: g for d, g in split.qrels[n].items() if d in known} for n in names}
        qrels = {n: own for n, own in qrels.items() if own}
        asked_for = {n: split.queries[n] for n in qrels}
        return Dataset.from_memory(corpus, asked_for, qrels, name=asked.dataset, split=name)

    return part(train, train.qrels, "train"), part(test, queries, "test")


def language_model(asked: argparse.Namespace, corpus: Any) -> Path:
    """Write a GPT-2 that was trained from random weights to write key phrases of documents."""
    import torch

    from sluice.training.generation.corpus_pairs import PairMaker
    from sluice.training.generation.inverse_cloze import Passage
    from sluice.training.generation.query_prompt import QueryPrompt, Shot

    home = asked.work / f"gpt2-{asked.width}-{asked.steps}-{asked.seed}"
    if (home / "config.json").exists():
        return home
    passages = [Passage(each.id, each.title, each.text) for each in corpus]
    tokenizer = words_of((each.text for each in passages), asked.work / "words", PLACES)
    model = fresh_gpt2(tokenizer, asked.width, PLACES, seed=asked.seed, **STILL)
    end = tokenizer.sep_token_id
    prompt = QueryPrompt(tokenizer, "Document: {text}\nQuery:", BODY, special=False, end=end)
    maker, draw = PairMaker.from_passages(passages), random.Random(asked.seed)
    start, model = time.monotonic(), model.train()

    def loss_of(step: int) -> Any:
        rows = []
        while len(rows) < 16:  # with an example pair and without, as it is read later
            drawn = [maker.pair("phrases", draw.choice(passages), draw) for _ in range(2)]
            shot, pair = drawn
            if shot is None or pair is None:
                continue
            shots = [Shot(shot.document, shot.query)] if draw.random() < 0.5 else []
            shown = prompt.shown(shots, LENGTH)
            (row,) = prompt.rows([pair.document], shown)
            rows.append([*row, *prompt.target(pair.query, LENGTH)])
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        mask = (torch.arange(width) < torch.tensor([[len(row)] for row in rows])).long()
        loss = model(
            input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)
        ).loss
        if (step + 1) % 100 == 0:
            print(f"language model: step {step + 1}, loss {loss.item():.3f}, "
                  f"{time.monotonic() - start:.0f} s", flush=True)  # fmt: skip
        return loss

    descend(list(model.parameters()), loss_of, asked.steps, 2e-3, weight_decay=0.01)
    tokenizer.save_pretrained(home)
    model.save_pretrained(home)
    return home


def searched(asked: argparse.Namespace, examples: Any, test: Any, name: str) -> dict[str, float]:
    """Train MiniLM on the examples (as it is without) and search the test queries."""
    from sluice import DenseEncoder, Retriever
    from sluice.training import fit
    from sluice.training.losses.contrastive.softmax import InfoNCE

    encoder = DenseEncoder.from_pretrained(MODEL, document_length=64, query_length=32)
    if examples:
        settings = trainer(asked.student_steps, 16, 2e-5, bf16=False)
        fit(encoder, examples, InfoNCE(), output=asked.work / name, trainer=settings,
            seed=asked.seed)  # fmt: skip
    return figures(Retriever.build(encoder, test.corpus), test.queries, test.qrels, MEASURES)


def main() -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    asked = options(__doc__, OPTIONS)
    asked.work.mkdir(parents=True, exist_ok=True)
    from sluice import BM25Encoder, Retriever
    from sluice.retrieval.training_data.written.generated_examples import (
        GeneratedExamples,
        labelled_pairs,
    )

    train, test = collection(asked)
    print(f"{len(list(train.corpus)):,} documents, {len(train.queries)} train and "
          f"{len(test.queries)} test queries", flush=True)  # fmt: skip
    model = asked.model or language_model(asked, train.corpus)
    common: dict[str, Any] = {
        "documents": asked.written, "consistency": asked.consistency, "length": LENGTH,
        "document_length": BODY, "prompt": "Document: {text}\nQuery:",
    }  # fmt: skip
    soft = GeneratedExamples(str(model), shots=1, epochs=asked.epochs, **common)
    plain = GeneratedExamples(str(model), pairs=0, **common)
    pairs = [each.example() for each in labelled_pairs(train, 50, asked.seed)]
    known = {each.documents[0].id for each in pairs}
    rows: dict[str, Any] = {}
    sets = {
        "50 pairs": pairs,
        "and written, no prompt": [
            *pairs,
            *(each for each in plain.examples(train, asked.seed, asked.work)
              if each.documents[0].id not in known),
        ],
        "and written, soft prompt": soft.examples(train, asked.seed, asked.work),
    }  # fmt: skip
    for name, examples in sets.items():
        for each in examples[len(pairs) :][:3]:
            print(f"  {name}: {each.query.text!r} for {each.documents[0].text[:60]!r}", flush=True)
    bm25 = Retriever.build(BM25Encoder(), test.corpus)
    rows["BM25"] = figures(bm25, test.queries, test.qrels, MEASURES)
    for name, examples in {"MiniLM as it is": [], **sets}.items():
        rows[name] = {**searched(asked, examples, test, name), "examples": len(examples)}
        print(name, json.dumps(rows[name]), flush=True)
    (asked.work / "result.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    print("| | examples | nDCG@10 | R@100 |\n|---|---:|---:|---:|")
    for name, row in rows.items():
        cells = " | ".join(f"{row[measure]:.4f}" for measure in MEASURES)
        print(f"| {name} | {row.get('examples', '')} | {cells} |")


if __name__ == "__main__":
    main()
