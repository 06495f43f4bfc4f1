#!/usr/bin/env python
"""Runs fast-plaid at its defaults for ``bench_late_gather.py``, in an environment that has it.

    PYTHON_OF_THAT_ENVIRONMENT scripts/bench_late_peers.py FOLDER

``FOLDER`` holds ``documents`` and ``queries`` (values and bounds); the answers go to its
``peers.json``. Needs numpy, torch and fast-plaid, and nothing of this project.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any


def main(folder: Path) -> None:
    """Build, search one query at a time, and write rows, times and sizes."""
    import numpy as np
    import torch
    from fast_plaid import search

    sides = {}
    for side in ("documents", "queries"):
        values = torch.from_numpy(np.load(folder / f"{side}.values.npy"))
        bounds = np.load(folder / f"{side}.bounds.npy").tolist()
        sides[side] = [values[a:b] for a, b in itertools.pairwise(bounds)]
    documents = [
        text if len(text) else torch.zeros(1, values.shape[1]) for text in sides["documents"]
    ]
    path = folder / "plaid"
    start = time.perf_counter()
    index = search.FastPlaid(index=str(path), device="cpu")
    index.create(documents_embeddings=documents)
    built = time.perf_counter() - start
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    lines: list[dict[str, Any]] = []

    def ask(query: Any, k: int) -> list[int]:
        answer = index.search(query[None], top_k=k, show_progress=False, n_processes=1)
        return [int(row) for row, _ in answer[0]]

    for query in sides["queries"][:5]:
        ask(query, 10)
    times = []
    for query in sides["queries"]:
        start = time.perf_counter()
        ask(query, 10)
        times.append(1000 * (time.perf_counter() - start))
    lines.append(
        {
            "engine": "fast-plaid, its defaults",
            "ms": statistics.median(times),
            "ms_p95": statistics.quantiles(times, n=20)[-1],
            "bytes_a_document": size / len(documents),
            "build_s": built,
            "rows": [ask(query, 100) for query in sides["queries"]],
        }
    )
    (folder / "peers.json").write_text(json.dumps(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
