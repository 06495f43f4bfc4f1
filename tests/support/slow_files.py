"""The files of tests that take longest are run first, so that none is left to one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

# Each takes several seconds, mostly in few tests, in children or for what it has to wait.
SLOW = (
    "adversary/test_hostile_folder.py",
    "adversary/test_bombs.py",
    "adversary/test_kills.py",
    "adversary/test_mutations.py",
    "adversary/test_searches.py",
    "encoders/test_encoder_rules.py",
    "indexing/databases/test_pgvector.py",
    "indexing/databases/test_qdrant.py",
    "indexing/inverted/spooling/test_document_order.py",
    "indexing/inverted/test_live_index.py",
    "indexing/tokens/test_token_index.py",
    "retrieval/execution/test_groups.py",
    "retrieval/execution/test_plan.py",
    "retrieval/execution/test_ray.py",
    "retrieval/retrievers/corpus/test_corpus_encoding.py",
    "retrieval/retrievers/test_kills.py",
    "retrieval/retrievers/test_shards.py",
    "retrieval/serving/test_process.py",
    "retrieval/serving/test_straight_road.py",
    "retrieval/serving/test_workers.py",
    "test_distribution.py",
    "test_journeys.py",
    "test_site.py",
)


def slow_first(tests: Sequence[str]) -> list[int]:
    """Return the places of tests in the order to run them, given what pytest calls each.

    The slow files come first, then those of most tests; a file's tests stay as they were.
    """
    files = [test.partition("::")[0].removeprefix("tests/") for test in tests]
    counts = Counter(files)
    return sorted(
        range(len(tests)),
        key=lambda place: (files[place] not in SLOW, -counts[files[place]], files[place], place),
    )
