#!/usr/bin/env python
"""Measure whether queries as negatives tell a document's description from wrong ones.

    scripts/prove_descriptions.py OUTPUT [--split dev] [--seeds 13 14 15] [--steps 300]

Rule-made descriptions, no language model: an entry of pydocs is described by its summary, and its
misfits are the three summaries of the same split that BM25 finds most like it. Static embeddings
that begin as MiniLM's table of tokens learn from the train split, with and without the misfits.
Measured over the split's own queries: nDCG@10, R@1 and R@10 over all documents, how often a
document is nearer to its summary than to each of its three misfits (``told``), and for how many
queries their document has another rank among the first hundred than before training (``moved``).
R@1 alone says little: 20 of the 287 dev queries find their document first before training, so that
it moves in steps of .0035.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import MODEL, options, trainer

INSIDE = {"type": "info_nce", "temperature": 0.05}
ARMS: dict[str, Any] = {
    "info_nce": INSIDE,
    "misfits, triplet, .1": {"type": "misfits", "loss": INSIDE},
    "misfits, triplet, 1": {"type": "misfits", "loss": INSIDE, "weight": 1.0},
    "misfits, softmax, 1": {
        "type": "misfits", "loss": INSIDE, "form": "softmax", "weight": 1.0, "temperature": 0.05,
    },
}  # fmt: skip
MISFITS, RANKED = 3, 100


def static_model(folder: Path) -> Path:
    """Write MiniLM's table of tokens as static embeddings; return the folder."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer
    from transformers import AutoModel

    from sluice.encoders.model_files.locate import model_folder

    if not (folder / "modules.json").exists():
        home = model_folder(MODEL)
        table = AutoModel.from_pretrained(home).get_input_embeddings().weight.detach().numpy()
        backend = Tokenizer.from_file(str(home / "tokenizer.json"))
        backend.no_truncation()
        backend.no_padding()
        modules = [StaticEmbedding(backend, embedding_weights=table.copy()), Normalize()]
        SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder))
    return folder


def misfits_of(queries: dict[str, str]) -> dict[str, list[str]]:
    """Return for each query the texts of the other queries most like it."""
    from sluice import BM25Encoder, InvertedIndex

    names, texts = list(queries), list(queries.values())
    encoder, index = BM25Encoder(), InvertedIndex()
    index.add(encoder.fit_documents(texts))
    hits = index.search(encoder.encode_queries(texts), MISFITS + 1)
    return {
        name: [texts[row] for row in top.tolist() if row not in (-1, own)][:MISFITS]
        for own, (name, top) in enumerate(zip(names, hits.rows, strict=True))
    }


def measured(
    model: Path, data: Any, misfits: dict[str, list[str]], before: dict[str, int]
) -> dict[str, float]:
    """Return the measures of a model over the split's queries.

    ``before`` has the ranks of their documents before training, 0 beyond the hundredth; an empty
    one is filled.
    """
    from sluice import Retriever, evaluate
    from sluice.encoders import StaticEncoder

    encoder = StaticEncoder.from_pretrained(model)
    retriever = Retriever.build(encoder, data.corpus)
    run = retriever.run(data.queries, k=RANKED)
    scores = evaluate(run, data.qrels, ["nDCG@10", "R@1", "R@10"])
    ranks = {name: dict(zip(run[name].doc_ids, range(1, RANKED + 1), strict=False)).get(name, 0)
             for name in data.queries}  # fmt: skip
    before.update({name: rank for name, rank in ranks.items() if name not in before})
    moved = sum(ranks[name] != before[name] for name in ranks)
    told = []
    texts = {d.id: d.full_text for d in data.corpus if d.id in data.queries}
    documents = encoder.encode_documents([texts[name] for name in data.queries])
    for vector, (name, query) in zip(documents, data.queries.items(), strict=True):
        if misfits[name]:
            own, *others = encoder.encode_queries([query, *misfits[name]]) @ vector
            told.append(bool(own > max(others)))
    means = {str(name): float(value) for name, value in scores.mean.items()}
    return {**means, "told": float(np.mean(told)), "moved": moved / len(ranks)}


def main() -> None:
    asked = options(__doc__, {
        "output": (Path, "The folder of models."),
        "--split": {"choices": ("dev", "test"), "default": "dev"}, "--seeds": [13, 14, 15],
        "--steps": 300,
    })  # fmt: skip
    from sluice.retrieval import load_dataset, train

    asked.output.mkdir(parents=True, exist_ok=True)
    start = static_model(asked.output / "start")
    train_split, data = load_dataset("pydocs", "train"), load_dataset("pydocs", asked.split)
    texts = {d.id: d.full_text for d in train_split.corpus}
    wrong = misfits_of(dict(train_split.queries))
    rows = asked.output / "rows.jsonl"
    with rows.open("w", encoding="utf-8") as stream:
        for name, query in train_split.queries.items():
            row = {"query_id": name, "query": query, "pos": [texts[name]], "pos_ids": [name],
                   "neg": [], "neg_ids": [], "negative_queries": wrong[name]}  # fmt: skip
            stream.write(json.dumps(row) + "\n")
    tested = misfits_of(dict(data.queries))
    print(f"| {asked.split} | nDCG@10 | R@1 | R@10 | told | moved | s |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    before: dict[str, int] = {}
    show("start", [measured(start, data, tested, before)], 0.0)
    for name, loss in ARMS.items():
        found, began = [], time.monotonic()
        for seed in asked.seeds:
            examples: dict[str, Any] = {"file": str(rows)}
            if loss["type"] == "info_nce":
                examples["negative_queries"] = 0
            model = train({
                "output": str(asked.output / f"{name.replace(', ', '-')}-{seed}"), "seed": seed,
                "encoder": {"type": "static", "model": str(start)}, "loss": loss,
                "dataset": "pydocs", "examples": examples,
                "trainer": trainer(asked.steps, 64, 2.0e-3, bf16=False),
            })  # fmt: skip
            found.append(measured(model, data, tested, before))
        show(name, found, (time.monotonic() - began) / len(asked.seeds))


def show(name: str, found: list[dict[str, float]], seconds: float) -> None:
    """Print a row: means over the seeds, with the standard deviation of several."""
    cells = []
    for key in found[0]:
        values = [each[key] for each in found]
        spread = f" ±{np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
        cells.append(f"{np.mean(values):.4f}{spread}")
    print(f"| {name} | {' | '.join(cells)} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
