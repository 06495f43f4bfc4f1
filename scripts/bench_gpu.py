#!/usr/bin/env python
"""Measure encoding on a GPU against sentence-transformers in bfloat16 at its best batch size.

    python scripts/bench_gpu.py
    python scripts/bench_gpu.py --model MODEL --texts 20000 --json FILE

The model is all-MiniLM-L6-v2 unless told, and with ``--layers`` and ``--hidden`` a random BERT of
that size. Prints documents/s of both sides, the ratio, the least cosine between their vectors, and
the share of the GPU's measured bfloat16 peak (a large matrix product) that the model's products
reach. Without a GPU it says so and ends with status 2.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_encode import LENGTH, passages
from harness import MODEL, options as parsed, write_record

BATCHES = (32, 128, 512, 1024)
BUDGETS = (16_384, 65_536, 262_144)


def peak_flops(device: str, size: int = 8192, rounds: int = 20) -> float:
    """Return the FLOP/s of a large bfloat16 product."""
    import torch

    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(rounds):
        a @ b
    torch.cuda.synchronize()
    return 2 * size**3 * rounds / (time.perf_counter() - start)


def flops_of(model: Any, lengths: list[int]) -> float:
    """Return the products of one pass over texts of these lengths, in FLOP."""
    config = model.config
    hidden, inner = config.hidden_size, config.intermediate_size
    token = 2 * (4 * hidden * hidden + 2 * hidden * inner)
    return float(config.num_hidden_layers * sum(n * token + 4 * n * n * hidden for n in lengths))


def timed(call: Callable[[], Any], rounds: int) -> float:
    """Return the median seconds of a call, warmed up."""
    import torch

    call()
    seconds = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def random_bert(layers: int, hidden: int) -> str:
    """Return a folder with a random BERT of that size under MiniLM's tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    from sluice.encoders.model_files.locate import model_folder

    tokenizer = AutoTokenizer.from_pretrained(model_folder(MODEL))
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 64, intermediate_size=4 * hidden,
    )  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-"))
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def main() -> int:
    options = parsed(__doc__, {
        "--model": MODEL, "--layers": int, "--hidden": 768, "--texts": 8192, "--rounds": 3,
        "--json": Path,
    })  # fmt: skip
    import torch

    if not torch.cuda.is_available():
        print("no GPU here: torch.cuda.is_available() is False", file=sys.stderr)
        return 2
    from sentence_transformers import SentenceTransformer

    from sluice.encoders import DenseEncoder
    from sluice.encoders.model_files.locate import model_folder

    model = random_bert(options.layers, options.hidden) if options.layers else options.model
    texts = passages(options.texts)
    theirs = SentenceTransformer(str(model_folder(model)), device="cuda").bfloat16()
    theirs.max_seq_length = LENGTH
    ours = DenseEncoder.from_pretrained(
        model, dtype="bfloat16", device="cuda", document_length=LENGTH
    )
    figures: dict[str, Any] = {"device": torch.cuda.get_device_name(), "texts": len(texts)}
    figures["theirs"] = {
        batch: len(texts)
        / timed(
            lambda batch=batch: theirs.encode(texts, batch_size=batch, show_progress_bar=False),
            options.rounds,
        )
        for batch in BATCHES
    }
    figures["ours"] = {}
    for budget in BUDGETS:
        ours.batch_tokens = budget
        seconds = timed(lambda: ours.encode_documents(texts), options.rounds)
        figures["ours"][budget] = len(texts) / seconds
    expected = theirs.encode(texts, show_progress_bar=False, convert_to_tensor=True).float()
    vectors = torch.from_numpy(ours.encode_documents(texts)).to(expected.device)
    figures["cosine"] = float(torch.nn.functional.cosine_similarity(vectors, expected, dim=1).min())
    best, their_best = max(figures["ours"].values()), max(figures["theirs"].values())
    lengths = [len(ids) for ids in ours.tokens(texts, "document").ids]
    figures["peak"] = peak_flops("cuda")
    figures["share"] = flops_of(ours.model, lengths) / len(texts) * best / figures["peak"]
    print(f"{figures['device']}, {len(texts):,} texts, bfloat16\n\n| | documents/s |\n|---|---|")
    for batch, speed in figures["theirs"].items():
        print(f"| sentence-transformers, batches of {batch} | {speed:,.0f} |")
    for budget, speed in figures["ours"].items():
        print(f"| Sluice, {budget:,} tokens a pass | {speed:,.0f} |")
    print(
        f"\nratio of the best: **{best / their_best:.2f}x** (target 1.3x, stretch 2x); "
        f"least cosine {figures['cosine']:.5f}; {100 * figures['share']:.0f} % of "
        f"the {figures['peak'] / 1e12:.0f} TFLOP/s that a large product reaches"
    )
    write_record(options.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
