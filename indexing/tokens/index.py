"""MaxSim over documents' token vectors, exactly."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.indexing.hits import Hits
from sluice.indexing.index import Index
from sluice.indexing.kernels.calls import notice_once
from sluice.indexing.live_rows import Mask, Rows
from sluice.indexing.storage.arrays import fact
from sluice.indexing.tokens.storage.rows import TokenRows, check_halves
from sluice.indexing.tokens.storage.segment import (
    Store,
    checked_store,
    checked_tokens,
    token_bytes,
)

log = logging.getLogger("sluice")

SAMPLE = 4096  # documents that a codebook is learnt from


class TokenMatches(NamedTuple):
    """Which token of a document each token of a query met: their product is its part of the score.

    ``positions`` is int64 ``[query tokens]``, -1 where the document has no tokens; ``products``
    float32, whose sum in float64 is the score before it is rounded.
    """

    positions: NDArray[np.int64]
    products: NDArray[np.float32]


class TokenIndex(Index):
    """Every query against every document by MaxSim, exactly.

    The score of a document is the sum, over the query's token vectors, of the largest inner
    product with any of the document's (Khattab and Zaharia, 2020). Vectors are ``TokenVectors``.
    A document without tokens is never a hit, and a query without tokens has none; a vector of
    zeros is a token like any other, whose product is 0.

    ``store`` is how a token vector of d dimensions is kept. ``float32`` and ``float16`` keep its
    values, and 8-bit codes beside them to search by (5 d + 4 and 3 d + 4 bytes); ``int8`` keeps
    the codes alone (d + 4); ``residual4`` keeps four bits a dimension, the distance from one of
    up to 1,024 centroids (d / 2 + 4; as PLAID, Santhanam et al., 2022). What a store gives back
    (``documents``) are the stored vectors. Codebooks are learnt by ``train`` from sample
    documents, drawn by ``seed``, else from those of the first ``add``.

    The result equals brute force over the stored vectors, rows included: an inner product is
    summed in float64 in an order that is a function of the width alone, the largest products are
    added in the order of the query's tokens and rounded to float32 once, so a document's score
    does not depend on how it was found, and ties go to the lower row. A product of 8-bit codes
    gives each document a least and a largest possible score, with proven bounds on what rounding
    lost; those that may be among the ``k`` best are scored exactly. Memory of a search: 8 bytes
    for each document and query, of 64 queries at a time. Searches run on ``NUMBA_NUM_THREADS``
    threads.
    """

    type_name = "tokens"

    def __init__(self, store: Store = "int8", *, seed: int = 13) -> None:
        super().__init__()
        self.store: Store = checked_store(store)
        self.seed = whole_number(seed, "seed", 0)
        self._vectors = TokenRows(self.store)

    @property
    def width(self) -> int | None:
        """Dimensions of the vectors; None before the first ``train`` or ``add``."""
        return self._vectors.dim

    @property
    def tokens(self) -> int:
        """Number of stored token vectors, those of deleted documents included."""
        return self._vectors.tokens

    @property
    def size_bytes(self) -> int:
        """Bytes of codes, values, bounds and codebook."""
        return self._vectors.nbytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of all but the values: of these, only tokens that may be a maximum are read."""
        values = {"float32": 4, "float16": 2}.get(self.store, 0)
        return self._vectors.nbytes - values * self.tokens * (self.width or 0)

    def empty(self) -> Self:
        """Return an index without documents that has the settings of this one, not its codebook."""
        return type(self)(self.store, seed=self.seed)

    def training_rows(self, documents: int) -> int:
        """Return how many sample documents ``train`` would like; 0 where nothing is learnt."""
        learns = self.store == "residual4" and self._vectors.codebook is None
        return min(documents, SAMPLE) if learns else 0

    def train(self, sample: Any) -> None:
        """Learn the codebook of ``residual4`` from documents like those to be added."""
        documents = self._checked(sample, "sample")
        if self.rows:
            raise DataError("train: the index already holds documents; make a new one")
        self._learn(documents)

    def _learn(self, documents: TokenVectors) -> None:
        if self.store == "residual4":
            from sluice.indexing.tokens.storage.codebook import learn_codebook

            self._vectors.codebook = learn_codebook(documents, self.seed)
            self._vectors.dim = documents.dim

    def spool(self, folder: Path) -> None:
        """Keep codes and values added from now on in files."""
        self._vectors.spool(folder)

    def exact_scores(self, query: NDArray[np.float32], rows: ArrayLike) -> NDArray[np.float32]:
        """Return the MaxSim of one query, ``[tokens, dim]``, with any rows: float32 ``[n]``.

        Deleted rows are scored too; -inf where the query or the document has no tokens. The
        score of a row is bit for bit that of ``search``.
        """
        queries = self._checked(TokenVectors.of([query], self.width or 0), "query")
        numbers = self._live.known(np.asarray(rows), "rows")
        if not len(numbers):
            return np.zeros(0, np.float32)
        from sluice.indexing.tokens.search.search import TokenSearch

        with notice_once():
            return TokenSearch(self._vectors, queries).scores(0, numbers)

    def best_of(self, vectors: TokenVectors, candidates: NDArray[np.int64], k: int) -> Hits:
        """Return the ``k`` best of each query's candidate rows ``[n, c]`` by exact score.

        Ties go to the lower row; -1 is skipped, and a row counts once. Deleted rows are scored
        too: the candidates are the caller's. Bounds on the scores spare most exact ones.
        """
        queries = self._checked(vectors, "queries")
        if candidates.ndim != 2 or len(candidates) != len(queries):
            raise DataError(
                f"candidates: shape {candidates.shape}, expected a line of rows for each of the "
                f"{len(queries):,} queries"
            )
        self._live.known(candidates[candidates >= 0], "candidates")
        k = whole_number(k, "k", 0)
        if not k or not self.rows:
            return Hits.missing(len(queries), k)
        from sluice.indexing.tokens.search.search import TokenSearch

        with notice_once():
            return TokenSearch(self._vectors, queries).best_of(candidates, k)

    def matches(self, query: NDArray[np.float32], row: int) -> TokenMatches:
        """Return which token of a document each token of a query, ``[tokens, dim]``, met.

        Of equal products the first token is meant.
        """
        queries = self._checked(TokenVectors.of([query], self.width or 0), "query")
        numbers = self._live.known(np.asarray([row]), "row")
        exact = queries.values.astype(np.float64)
        positions, products = np.full(len(exact), -1, np.int64), np.empty(len(exact))
        from sluice.indexing.tokens.search.scan import match_tokens

        ((segment, places, _),) = self._vectors.places(numbers)
        match_tokens(segment, int(places[0]), exact, positions, products)
        return TokenMatches(positions, products.astype(np.float32))

    def _checked(self, vectors: Any, what: str) -> TokenVectors:
        return checked_tokens(vectors, self.width, what)

    def _append(self, documents: TokenVectors) -> None:
        if self.store == "float16":
            check_halves(documents)
        if self.training_rows(len(documents)):
            self._learn(documents)
            log.info(
                "tokens: no codebook was learnt before the first add; learnt from its %s documents",
                f"{len(documents):,}",
            )
        self._vectors.append(documents)

    def _search(
        self, queries: TokenVectors, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        from sluice.indexing.tokens.search.search import TokenSearch  # numba

        with notice_once():
            return TokenSearch(self._vectors, queries).hits(k, allowed)

    def _documents(self, rows: Rows) -> TokenVectors:
        return self._vectors.gather(rows)

    def _keep_only(self, allowed: Mask) -> None:
        self._vectors.keep_only(allowed)

    def _stored_rows(self) -> int:
        return len(self._vectors)

    def _write(self, folder: Path) -> dict[str, Any]:
        return {"seed": self.seed, **self._vectors.write(folder)}

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        try:
            store = checked_store(fact(facts, "store", str, folder))
        except ConfigError as error:
            raise IndexFormatError(f"{folder}: {error}") from None
        index = cls(store, seed=fact(facts, "seed", int, folder))
        index._vectors = TokenRows.read(store, folder, facts)
        return index


def bytes_per_token(store: Store, dim: int) -> int:
    """Return how many bytes a stored token vector takes, its share of bounds left out."""
    return token_bytes(store, dim)
