"""Compare weights of 32, 8 and 4 bits: memory, speed, cosine to float32, and measures on a dataset.

python scripts/measure_weights.py [--dataset scifact] [--model ID] [--length 128] [--documents 1000]

With ``--documents`` so many are searched, the judged ones among them.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from harness import options

from sluice import DenseEncoder, Retriever, evaluate, load_dataset
from sluice.encoders.model_files.weights.quantised import bytes_of


def main() -> None:
    chosen = options(__doc__, {
        "--dataset": "scifact", "--model": "sentence-transformers/all-MiniLM-L6-v2",
        "--length": 128, "--documents": int,
    })  # fmt: skip
    torch.set_num_threads(1)
    dataset = load_dataset(chosen.dataset)
    documents = list(dataset.corpus)
    if chosen.documents is not None:
        judged = {name for grades in dataset.qrels.values() for name in grades}
        documents.sort(key=lambda document: document.id not in judged)
        documents = documents[: chosen.documents]
    texts = [document.full_text for document in documents[:200]]
    queries = list(dataset.queries.values())
    exact = None
    for weights in ("float32", "int8", "int4"):
        encoder = DenseEncoder.from_pretrained(
            chosen.model, document_length=chosen.length, weights=weights, device="cpu"
        )
        vectors = encoder.encode_documents(texts)
        exact = vectors if exact is None else exact
        cosines = (vectors * exact).sum(axis=1) / np.linalg.norm(vectors, axis=1)
        cosines /= np.linalg.norm(exact, axis=1)
        for query in queries[:5]:
            encoder.encode_queries([query])
        start = time.process_time()
        for query in queries[:100]:
            encoder.encode_queries([query])
        each = (time.process_time() - start) * 10
        start = time.process_time()
        retriever = Retriever.build(encoder, documents)
        seconds = time.process_time() - start
        scores = evaluate(retriever.run(dataset.queries), dataset.qrels, ["nDCG@10", "R@100"]).mean
        print(
            f"{weights:8} {bytes_of(encoder.module) / 1e6:6.1f} MB, cosine {cosines.min():.4f} at "
            f"least, {cosines.mean():.4f} on average; {len(documents) / seconds:.0f} documents/s, "
            f"{each:.1f} ms a query; {scores}",
            flush=True,
        )


if __name__ == "__main__":
    main()
