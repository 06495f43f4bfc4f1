#!/usr/bin/env python
"""SEAL's proofs: what random decoders write exists, and a model from random weights finds.

    python scripts/prove_seal.py --ngrams 100000
    python scripts/prove_seal.py --documents 100 --steps 600
    SLUICE_DATA=FOLDER python scripts/prove_seal.py --dataset cranfield --queries queries.jsonl \
        --model smollm2 --steps 200 --rate 1e-4

The second trains a small T5 from random weights on key phrases of pydocs entries, eight a document,
and searches by two others of each; BM25 is printed beside it. The third trains a model on queries
that ``sluice teach generate`` wrote, and searches by the questions of a collection's test.
"""

from __future__ import annotations

import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from harness import figures, fresh_t5, generated_pairs, options, phrases, trainer, words_of

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

MEASURES = ["R@1", "R@10", "RR@10", "nDCG@10"]
ASKED = 10  # queries of a document, two of which are held out


OPTIONS = {
    "--ngrams": (0, "Check so many written n-grams."),
    "--documents": (0, "Train on so many documents."), "--steps": 600, "--seed": 13,
    "--dataset": "pydocs", "--queries": ({"type": Path}, "Written queries, in place of phrases."),
    "--model": ({"type": str}, "A model; none: a T5 of random weights."), "--rate": 1e-3,
}  # fmt: skip


def fuzz(wanted: int, seed: int) -> None:
    from random_decoder import emitted

    from sluice.encoders.foundation.tokens import TokenSequences
    from sluice.indexing import FmIndex

    rng = np.random.default_rng(seed)
    texts = [rng.zipf(1.3, rng.integers(0, 60)) % 500 for _ in range(3_000)]
    index = FmIndex(segment_tokens=20_000)
    index.add(TokenSequences.of(texts))
    index.delete(np.arange(0, 3_000, 7))
    live = [text.tolist() for row, text in enumerate(texts) if row % 7]
    existing = {
        tuple(text[at : at + size])
        for text in live for size in range(1, 11) for at in range(len(text) - size + 1)
    }  # fmt: skip
    rounds, written = 16, set[tuple[int, ...]]()
    while len(written) < wanted:
        written = emitted(index, texts=16, rounds=rounds, beams=15, length=10, vocabulary=520)
        rounds *= 2
    strangers = written - existing
    print(f"{len(written):,} different n-grams written, {len(strangers)} that do not exist")
    if strangers:
        raise SystemExit(1)


def phrases_of(documents: Any, seed: int) -> tuple[list[Any], dict[str, str], dict[str, Any]]:
    """Return examples, held-out queries and their judgements, of key phrases."""
    from sluice.training.generation.inverse_cloze import Passage
    from sluice.training.protocol import Example, Text

    passages = [Passage(each.id, each.title, each.text) for each in documents]
    full = {each.id: f"{each.title} {each.text}" for each in passages}
    examples, asked, qrels = [], {}, {}
    for (passage, number), query in phrases(passages, ASKED, seed).items():
        name = f"{passage}-{number}"
        if number < ASKED - 2:
            examples.append(Example(Text(name, query), (Text(passage, full[passage]),)))
        else:
            asked[name], qrels[name] = query, {passage: 1}
    return examples, asked, qrels


def trained(chosen: Any) -> None:
    from sluice.encoders import BM25Encoder, SealEncoder
    from sluice.retrieval import Retriever, load_dataset
    from sluice.training import fit
    from sluice.training.losses.sequences import Spans

    corpus = load_dataset(chosen.dataset, None).corpus
    documents = list(islice(corpus, chosen.documents or None))
    if chosen.queries:
        test = load_dataset(chosen.dataset, "test")
        full = {each.id: each.full_text for each in documents}
        examples, qrels = generated_pairs(chosen.queries, full), test.qrels
        asked = {name: test.queries[name] for name in qrels}
    else:
        examples, asked, qrels = phrases_of(documents, chosen.seed)
    with tempfile.TemporaryDirectory() as folder:
        if chosen.model:
            encoder = SealEncoder.from_pretrained(chosen.model)
        else:
            texts = (each.documents[0].text for each in examples)
            tokenizer = words_of(texts, Path(folder) / "t5")
            encoder = SealEncoder(fresh_t5(
                tokenizer, chosen.seed, d_model=128, d_kv=32, d_ff=256, num_layers=2,
                dropout_rate=0.0,
            ), tokenizer)  # fmt: skip
        systems = {"BM25": Retriever.build(BM25Encoder(), documents)}
        systems["SEAL, untrained"] = Retriever.build(encoder, documents)
        rows = {
            name: figures(system, asked, qrels, MEASURES, 10) for name, system in systems.items()
        }
        start = time.perf_counter()
        settings = trainer(chosen.steps, 16, chosen.rate, bf16=bool(chosen.model))
        fit(encoder, examples, Spans(spans=4), output=Path(folder) / "work", trainer=settings,
            seed=chosen.seed)  # fmt: skip
        seconds = time.perf_counter() - start
        begun = time.perf_counter()
        rows["SEAL"] = figures(Retriever.build(encoder, documents), asked, qrels, MEASURES, 10)
        each = (time.perf_counter() - begun) / len(asked)
    parameters = sum(parameter.numel() for parameter in encoder.model.parameters())
    print(f"{len(documents):,} documents, {len(examples):,} training queries, {len(asked):,} "
          f"searched by; {parameters / 1e6:.1f}M parameters, {chosen.steps} steps in "
          f"{seconds:.0f} s, {each * 1000:.0f} ms a query")  # fmt: skip
    for name, line in rows.items():
        print(
            f"  {name:16}", "  ".join(f"{measure} {value:.3f}" for measure, value in line.items())
        )


def main() -> None:
    asked = options(__doc__, OPTIONS)
    if asked.ngrams:
        fuzz(asked.ngrams, asked.seed)
    if asked.documents or asked.queries:
        trained(asked)


if __name__ == "__main__":
    main()
