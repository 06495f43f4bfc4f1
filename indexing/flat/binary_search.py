"""Searches by one bit a dimension: the documents with most signs in common are scored exactly."""

from __future__ import annotations

import numpy as np

from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing.checks import Dense
from sluice.indexing.flat.binary_kernel import count_differences, nearest, offer_rows
from sluice.indexing.flat.compressed_rows import WORD, CompressedRows, sign_bits
from sluice.indexing.hits import Hits
from sluice.indexing.kernels.calls import lent
from sluice.indexing.kernels.heap import read_heaps
from sluice.indexing.kernels.threads import in_parallel
from sluice.indexing.live_rows import Mask
from sluice.indexing.storage.exact_scores import METRICS, Metric, norms_of
from sluice.indexing.storage.rows import DenseRows, picked


def search_bits(
    rows: DenseRows,
    codes: CompressedRows | None,
    metric: Metric,
    queries: Dense,
    k: int,
    depth: int,
    allowed: Mask | None,
) -> Hits:
    """Return each query's ``k`` best of the ``depth`` allowed documents nearest by their signs.

    Of documents at the same distance the first ones are taken. Memory: 4 bytes for each
    allowed document in each thread.
    """
    if codes is None:
        raise ConfigError("binary search: the index has no signs; use first_pass='binary'")
    total = len(rows) if allowed is None else int(np.count_nonzero(allowed))
    numbers = None if allowed is None else np.flatnonzero(allowed)
    signs, exact, norms = sign_bits(queries), queries.astype(np.float64), norms_of(queries)
    blocks = list(picked(codes.chunks(), max(1, len(codes)), allowed))
    chunks = [(lent(vectors), lent(lengths)) for vectors, lengths in rows.chunks()]
    words = [lent(chunk[0]) for chunk in codes.chunks()]
    starts = np.cumsum([0, *(len(lengths) for _, lengths in chunks)])
    heaps = np.empty((len(queries), k), dtype=np.int64)
    sizes = np.zeros(len(queries), dtype=np.int64)
    kind = METRICS.index(metric)

    def task(first: int, last: int) -> None:
        distances = np.empty(total, dtype=np.uint32)
        chosen = np.empty(min(depth, total), dtype=np.int64)
        for query in range(first, last):
            histogram, done = np.zeros(WORD * signs.shape[1] + 1, dtype=np.int64), 0
            for chunk, _, start, count, places in blocks:
                count_differences(
                    words[chunk], places, start, count, signs, query, done, distances, histogram
                )
                done += count
            nearest(distances, histogram, chosen)
            candidates = chosen if numbers is None else numbers[chosen]
            ends = np.searchsorted(candidates, starts)
            for chunk, (vectors, lengths) in enumerate(chunks):
                part = candidates[ends[chunk] : ends[chunk + 1]]
                sizes[query] = offer_rows(
                    kind,
                    exact,
                    query,
                    norms[query],
                    vectors,
                    lengths,
                    int(starts[chunk]),
                    part,
                    heaps[query],
                    sizes[query],
                )

    in_parallel(task, len(queries))
    hits = Hits.missing(len(queries), k)
    read_heaps(heaps, sizes, hits.rows, hits.scores)
    return hits
