"""What trades exactness for time or size: alpha, beta, top_terms; what order and blocks do."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing import InvertedIndex


def topical(seed: int = 1, count: int = 20_000) -> Any:
    """Documents in topic order, with heavy terms of their topic and light ones of all."""
    rng = np.random.default_rng(seed)
    topic = np.sort(rng.integers(0, 150, count))
    own = rng.integers(0, 2000, (150, 30))
    columns = np.concatenate(
        [
            own[topic][:, rng.permutation(30)[:10]],
            (2000 * rng.random((count, 12)) ** 3).astype(int),
        ],
        axis=1,
    )
    values = np.log1p(rng.lognormal(0, 1, columns.shape)).astype(np.float32)
    values[:, :10] += 1
    starts = np.arange(0, columns.size + 1, columns.shape[1])
    matrix = sparse.csr_array((values.ravel(), columns.ravel(), starts), shape=(count, 2000))
    matrix.sum_duplicates()
    return matrix


@pytest.fixture(scope="module")
def documents() -> Any:
    return topical()


@pytest.fixture(scope="module")
def queries(documents: Any) -> Any:
    rows = np.random.default_rng(2).choice(documents.shape[0], 30, replace=False)
    return documents[rows]


@pytest.fixture(scope="module")
def index(documents: Any) -> InvertedIndex:
    made = InvertedIndex()
    made.add(documents)
    return made


def overlap(found: Any, exact: Any) -> float:
    return float(
        np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(found, exact, strict=True)])
    )


def scored(index: InvertedIndex, queries: Any, **params: Any) -> float:
    plans = index.plan(queries, 10, params={"engine": "blocks", **params})
    return float(np.mean([plan.scored_blocks for plan in plans]))


def test_alpha_trades_recall_for_blocks(
    index: InvertedIndex, queries: Any, caplog: pytest.LogCaptureFixture
) -> None:
    exact = index.search(queries, 10).rows
    shares = (1.0, 0.8, 0.6, 0.4)
    with caplog.at_level(logging.INFO, logger="sluice"):
        found = [
            index.search(queries, 10, params={"engine": "blocks", "alpha": alpha}).rows
            for alpha in shares
        ]
        index.search(queries, 10, params={"engine": "blocks", "alpha": 0.8})
    recall = [overlap(rows, exact) for rows in found]
    blocks = [scored(index, queries, alpha=alpha) for alpha in shares]
    assert recall[0] == 1.0
    assert recall == sorted(recall, reverse=True)
    assert recall[-1] < 1.0
    assert blocks == sorted(blocks, reverse=True)
    said = [record.getMessage() for record in caplog.records if "alpha=0.8" in record.getMessage()]
    assert len(said) == 1  # once for each setting
    assert f"overlap@10 with exact {recall[1]:.3f} (30 queries)" in said[0]


def test_beta_searches_the_heaviest_terms(index: InvertedIndex, queries: Any) -> None:
    exact = index.search(queries, 10).rows
    assert (index.search(queries, 10, params={"beta": 1}).rows == exact).all()
    recall = [
        overlap(index.search(queries, 10, params={"beta": beta}).rows, exact)
        for beta in (0.9, 0.5, 0.2)
    ]
    assert recall == sorted(recall, reverse=True)
    line = queries[[3]]
    kept = np.sort(np.argsort(-line.data, kind="stable")[: int(np.ceil(0.3 * line.nnz))])
    pruned = sparse.csr_array((line.data[kept], line.indices[kept], [0, len(kept)]), line.shape)
    found = index.search(line, 10, params={"beta": 0.3})
    np.testing.assert_array_equal(found.scores, index.search(pruned, 10).scores)


def test_top_terms_keeps_a_documents_heaviest(
    documents: Any, caplog: pytest.LogCaptureFixture
) -> None:
    index = InvertedIndex(top_terms=8)
    with caplog.at_level(logging.INFO, logger="sluice"):
        index.add(documents[:600])
        kept = index.documents(np.arange(600)).toarray()
    assert "top_terms=8: overlap@10 with exact 0." in caplog.text
    for row, document in enumerate(documents[:600].toarray()):
        assert np.count_nonzero(kept[row]) <= 8
        np.testing.assert_array_equal(np.sort(kept[row])[-8:], np.sort(document)[-8:])


def test_eight_bits_say_what_they_cost(documents: Any, caplog: pytest.LogCaptureFixture) -> None:
    index = InvertedIndex(fidelity="u8")
    with caplog.at_level(logging.INFO, logger="sluice"):
        index.add(documents)
        stored = index.documents(np.arange(200))
    assert "u8: overlap@10 with exact" in caplog.text
    peaks = documents.max(axis=0).toarray().ravel()
    error = np.abs((stored - documents[:200]).toarray())
    assert (error <= peaks / 255 / 2 * 1.001 + 1e-7).sum() == error.size - (
        (error > peaks / 255 / 2 * 1.001 + 1e-7) & (documents[:200].toarray() < peaks / 255)
    ).sum()  # half a step, but what would round to nothing becomes one step


def test_smaller_blocks_and_better_orders_leave_more_out(documents: Any, queries: Any) -> None:
    shares = []
    for size in (8, 32, 128):
        index = InvertedIndex(block_size=size)
        index.add(documents)
        shares.append(scored(index, queries) * size / documents.shape[0])
    assert shares == sorted(shares)
    shuffled = documents[np.random.default_rng(3).permutation(documents.shape[0])]
    counts = {}
    for order in ("input", "cluster", "bisection"):
        index = InvertedIndex(order=order)
        index.add(shuffled)
        index.search(queries, 1)
        counts[order] = len(index._segments[0].segment.directory)  # distinct terms of all blocks
    assert max(counts["cluster"], counts["bisection"]) < 0.8 * counts["input"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"alpha": 0}, "params.alpha: 0, expected a number above 0, at most 1"),
        ({"beta": 1.5}, "params.beta: 1.5"),
        ({"engine": "block"}, "params.engine: 'block', expected one of .*did you mean 'blocks'"),
        ({"alhpa": 0.5}, "unknown search parameter 'alhpa'"),
    ],
)
def test_wrong_parameters(index: InvertedIndex, queries: Any, params: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        index.search(queries, 3, params=params)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fidelity": "u16"}, "fidelity: 'u16', expected one of exact, u8"),
        ({"order": "bisect"}, "order: 'bisect'.*did you mean 'bisection'"),
        ({"block_size": 24}, "block_size: 24, expected a power of two up to 256"),
        ({"top_terms": 0}, "top_terms: 0; expected a whole number, 1 or more"),
    ],
)
def test_wrong_settings(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        InvertedIndex(**settings)
