#!/usr/bin/env python
"""Show that faster arithmetic finds the same documents: nDCG@10 in float32, bfloat16, int8.

    python scripts/prove_encoding.py

Every document and query of a collection is encoded by all-MiniLM-L6-v2 in each way (with --padded
first by the model's own pass); exact search, nDCG@10 and R@100 of the test split, and the
difference to the first way, with the least cosine of a document to its vector in the first. A
difference of nDCG@10 above .0005 (int8: .002), or an int8 cosine below .999, makes the exit status
1.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from harness import MODEL, figures, options as parsed

ALLOWED = {"float32": 0.0005, "bfloat16": 0.0005, "int8": 0.002}
COSINE = 0.999


def scores(encoder: Any, dataset: Any) -> tuple[dict[str, float], float, Any]:
    """Return the measures of exact search by an encoder, its documents/s, and the vectors."""
    from sluice import FlatIndex, Retriever

    documents = list(dataset.corpus)
    start = time.perf_counter()
    vectors = encoder.encode_documents([document.full_text for document in documents])
    speed = len(documents) / (time.perf_counter() - start)
    retriever = Retriever.build(encoder, documents, vectors=[vectors], index=FlatIndex())
    return figures(retriever, dataset.queries, dataset.qrels, ["nDCG@10", "R@100"]), speed, vectors


def main() -> int:
    """Print the table; return 1 if a way of encoding finds other documents."""
    options = parsed(__doc__, {
        "--data": Path("../shared/data"),
        "--collections": {"nargs": "*", "default": ["scifact", "nfcorpus", "feedbackqa"]},
        "--padded": False,
    })  # fmt: skip
    from sluice import DenseEncoder, load_dataset

    def padded() -> Any:
        encoder = DenseEncoder.from_pretrained(MODEL)
        encoder.packed = False
        return encoder

    ways = {
        **({"float32, padded": padded} if options.padded else {}),
        "float32": lambda: DenseEncoder.from_pretrained(MODEL),
        "bfloat16": lambda: DenseEncoder.from_pretrained(MODEL, dtype="bfloat16"),
        "int8": lambda: DenseEncoder.from_pretrained(MODEL, dtype="int8"),
    }
    print("| | | nDCG@10 | difference | R@100 | least cosine | documents/s |")
    print("|---|---|---|---|---|---|---|")
    same = True
    for name in options.collections:
        dataset = load_dataset(str(options.data / name), split="test")
        first: tuple[float, Any] | None = None
        for way, made in ways.items():
            mean, speed, vectors = scores(made(), dataset)
            first = (mean["nDCG@10"], vectors) if first is None else first
            difference = mean["nDCG@10"] - first[0]
            cosine = float((vectors * first[1]).sum(axis=1).min())
            kind = way.partition(",")[0]
            same = same and abs(difference) <= ALLOWED[kind] and cosine >= COSINE
            print(
                f"| {name} | {way} | {mean['nDCG@10']:.4f} | {difference:+.5f} | "
                f"{mean['R@100']:.4f} | {cosine:.5f} | {speed:.1f} |",
                flush=True,
            )
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
