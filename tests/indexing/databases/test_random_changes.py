"""Random changes of an index in a database: it stays what our exact index is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from sluice.indexing import FlatIndex, InvertedIndex, PgvectorIndex, QdrantIndex, open_index

STEPS = 14


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("database", ["pgvector", "qdrant"])
def test_hits_after_any_changes_are_those_of_the_exact_index(
    database: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Whole numbers: many scores tie, and sums are exact."""
    if database == "pgvector":
        dsn = request.getfixturevalue("postgres").dsn
        index: Any = PgvectorIndex(dsn, table="random")
    else:
        pytest.importorskip("qdrant_edge", reason="pip install 'sluice-ir[qdrant]'")
        index = QdrantIndex(str(tmp_path / "db"))
    expected: Any = FlatIndex() if kind == "dense" else InvertedIndex()
    draw, words = np.random.default_rng(11), index.words

    def drawn(count: int) -> Any:
        table = draw.integers(-2, 3, (count, 5)).astype(np.float32)
        return table if kind == "dense" else sparse.csr_array(np.maximum(table, 0))

    def both(change: str, *arguments: Any) -> None:
        for each in (index, expected):
            getattr(each, change)(*arguments)

    both("add", drawn(20))
    for step in range(STEPS):
        live = np.setdiff1d(np.arange(expected.rows), expected.deleted_rows)
        change = draw.choice(["add", "delete", "replace", "compact", "forget"])
        if change in ("delete", "replace") and len(live):
            both("delete", draw.choice(live, min(3, len(live)), replace=False))
        if change in ("add", "replace"):
            both("add", drawn(int(draw.integers(1, 9))))
        if change == "compact":
            both("compact")
        if step == 0 or change == "compact" or draw.random() < 0.5:
            index.save(tmp_path / "index")
            index.settle()
            if change != "forget":
                lines = index.verify() if database == "qdrant" else ()
                index = open_index(tmp_path / "index", allow=words)
                assert lines or index.verify()
        queries, k = drawn(3), int(draw.integers(1, 40))
        keep = draw.random(expected.rows) < draw.choice([0.2, 0.9, 1.1])
        for options in ({}, {"keep": keep}):
            found, true = (
                index.search(queries, k, **options),
                expected.search(queries, k, **options),
            )
            np.testing.assert_array_equal(found.rows, true.rows)
            np.testing.assert_allclose(found.scores, true.scores, rtol=1e-5, atol=1e-5)
    assert (len(index), index.rows) == (len(expected), expected.rows)
