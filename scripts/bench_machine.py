#!/usr/bin/env python
"""One page about this machine: what is chosen here, and how fast it is beside the peers.

    python scripts/bench_machine.py
    python scripts/bench_machine.py --masks --texts 64 --rounds 5 --json FILE

Everything of a row is timed in turn in one process; a ratio is the median over the rounds of the
peer's time over ours, so above 1 is faster. Peers have their best settings: sentence-transformers
also in bfloat16, FAISS's exact index, ONNX Runtime and OpenVINO where they are installed. With
``--masks`` the choice of arithmetic is made again in processes that hide instructions from the
libraries, as other processors would: AVX2 alone, AVX-512, and that with bytes (VNNI).
Times beside other work are the processor's: ``--clock process``.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench_encode import LENGTH, passages
from harness import MODEL, answer, interleaved, options as parsed, task_of, write_record

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import sluice  # noqa: F401  before torch: it says how threads wait

# What stands in for a processor: its name, and what hides the rest of this one's instructions.
MASKS: dict[str, dict[str, str]] = {
    "as it is": {},
    "AVX2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2", "NUMBA_CPU_NAME": "haswell",
        "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL",
    },
    "AVX-512": {
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_ENABLE_INSTRUCTIONS": "AVX512",
        "NUMBA_CPU_NAME": "skylake-avx512",
    },
    "AVX-512, VNNI": {
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI", "MKL_ENABLE_INSTRUCTIONS": "AVX512_E1",
        "NUMBA_CPU_NAME": "cascadelake",
    },
}  # fmt: skip
Calls = Mapping[str, Callable[[], Any]]


def choices() -> dict[str, Any]:
    """Return what is chosen in this process, and the milliseconds that choosing takes."""
    import torch

    from sluice.encoders.transformer import arithmetic
    from sluice.encoders.transformer.packed.eight_bits import multiplies_bytes
    from sluice.indexing.flat.tile import halves_are_faster

    torch.ones(2) @ torch.ones(2)
    start = time.process_time()
    chosen = arithmetic.product_times(arithmetic.TYPICAL)
    took = 1000 * (time.process_time() - start)
    bytewise = multiplies_bytes()
    times = arithmetic.product_times(arithmetic.TYPICAL, bytewise=bytewise)
    return {
        "line": str(chosen), "took": took, "flat": halves_are_faster(),
        "seconds": dict(times.seconds), "faster_asked_for": times.fastest,
    }  # fmt: skip


def encoders(texts: list[str]) -> dict[str, Callable[[list[str]], Any]]:
    """Return what encodes with MiniLM, by name: the peers first."""
    import torch
    from sentence_transformers import SentenceTransformer

    from sluice.encoders import DenseEncoder
    from sluice.encoders.model_files.locate import model_folder

    def theirs(**kinds: Any) -> Callable[[list[str]], Any]:
        model = SentenceTransformer(
            str(model_folder(MODEL)), device="cpu", model_kwargs=kinds or None
        )
        model.max_seq_length = LENGTH
        return lambda given: model.encode(given, show_progress_bar=False)

    found = {
        "sentence-transformers": theirs(),
        "sentence-transformers bfloat16": theirs(dtype=torch.bfloat16),
    }
    if all(map(importlib.util.find_spec, ("onnx", "onnxruntime"))):
        from sluice.encoders.backends.export import export_onnx

        folder = Path(tempfile.mkdtemp())
        export_onnx(MODEL, folder)
        engines = {"ONNX Runtime": "onnx", "OpenVINO": "openvino"}
        for name, engine in engines.items():
            if engine == "onnx" or importlib.util.find_spec("openvino"):
                graph = DenseEncoder.from_pretrained(
                    folder, device="cpu", backend=engine, document_length=LENGTH, dtype="auto"
                )
                found[name] = graph.encode_documents
    for kind in ("float32", "bfloat16", "int8"):
        own = DenseEncoder.from_pretrained(MODEL, dtype=kind, device="cpu", document_length=LENGTH)
        found[f"ours, {kind}"] = own.encode_documents
    return found


def pairs(texts: list[str]) -> dict[str, Callable[[], Any]]:
    """Return what scores pairs by a cross-encoder of MiniLM's shape."""
    from sentence_transformers import CrossEncoder as Theirs

    from sluice.encoders import CrossEncoder

    folder = Path(tempfile.mkdtemp())
    CrossEncoder.from_pretrained(MODEL, max_length=LENGTH).save_pretrained(folder)
    both = [(" ".join(text.split()[3:13]), text) for text in texts]
    peer = Theirs(str(folder), device="cpu")
    found: dict[str, Callable[[], Any]] = {
        "sentence-transformers": lambda: peer.predict(both, show_progress_bar=False)
    }
    for kind in ("float32", "bfloat16", "int8"):
        own = CrossEncoder.from_pretrained(folder, dtype=kind, device="cpu")
        found[f"ours, {kind}"] = lambda own=own: own.score(both)
    return found


def flat(count: int) -> dict[str, Callable[[], Any]]:
    """Return exact search of one query at a time, 20 of them."""
    import faiss
    import numpy as np

    from sluice.indexing import FlatIndex

    chance = np.random.default_rng(0)
    centres = chance.normal(size=(200, 384))
    rows = centres[chance.integers(200, size=count)] + 0.7 * chance.normal(size=(count, 384))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    queries = rows[chance.integers(count, size=20)] + chance.normal(size=(20, 384)) / 40
    queries = queries.astype(np.float32)
    peer = faiss.IndexFlatIP(384)
    peer.add(rows)
    own = FlatIndex()
    own.add(rows)
    for query in queries:
        mine, (_, theirs) = own.search(query[None], k=10), peer.search(query[None], 10)
        if set(map(int, mine.rows[0])) != set(theirs[0].tolist()):
            raise SystemExit(f"{count} vectors: other hits than FAISS's")
    return {
        "FAISS IndexFlatIP": lambda: [peer.search(query[None], 10) for query in queries],
        "ours": lambda: [own.search(query[None], k=10) for query in queries],
    }


def row(title: str, calls: Calls, rounds: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Time calls in turn, the first being the peer; print and return the ratios."""
    seconds = interleaved(calls, rounds, clock)
    peer = next(iter(calls))
    found = {
        name: statistics.median(
            theirs / own for theirs, own in zip(seconds[peer], times, strict=True)
        )
        for name, times in seconds.items()
    }
    base = 1000 * statistics.median(seconds[peer])
    rest = ", ".join(f"{name} **{ratio:.2f}x**" for name, ratio in list(found.items())[1:])
    print(f"| {title} | {peer} {base:,.1f} ms | {rest} |", flush=True)
    return found


def main() -> int:
    """Print the page."""
    if answer(choices):
        return 0
    options = parsed(__doc__, {
        "--texts": 64, "--rounds": 5, "--threads": 0, "--masks": False, "--json": Path,
        "--clock": {"choices": ["wall", "process"], "default": "wall"},
        "--vectors": [2_000, 100_000],
    })  # fmt: skip
    import torch

    from sluice.encoders.foundation.measured import machine

    threads = options.threads or torch.get_num_threads()
    torch.set_num_threads(threads)
    clock = time.process_time if options.clock == "process" else time.perf_counter
    print(f"{machine()}; {threads} threads; torch {torch.__version__}\n")
    print("| | peer | ours, or another peer: times as fast |\n|---|---|---|", flush=True)
    record: dict[str, Any] = {"machine": machine(), "threads": threads}
    texts = passages(options.texts)
    ways = encoders(texts)
    record["passages"] = row(
        f"{len(texts)} passages of 200 tokens",
        {name: (lambda way=way: way(texts)) for name, way in ways.items()}, options.rounds, clock,
    )  # fmt: skip
    short = [" ".join(text.split()[3:9]) for text in texts[:20]]
    record["query"] = row(
        "20 queries of 6 words, one by one",
        {name: (lambda way=way: [way([text]) for text in short]) for name, way in ways.items()},
        options.rounds, clock,
    )  # fmt: skip
    record["pairs"] = row(f"{len(texts)} pairs", pairs(texts), options.rounds, clock)
    for count in options.vectors:
        record[f"flat {count}"] = row(
            f"exact search of {count:,} x 384, 20 queries one by one", flat(count),
            options.rounds, clock,
        )  # fmt: skip
    print("\n| processor | chosen | asked for int8 | flat search | float32, bfloat16, int8: ms |")
    print("|---|---|---|---|---|")
    for name, hidden in (MASKS if options.masks else {"as it is": {}}).items():
        with tempfile.TemporaryDirectory() as cache:
            found = task_of(__file__, "choices", {}, threads, SLUICE_CACHE=cache, **hidden)
        times = ", ".join(f"{1000 * each:.2f}" for each in found["seconds"].values())
        print(
            f"| {name} | {found['line']} ({found['took']:.0f} ms) | {found['faster_asked_for']} | "
            f"{'bfloat16' if found['flat'] else 'float32'} | {times} |",
            flush=True,
        )
        record.setdefault("choices", {})[name] = found
    here = record["choices"]["as it is"]
    chosen = here["line"].partition(":")[0]
    own = {
        kind: record["passages"][f"ours, {kind}"] / record["passages"]["ours, float32"]
        for kind in ("float32", "bfloat16", "int8")
    }
    print(
        f"\nChosen here: {here['line']}. Encoding is {own[chosen]:.2f} times as fast as in "
        f"float32, and in int8 {own['int8']:.2f} times; what the flags alone would choose, "
        f"bfloat16, is {own['bfloat16']:.2f} times as fast."
    )
    if options.json:
        write_record(options.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
