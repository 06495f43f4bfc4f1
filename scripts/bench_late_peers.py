#!/usr/bin/env python
"""Runs fast-plaid and WARP for ``bench_late_gather.py``, in an environment that has them.

    PYTHON_OF_THAT_ENVIRONMENT scripts/bench_late_peers.py FOLDER

``FOLDER`` holds ``documents`` and ``queries`` (values and bounds); the answers of each engine that
came to its end go to its ``peers.json``. Both have their defaults, but that WARP searches with all
cores instead of one, as fast-plaid and we do; WARP is also asked to probe more centroids, since
what it finds at its defaults is not comparable. Needs numpy, the very torch that both were compiled
for, fast-plaid, xtr-warp-rs, and nothing of this project.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Vectors = list[Any]  # of each text, a tensor of its tokens
Answer = list[tuple[int, float]]
Search = Callable[[Any, int], Answer]


def main(folder: Path) -> None:
    import numpy as np
    import torch

    sides = {}
    for side in ("documents", "queries"):
        values = torch.from_numpy(np.load(folder / f"{side}.values.npy"))
        bounds = np.load(folder / f"{side}.bounds.npy").tolist()
        sides[side] = [values[a:b] for a, b in itertools.pairwise(bounds)]
    documents = [
        text if len(text) else torch.zeros(1, values.shape[1]) for text in sides["documents"]
    ]
    lines: list[dict[str, Any]] = []
    for name, build in {"fast-plaid": fast_plaid, "WARP": warp}.items():
        path = folder / name
        start = time.perf_counter()
        searches = build(path, documents)
        built = time.perf_counter() - start
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        for setting, search in searches.items():
            engine = {"engine": f"{name}, {setting}", "bytes_a_document": size / len(documents)}
            lines.append({**engine, "build_s": built, **measure(search, sides["queries"])})
        (folder / "peers.json").write_text(json.dumps(lines))


def fast_plaid(path: Path, documents: Vectors) -> dict[str, Search]:
    """Return what searches an index of fast-plaid's."""
    from fast_plaid.search import FastPlaid

    index = FastPlaid(index=str(path), device="cpu")
    index.create(documents_embeddings=documents)
    options = {"show_progress": False, "n_processes": 1}
    return {"its defaults": lambda query, k: index.search(query[None], top_k=k, **options)[0]}


def warp(path: Path, documents: Vectors) -> dict[str, Search]:
    """Return what searches an index of WARP's, by its defaults and with more probes."""
    from xtr_warp import XTRWarp

    index = XTRWarp(index=str(path), device="cpu")
    index.create(documents, device="cpu", show_progress=False)
    index.load(device="cpu")
    options = {"show_progress": False, "num_threads": os.cpu_count()}

    def probing(**asked: int) -> Search:
        return lambda query, k: index.search(query[None], top_k=k, **options, **asked)[0]

    more = {f"{probes} probes": probing(nprobe=probes) for probes in (16, 64)}
    return {"its defaults": probing(), **more}


def measure(search: Search, queries: Vectors) -> dict[str, Any]:
    """Return the milliseconds of single queries and the rows of a hundred hits."""
    for query in queries[:5]:
        search(query, 10)
    times = []
    for query in queries:
        start = time.perf_counter()
        search(query, 10)
        times.append(1000 * (time.perf_counter() - start))
    rows = [[int(row) for row, _ in search(query, 100)] for query in queries]
    high = statistics.quantiles(times, n=20)[-1]
    return {"ms": statistics.median(times), "ms_p95": high, "rows": rows}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
