"""Every index behind one fixture, with vectors of its kind and brute force to compare it with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba  # noqa: F401  loaded: the kernels are tested, not what stands in for them
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing import (
    INDEXES,
    FaissIndex,
    FlatIndex,
    FmIndex,
    Hits,
    Index,
    InvertedIndex,
    QueryGraphIndex,
    TokenIndex,
    TrieIndex,
)
from sluice.indexing.own.augmentations import DocumentBias, MipsToL2
from sluice.indexing.own.augmented import AugmentedIndex
from sluice.indexing.table import DATABASES
from sluice.indexing.wrappers.funnel import FunnelIndex
from sluice.indexing.wrappers.passages import PassageIndex

WIDTH = 12
Table = NDArray[np.float32]


def ranked(scores: Table, possible: NDArray[np.bool_], k: int) -> Hits:
    """The k best possible rows of each line: score descending, then row ascending."""
    hits = Hits.missing(len(scores), k)
    for query, line in enumerate(scores):
        order = np.lexsort((np.arange(len(line)), -line))
        best = order[possible[query][order]][:k]
        hits.rows[query, : len(best)] = best
        hits.scores[query, : len(best)] = line[best]
    return hits


def dense_scores(queries: Table, documents: Table, metric: str) -> Table:
    """float64 scores row by row, rounded once."""
    scores = np.zeros((len(queries), len(documents)), dtype=np.float32)
    for i, query in enumerate(queries.astype(np.float64)):
        for j, document in enumerate(documents.astype(np.float64)):
            if metric == "l2":
                value = -float(((query - document) ** 2).sum())
            else:
                value = float((query * document).sum())
                length = float(np.linalg.norm(query) * np.linalg.norm(document))
                if metric == "cosine":
                    value = value / length if length else 0.0
            scores[i, j] = value
    return scores


def sparse_scores(queries: Table, documents: Table) -> tuple[Table, NDArray[np.bool_]]:
    """Sequential float32 sums over ascending terms, and who shares a term."""
    scores = np.zeros((len(queries), len(documents)), dtype=np.float32)
    for term in range(min(queries.shape[1], documents.shape[1])):
        scores += queries[:, term, None] * documents[None, :, term]
    both = min(queries.shape[1], documents.shape[1])
    shared = ((queries[:, None, :both] > 0) & (documents[None, :, :both] > 0)).any(axis=2)
    return scores, shared


@dataclass(frozen=True)
class Kind:
    """One kind of index: how to make it, its vectors, and its brute force."""

    name: str
    make: Callable[[], Index]
    metric: str = ""
    tokens: bool = False  # each vector is that of a text of one token

    @property
    def is_sparse(self) -> bool:
        return not self.metric

    def table(self, rng: np.random.Generator, count: int) -> Table:
        """Small whole numbers: exact in every order of summing, with many ties and duplicates."""
        if self.is_sparse:
            return rng.integers(0, 3, (count, WIDTH)).astype(np.float32) * (
                rng.random((count, WIDTH)) < 0.4
            )
        if self.metric == "cosine":
            return np.eye(WIDTH, dtype=np.float32)[rng.integers(0, WIDTH, count)]
        return rng.integers(-2, 3, (count, WIDTH)).astype(np.float32)

    def vectors(self, table: Table) -> Any:
        if self.tokens:
            return TokenVectors(table, np.arange(len(table) + 1))
        return sparse.csr_array(table) if self.is_sparse else table

    def expected(
        self, queries: Table, documents: Table, k: int, live: NDArray[np.bool_] | None = None
    ) -> Hits:
        possible = np.ones((len(queries), len(documents)), dtype=np.bool_)
        if self.is_sparse:
            scores, possible = sparse_scores(queries, documents)
        else:
            scores = dense_scores(queries, documents, self.metric)
        return ranked(scores, possible if live is None else possible & live, k)


def augmented_funnel() -> Index:
    """Every type that holds another: rescoring makes the ties of the reduction exact again."""
    reduction = AugmentedIndex(FaissIndex("Flat", metric="l2"), MipsToL2(max_norm=20.0))
    return FunnelIndex(None, 100, first=FunnelIndex(8, 100, first=reduction))


def query_graph() -> Index:
    """A walk that begins with every document; its links are made, kept and saved all the same."""
    index = QueryGraphIndex(entries=64, neighbours=3, depth=4)
    index.learn(np.eye(WIDTH, dtype=np.float32))
    return index


KINDS = [
    Kind("flat-ip", FlatIndex, "ip"),
    Kind("flat-cosine", lambda: FlatIndex("cosine"), "cosine"),
    Kind("flat-l2", lambda: FlatIndex("l2"), "l2"),
    Kind("inverted", InvertedIndex),
    Kind("faiss-ip", lambda: FaissIndex("Flat", metric="ip"), "ip"),
    Kind("faiss-l2", lambda: FaissIndex("Flat", metric="l2"), "l2"),
    Kind("faiss-cosine", lambda: FaissIndex("Flat", metric="cosine"), "cosine"),
    Kind("faiss-rescored-ip", lambda: FaissIndex("Flat", metric="ip", rescore=2), "ip"),
    Kind("faiss-rescored-l2", lambda: FaissIndex("Flat", metric="l2", rescore=2), "l2"),
    Kind("faiss-binary-rescored", lambda: FaissIndex("BFlat", rescore=99), "ip"),
    Kind("funnel-ip", lambda: FunnelIndex(4, 100), "ip"),
    Kind("funnel-l2", lambda: FunnelIndex(4, 100, metric="l2"), "l2"),
    Kind("funnel-cosine", lambda: FunnelIndex(4, 100, metric="cosine"), "cosine"),
    Kind("augmented", lambda: AugmentedIndex(FlatIndex(), DocumentBias(missing=0.0)), "ip"),
    Kind("augmented-funnel", augmented_funnel, "ip"),
    Kind("tokens", lambda: TokenIndex("float32"), "ip", tokens=True),
    Kind(
        "tokens gather",
        lambda: TokenIndex("float32", mode="gather", candidates=1_000),
        "ip",
        tokens=True,
    ),
    Kind("query_graph", query_graph, "ip"),
    Kind("passages-flat", lambda: PassageIndex(FlatIndex()), "ip"),
    Kind("passages-inverted", lambda: PassageIndex(InvertedIndex()), ""),
]


def of_the_table() -> list[Kind]:
    """Every type of the table that has no kind above: made without arguments, exact."""
    covered = {FmIndex, TrieIndex}  # of token sequences: no vectors, tests of their own
    covered |= {resolve(INDEXES[name]) for name in DATABASES}  # which tests of their own start
    covered |= {type(kind.make()) for kind in KINDS}
    kinds = []
    for name, target in INDEXES.items():
        if name in DATABASES:  # they need one that runs: ``tests/indexing/databases`` starts it
            continue
        index_type = resolve(target)
        if issubclass(index_type, Index) and index_type not in covered:
            kinds.append(Kind(name, index_type, index_type().metric or ""))
    return kinds


@pytest.fixture(params=[*KINDS, *of_the_table()], ids=lambda k: k.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


def assert_same(found: Hits, expected: Hits, *, rows: bool = True) -> None:
    """Equal scores, and equal rows unless the index chooses between ties itself."""
    assert found.rows.dtype == np.int64
    assert found.scores.dtype == np.float32
    np.testing.assert_array_equal(found.scores, expected.scores)
    if rows:
        np.testing.assert_array_equal(found.rows, expected.rows)
    else:
        np.testing.assert_array_equal(found.rows < 0, expected.rows < 0)


@pytest.fixture
def same() -> Callable[..., None]:
    return assert_same
