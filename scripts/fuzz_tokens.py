"""Searches random token indexes until a given number of queries, and compares with brute force.

    python scripts/fuzz_tokens.py --queries 100000 --seed 0

Documents and queries are awkward on purpose (``tests/support/token_oracle.py``): equal and nearly
equal tokens, zeros, texts without tokens, norms from 1e-44 to 3e38. Of each query the hits must be
those of brute force over the stored vectors, bit for bit, and each document's exact score must lie
within the bounds that the first pass gave it. Prints how many queries and bounds were checked.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from harness import options

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing import TokenIndex
from sluice.indexing.tokens.search.search import TokenSearch
from sluice.indexing.tokens.storage.segment import STORES
from tests.support.token_oracle import awkward, brute_scores


def main() -> None:
    arguments = options(__doc__, {"--queries": 100_000, "--seed": 0})
    rng = np.random.default_rng(arguments.seed)
    searched, bounds, case = 0, 0, 0
    while searched < arguments.queries:
        seed = int(rng.integers(2**32))
        count, width = int(rng.integers(1, 40)), int(rng.integers(1, 140))
        documents = awkward(seed, count, width, int(rng.integers(1, 30)))
        queries = awkward(seed + 4, 60, width, int(rng.integers(1, 20)))
        store = STORES[case % len(STORES)]
        if store == "float16":
            documents = TokenVectors(np.clip(documents.values, -6e4, 6e4), documents.bounds)
        index = TokenIndex(store)
        index.add(documents)
        live = np.ones(count, np.bool_)
        if case % 3 == 0:
            live = rng.random(count) < 0.7
            index.delete(np.flatnonzero(~live))
        bounds += check(index, queries, int(rng.integers(1, 12)), live, f"{store}, seed {seed}")
        searched += len(queries)
        case += 1
    print(f"{searched:,} queries over {case:,} indexes, {bounds:,} bounds: none violated")


def check(index: TokenIndex, queries: TokenVectors, k: int, live: np.ndarray, case: str) -> int:
    """Compare the hits and bounds of all queries; return how many bounds were checked."""
    stored = index.documents(np.arange(index.rows))
    hits = index.search(queries, k)
    search = TokenSearch(index._vectors, queries)
    parts = list(search._parts(None))
    lows, highs = search._bounds(parts, index.rows, 0, len(queries))
    for place, query in enumerate(queries):
        scores = brute_scores(query, stored)
        if not ((lows[place] <= scores) & (scores <= highs[place])).all():
            raise SystemExit(f"a bound is violated: {case}, query {place}")
        possible = np.flatnonzero(live & (scores > -np.inf))
        best = possible[np.lexsort((possible, -scores[possible]))][:k]
        if hits.rows[place, : len(best)].tolist() != best.tolist() or (
            hits.scores[place, : len(best)].tolist() != scores[best].tolist()
        ):
            raise SystemExit(f"not the hits of brute force: {case}, query {place}")
    return int(lows.size)


if __name__ == "__main__":
    main()
