#!/usr/bin/env python
"""SEAL's proofs: what random decoders write exists, and a model from random weights finds.

    python scripts/prove_seal.py --ngrams 100000
    python scripts/prove_seal.py --documents 100 --steps 600

The second trains a small T5 from random weights on key phrases of pydocs entries, eight a document,
and searches by two others of each; BM25 is printed beside it.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

ASKED = 10  # queries of a document, two of which are held out


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ngrams", type=int, default=0, help="Check so many written n-grams.")
    parser.add_argument("--documents", type=int, default=0, help="Train on so many documents.")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=13)
    return parser.parse_args()


def fuzz(wanted: int, seed: int) -> None:
    from random_decoder import emitted

    from sluice.encoders.foundation.token_vectors import TokenSequences
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


def trained(count: int, steps: int, seed: int) -> None:
    import torch
    import transformers

    from sluice.encoders import BM25Encoder, SealEncoder
    from sluice.encoders.transformer.text_encoder import fresh_model
    from sluice.retrieval import Retriever, load_dataset
    from sluice.training import fit
    from sluice.training.example import Example, Text
    from sluice.training.generation.corpus_pairs import PairMaker
    from sluice.training.generation.inverse_cloze import Passage
    from sluice.training.losses.written import Spans

    documents = list(islice(load_dataset("pydocs", None).corpus, count))
    passages = [Passage(each.id, each.title, each.text) for each in documents]
    maker = PairMaker.of(passages)
    examples, held_out = list[Example](), dict[str, tuple[str, str]]()
    for passage in passages:
        for number in range(ASKED):
            pair = maker.pair("phrases", passage, random.Random(f"{seed}:{passage.id}:{number}"))
            if pair is None:
                continue
            name = f"{passage.id}-{number}"
            if number < ASKED - 2:
                document = Text(passage.id, f"{passage.title} {passage.text}")
                examples.append(Example(Text(name, pair.query), (document,)))
            else:
                held_out[name] = pair.query, passage.id
    asked = {name: query for name, (query, _) in held_out.items()}
    qrels = {name: {document: 1} for name, (_, document) in held_out.items()}
    with tempfile.TemporaryDirectory() as folder:
        home = fresh_model((e.documents[0].text for e in examples), Path(folder) / "t5",
                           layers=1, hidden=64, vocabulary=4_096)  # fmt: skip
        tokenizer = transformers.AutoTokenizer.from_pretrained(home)
        torch.manual_seed(seed)
        config = transformers.T5Config(
            vocab_size=len(tokenizer), d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4,
            pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.sep_token_id,
            decoder_start_token_id=tokenizer.pad_token_id, dropout_rate=0.0,
        )  # fmt: skip
        model: Any = transformers.T5ForConditionalGeneration(config)
        encoder = SealEncoder(model, tokenizer)
        systems = {"BM25": Retriever.build(BM25Encoder(), documents)}
        systems["SEAL, untrained"] = Retriever.build(encoder, documents)
        rows = {name: figures(system, asked, qrels) for name, system in systems.items()}
        start = time.perf_counter()
        trainer = {"max_steps": steps, "per_device_train_batch_size": 16, "learning_rate": 1e-3}
        fit(encoder, examples, Spans(spans=4), output=Path(folder) / "work", trainer=trainer,
            seed=seed)  # fmt: skip
        seconds = time.perf_counter() - start
        begun = time.perf_counter()
        rows["SEAL"] = figures(Retriever.build(encoder, documents), asked, qrels)
        each = (time.perf_counter() - begun) / len(asked)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{count:,} documents, {len(examples):,} training queries, {len(asked):,} held out; "
          f"{parameters / 1e6:.1f}M parameters, {steps} steps in {seconds:.0f} s, "
          f"{each * 1000:.0f} ms a query")  # fmt: skip
    for name, line in rows.items():
        print(
            f"  {name:16}", "  ".join(f"{measure} {value:.3f}" for measure, value in line.items())
        )


def figures(retriever: Any, asked: dict[str, str], qrels: Any) -> dict[str, float]:
    from sluice.retrieval import evaluate

    return dict(evaluate(retriever.run(asked, k=10), qrels, ["R@1", "R@10", "RR@10"]).mean)


def main() -> None:
    asked = arguments()
    if asked.ngrams:
        fuzz(asked.ngrams, asked.seed)
    if asked.documents:
        trained(asked.documents, asked.steps, asked.seed)


if __name__ == "__main__":
    main()
