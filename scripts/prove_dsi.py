#!/usr/bin/env python
"""DSI's proofs: what random decoders write exists; the curve over synthetic queries and size.

    python scripts/prove_dsi.py --fuzz 100000
    python scripts/prove_dsi.py --documents 100 --ids atomic --steps 500 --work runs/dsi
    python scripts/prove_dsi.py --documents 100 --ids atomic --steps 500 --work runs/dsi --without
    SLUICE_DATA=FOLDER python scripts/prove_dsi.py --documents -1 --dataset cranfield \
        --queries queries.jsonl --steps 4000

The second trains a small T5 from random weights to write the identifiers of pydocs entries: from
the first words of each, and from eight queries of its key phrases; two others of each are searched
by. The third leaves the queries out; the last takes those that ``sluice teach generate`` wrote, and
searches by the questions of a collection's test. ``--brain`` learns CorpusBrain's three tasks in
place of the first words, with ``--ids title`` as there. BM25 is printed beside it, and MiniLM where
it is. A run that was killed continues in ``--work``, and one that is done is only printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from harness import MODEL, figures, fresh_t5, generated_pairs, options, phrases, words_of

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

ASKED = 10  # queries of a document, two of which are held out
SEARCHED = 500  # held-out queries, at most
MEASURES = ["R@1", "R@10", "RR@10", "nDCG@10"]
BRAIN = {"words": 0, "sentences": 11, "paragraphs": 4, "mentions": 3}  # Chen et al. 2022


OPTIONS = {
    "--fuzz": (0, "Check so many written identifiers."),
    "--documents": (0, "Train on so many; -1: on all."),
    "--ids": {"choices": ("atomic", "semantic", "string", "title"), "default": "atomic"},
    "--without": (False, "Leave synthetic queries out."), "--steps": 500, "--batch": 32,
    "--width": (64, "Of the model's states."), "--rate": (4e-3, "The learning rate."),
    "--dataset": "pydocs", "--queries": ({"type": Path}, "Written queries, in place of phrases."),
    "--words": (16, "First words of a document."), "--brain": False, "--seed": 13,
    "--work": Path("runs/dsi"),
}  # fmt: skip


def fuzz(wanted: int, seed: int) -> None:
    from random_decoder import written

    from sluice.encoders.foundation.tokens import TokenSequences
    from sluice.indexing import TrieIndex

    rng = np.random.default_rng(seed)
    drawn = {tuple((rng.zipf(1.3, rng.integers(1, 12)) % 30 + 1).tolist()) for _ in range(60_000)}
    codes = [[*code, 0] for code in sorted(drawn)]  # 0 is the end
    index = TrieIndex()
    index.add(TokenSequences.of(codes))
    index.delete(np.arange(0, len(codes), 7))
    existing = {tuple(code) for row, code in enumerate(codes) if row % 7}
    count = different = 0
    found = set[tuple[int, ...]]()
    while count < wanted:
        ids = written(index, texts=16, beams=15, vocabulary=40, seed=count)
        count += len(ids)
        found.update(ids)
        different += len(set(ids) - existing)
    print(f"{count:,} identifiers written, {len(found):,} different, {different} do not exist")
    if different:
        raise SystemExit(1)


def trained(asked: argparse.Namespace) -> dict[str, Any]:
    import torch

    from sluice.encoders import DsiEncoder
    from sluice.encoders.foundation.disk.files import write_json
    from sluice.retrieval import Retriever, load_dataset
    from sluice.training import fit
    from sluice.training.losses.sequences import Identifiers

    most = None if asked.documents < 0 else asked.documents
    documents = list(islice(load_dataset(asked.dataset, None).corpus, most))
    work = asked.work / (
        f"{len(documents)}-{asked.ids}-{'without' if asked.without else 'with'}-{asked.steps}-"
        f"{asked.width}-{asked.seed}"
        + (f"-{asked.queries.stem}" if asked.queries else "")
        + ("-brain" if asked.brain else "")
    )
    if (work / "result.json").exists():
        done: dict[str, Any] = json.loads((work / "result.json").read_text("utf-8"))
        return done
    work.mkdir(parents=True, exist_ok=True)
    examples, queries, qrels = texts_of(documents, asked)
    model, tokenizer = small_t5(work, documents, asked.width)
    encoder = DsiEncoder(model, tokenizer, ids=asked.ids, length=64)  # tokens of an identifier
    titles = Counter(each.title.strip().lower() for each in documents)
    named = [
        {"id": each.id, "text": each.text, "title": each.title
         if titles[each.title.strip().lower()] == 1 else f"{each.title} {each.id}"}
        for each in documents
    ]  # fmt: skip
    rows, vectors = compared(documents, queries, qrels, asked)
    encoder.assign_ids(named, vectors, seed=asked.seed)
    start = time.perf_counter()
    trainer = {
        "max_steps": asked.steps, "per_device_train_batch_size": asked.batch,
        "learning_rate": asked.rate, "lr_scheduler_type": "linear", "save_steps": 200,
    }  # fmt: skip
    torch.manual_seed(asked.seed)
    report = fit(encoder, examples, Identifiers(), output=work / "fit", trainer=trainer,
                 seed=asked.seed)  # fmt: skip
    seconds = time.perf_counter() - start
    built = Retriever.build(encoder, documents)
    begun = time.perf_counter()
    rows["DSI"] = figures(built, queries, qrels, MEASURES, 10)
    result = {
        "documents": len(documents), "ids": asked.ids, "queries": not asked.without,
        "examples": len(examples), "steps": report.steps, "seconds": round(seconds),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "ms": round(1000 * (time.perf_counter() - begun) / len(queries)), "rows": rows,
    }  # fmt: skip
    write_json(work / "result.json", result)
    return result


def compared(
    documents: Any, queries: dict[str, str], qrels: Any, asked: argparse.Namespace
) -> tuple[dict[str, dict[str, float]], Any]:
    """Return the figures of BM25 and MiniLM, and MiniLM's vectors for semantic identifiers.

    They are the same for all models and a resumed run: the figures are kept in ``--work``.
    """
    from sluice import BM25Encoder, Retriever
    from sluice.encoders.foundation.disk.files import write_json

    file = asked.work / f"baselines-{len(documents)}-{asked.seed}.json"
    if file.exists() and asked.ids != "semantic":
        return json.loads(file.read_text("utf-8")), None
    rows = {
        "BM25": figures(Retriever.build(BM25Encoder(), documents), queries, qrels, MEASURES, 10)
    }
    dense, vectors = minilm(), None
    if dense is not None:
        vectors = dense.encode_documents([each.full_text for each in documents])
        searched = Retriever.build(dense, documents, vectors=[vectors])
        rows["MiniLM"] = figures(searched, queries, qrels, MEASURES, 10)
    write_json(file, rows)
    return rows, vectors


def texts_of(documents: Any, asked: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Return examples, held-out queries and their judgements."""
    from sluice.training.generation.inverse_cloze import Passage, page_texts
    from sluice.training.protocol import Example, Text

    passages = [Passage(each.id, each.title, each.text) for each in documents]
    full = {each.id: Text(each.id, each.full_text) for each in documents}
    asked_for = BRAIN if asked.brain else {"words": asked.words}
    examples = [
        Example(Text(f"{text.document_id}-{number}", text.query), (full[text.document_id],))
        for number, text in enumerate(page_texts(passages, asked_for, asked.seed))
    ]
    if asked.queries:
        from sluice.retrieval import load_dataset

        test = load_dataset(asked.dataset, "test")
        pairs = generated_pairs(asked.queries, {each.id: each.full_text for each in documents})
        return examples + pairs, {name: test.queries[name] for name in test.qrels}, test.qrels
    held_out: dict[str, tuple[str, str]] = {}
    written = phrases(passages, ASKED, asked.seed)
    known = {(passage, query) for (passage, n), query in written.items() if n < ASKED - 2}
    for (passage, number), query in written.items():
        if number >= ASKED - 2:
            if (passage, query) not in known:
                held_out[f"{passage}-{number}"] = query, passage
        elif not asked.without:
            examples.append(Example(Text(f"{passage}-{number}", query), (full[passage],)))
    chosen = sorted(held_out)
    random.Random(asked.seed).shuffle(chosen)
    queries = {name: held_out[name][0] for name in sorted(chosen[:SEARCHED])}
    return examples, queries, {name: {held_out[name][1]: 1} for name in queries}


def small_t5(work: Path, documents: Any, width: int) -> tuple[Any, Any]:
    tokenizer = words_of((each.full_text for each in documents), work / "t5")
    model = fresh_t5(
        tokenizer, d_model=width, d_kv=16, d_ff=2 * width, num_layers=1, num_decoder_layers=1,
        dropout_rate=0.1,
    )  # fmt: skip
    return model, tokenizer


def minilm() -> Any:
    """Return MiniLM if it is on this machine."""
    from sluice import DenseEncoder, SluiceError

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        return DenseEncoder.from_pretrained(MODEL)
    except (SluiceError, OSError):
        return None


def main() -> None:
    asked = options(__doc__, OPTIONS)
    if asked.fuzz:
        fuzz(asked.fuzz, asked.seed)
    if asked.documents:
        result = trained(asked)
        print(", ".join(f"{name} {value}" for name, value in result.items() if name != "rows"))
        for name, line in result["rows"].items():
            said = "  ".join(f"{measure} {value:.3f}" for measure, value in line.items())
            print(f"  {name:8}", said)


if __name__ == "__main__":
    main()
