"""The engines of ``bench_dense.py``: each answers a batch of queries with rows ``[n, k]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from sluice.indexing import FlatIndex
from sluice.indexing.flat.compressed_rows import FIRST_PASSES

Dense = NDArray[np.float32]
Engine = Callable[[Dense, int], NDArray[np.int64]]

AS_SHIPPED = int(faiss.cvar.distance_compute_blas_threshold)
BLAS_QUERIES = 16  # the lowered bound: from so many queries on
TORCH_BLOCK = 20_000  # documents of one product


def engines(documents: Dense) -> dict[str, Engine]:
    """Return the engines, the first of them the one that the others are compared with."""
    faiss.omp_set_num_threads(torch.get_num_threads())
    flat = faiss.IndexFlatIP(documents.shape[1])
    flat.add(documents)

    def by_faiss(bound: int) -> Engine:
        def search(queries: Dense, k: int) -> NDArray[np.int64]:
            faiss.cvar.distance_compute_blas_threshold = bound
            rows: NDArray[np.int64] = flat.search(queries, k)[1]
            return rows

        return search

    made = {
        "faiss IndexFlatIP as shipped": by_faiss(AS_SHIPPED),
        "faiss, BLAS from 16 queries": by_faiss(BLAS_QUERIES * documents.shape[1]),
        "torch mm + topk": _by_torch(torch.from_numpy(documents)),
    }
    for first_pass in (None, *FIRST_PASSES):
        index = FlatIndex(first_pass=first_pass)
        index.add(documents)
        name = "FlatIndex" if first_pass is None else f"FlatIndex {first_pass}"
        made[name] = lambda queries, k, index=index: index.search(queries, k).rows
    return made


def _by_torch(documents: Any) -> Engine:
    def search(queries: Dense, k: int) -> NDArray[np.int64]:
        asked, scores, rows = torch.from_numpy(queries), [], []
        for start in range(0, len(documents), TORCH_BLOCK):
            part = documents[start : start + TORCH_BLOCK]
            best = torch.topk(asked @ part.T, min(k, len(part)), dim=1)
            scores.append(best.values)
            rows.append(best.indices + start)
        order = torch.topk(torch.cat(scores, dim=1), k, dim=1).indices
        found: NDArray[np.int64] = torch.cat(rows, dim=1).gather(1, order).numpy()
        return found

    return search
