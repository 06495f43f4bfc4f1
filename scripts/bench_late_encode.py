#!/usr/bin/env python
"""Measure encoding to token vectors against sentence-transformers, and pooling by scipy.

    python scripts/bench_late_encode.py
    python scripts/bench_late_encode.py --texts 256 --rounds 5 --data ../shared/data/scifact

Both sides encode the same texts with the same weights, a token encoder started from MiniLM and
saved, in one process, in turn; a ratio is the median over the rounds of their time over ours.
sentence-transformers runs ``encode_document`` and ``encode_query`` of ``MultiVectorEncoder`` with
its defaults (batches of 32); how far its vectors are from ours is printed beside the ratio.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench_encode import against, collection, least_cosine, passages, rows
from harness import MODEL, options as parsed

LENGTH = 256


def measured(texts: list[str], side: str, folder: str, rounds: int) -> list[dict[str, Any]]:
    """Return the rows of one side, in float32 and bfloat16."""
    import numpy as np
    from sentence_transformers import MultiVectorEncoder

    from sluice.encoders import TokenEncoder

    model = MultiVectorEncoder(folder, device="cpu")
    unit = "queries" if side == "query" else "documents"

    def ours(dtype: Any) -> Callable[[], Any]:
        encoder = TokenEncoder.from_pretrained(folder, dtype=dtype, device="cpu")
        return partial(getattr(encoder, f"encode_{unit}"), texts)

    theirs = partial(
        getattr(model, f"encode_{side}"), texts, show_progress_bar=False, convert_to_numpy=True
    )
    return against(
        unit, f"{unit}/s", len(texts), theirs, ours, rounds, "least cosine",
        lambda mine, other: least_cosine(mine.values, np.concatenate(other)),
    )  # fmt: skip


def pooling(texts: list[str], folder: str, rounds: int) -> list[dict[str, Any]]:
    """Return the row of pooling alone, tokens a second, against sentence-transformers' module."""
    import torch
    from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling

    from sluice.encoders import TokenEncoder
    from sluice.encoders.late_interaction.pooling import pooled_tokens

    vectors = TokenEncoder.from_pretrained(folder, device="cpu").encode_documents(texts)
    module = HierarchicalTokenPooling(2)
    tensors = [torch.from_numpy(text) for text in vectors]
    calls: dict[str, Callable[[], Any]] = {
        "theirs": lambda: module.pool(tensors),
        "factor 2": lambda: pooled_tokens(
            vectors.values, vectors.lengths, 2.0, protected=1, normalize=True
        ),
    }
    note = f"{len(vectors.values):,} tokens of {len(texts):,} documents"
    return list(rows("pooling", "tokens/s", len(vectors.values), calls, rounds, note))


def main() -> None:
    options = parsed(__doc__, {
        "--texts": 256, "--rounds": 5, "--data": (Path, "a collection in BEIR layout"),
        "--only": {"nargs": "*", "default": ["documents", "queries", "pooling"]},
    })  # fmt: skip
    from sluice.encoders import TokenEncoder

    if options.data is None:
        texts = passages(options.texts)
    else:
        texts = collection(options.data, options.texts)
    queries = [" ".join(text.split()[: random.Random(n).randint(3, 14)])
               for n, text in enumerate(texts)]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        started = TokenEncoder.from_pretrained(MODEL, document_length=LENGTH, device="cpu")
        started.save_pretrained(Path(folder) / "model")
        model = str(Path(folder) / "model")
        found = []
        if "documents" in options.only:
            found += measured(texts, "document", model, options.rounds)
        if "queries" in options.only:
            found += measured(queries, "query", model, options.rounds)
        if "pooling" in options.only:
            found += pooling(texts, model, options.rounds)
    for row in found:
        print(
            f"{row['what']:20} {row['ours']:10,.0f} {row['unit']:12} theirs {row['theirs']:10,.0f} "
            f"ratio {row['ratio']:5.2f} ({row['least']:.2f} to {row['most']:.2f})  {row['note']}"
        )


if __name__ == "__main__":
    main()
