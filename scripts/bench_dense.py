#!/usr/bin/env python
"""Measure exact dense search against FAISS and torch, and every FAISS type against exact search.

    python scripts/bench_dense.py
    python scripts/bench_dense.py --documents 1000000 --dimensions 768 --json FILE
    OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 python scripts/bench_dense.py --batches 1 --no-types

Peers: faiss.IndexFlatIP as it comes, the same with the bound from which it uses BLAS lowered to 16
queries, and torch's product with topk. Every engine answers the same batch in turn, in one process
and on the same number of threads; the ratio is the median over the rounds of the peer's time by
ours. Time is the clock's, on one thread the processor's. "Identical" counts the queries whose top
10 are, row by row, those of float64 brute force. On a machine that others share, believe the ratios
and not the milliseconds.

Real vectors are those of all-MiniLM-L6-v2 over a collection in $SLUICE_DATA; they are encoded once
and kept under $SLUICE_BENCH (default ~/.cache/sluice/bench).
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from harness import options as parsed, write_record

THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, str(THREADS))  # before anything that reads them is imported

from bench_dense_data import Collection, clustered, real  # noqa: E402
from bench_dense_engines import engines  # noqa: E402
from bench_dense_timing import brute_force, measured  # noqa: E402
from bench_dense_types import types_table  # noqa: E402

log = logging.getLogger("sluice")

BATCHES = (1, 32, 128, 256)
K = 10
TARGETS = {1: "4x; 6x with binary", 32: "5x; 12x", 128: "5x; 12x", 256: "5x; 12x"}


def main() -> int:
    options = parsed(__doc__, {
        "--documents": 100_000, "--dimensions": 384,
        "--batches": {"type": int, "nargs": "+", "default": list(BATCHES)}, "--rounds": 7,
        "--real": {"nargs": "*", "default": ["msmarco-dl-pool"], "metavar": "DATASET"},
        "--no-types": (False, "leave out the FAISS types"), "--types-documents": 10_000,
        "--json": Path,
    })  # fmt: skip
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    collections = [clustered(options.documents, options.dimensions)]
    for dataset in options.real:
        if (found := real(dataset)) is not None:
            collections.append(found)
    figures: dict[str, Any] = {}
    wrong = 0
    for collection in collections:
        figures[collection.name] = flat = _flat(collection, options.batches, options.rounds)
        wrong += flat["wrong"]
    if not options.no_types:
        part = collections[-1]
        part = part._replace(documents=part.documents[: options.types_documents])
        figures["types"] = types_table(part, K)
    write_record(options.json, figures)
    return 1 if wrong else 0


def _flat(collection: Collection, batches: list[int], rounds: int) -> dict[str, Any]:
    """Print one collection's table; return its figures, and how many exact answers were wrong."""
    load = os.getloadavg()[0]
    print(f"\n## {collection.name}, k = {K}, threads: {THREADS} (load {load:.1f} before)\n")
    print("| batch | engine | ms | x faster than faiss | identical | recall@10 | target |")
    print("|---|---|---|---|---|---|---|")
    truth = brute_force(collection, K)
    made = engines(collection.documents)
    figures: dict[str, Any] = {"load": load, "batches": {}, "wrong": 0}
    for batch in sorted({min(batch, len(collection.queries)) for batch in batches}):
        rows = measured(made, collection.queries, batch, K, truth, rounds, THREADS)
        figures["batches"][batch] = rows
        for name, row in rows.items():
            ours = name.startswith("FlatIndex")
            if ours and "binary" not in name and row["identical"] < row["checked"]:
                figures["wrong"] += 1
            print(
                f"| {batch} | {name} | {row['ms']:.2f} | {row['ratio']:.2f} "
                f"| {row['identical']} of {row['checked']} | {row['recall']:.4f} "
                f"| {TARGETS.get(batch, '') if ours else ''} |",
                flush=True,
            )
    return figures


if __name__ == "__main__":
    sys.exit(main())
