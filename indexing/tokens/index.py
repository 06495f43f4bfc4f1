"""MaxSim over documents' token vectors, exactly."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing.hits import Hits, Mask, Rows
from sluice.indexing.index import SearchParameters
from sluice.indexing.kernels.calls import notice_once
from sluice.indexing.recall import NOTE, MeasuredIndex
from sluice.indexing.storage.rows import fact
from sluice.indexing.tokens.gather.recall import MeasuredRecall
from sluice.indexing.tokens.gather.settings import (
    PARAMETERS,
    GatherSettings,
    Mode,
    check_parameters,
    checked_mode,
)
from sluice.indexing.tokens.gather.state import Gathering
from sluice.indexing.tokens.storage.rows import TokenRows, check_halves
from sluice.indexing.tokens.storage.segment import (
    RESIDUAL_BITS,
    Store,
    checked_store,
    checked_tokens,
)

log = logging.getLogger("sluice")

SAMPLE = 4096  # documents that a codebook is learnt from
CHOICE_NOTE = "gather"  # why it has its depth; empty where ``candidates`` are set


class TokenMatches(NamedTuple):
    """Which token of a document each token of a query met: their product is its part of the score.

    ``positions`` is int64 ``[query tokens]``, -1 where the document has no tokens; ``products``
    float32, whose sum in float64 is the score before it is rounded.
    """

    positions: NDArray[np.int64]
    products: NDArray[np.float32]


class TokenIndex(MeasuredIndex):
    """Every query against every document by MaxSim, exactly.

    The score of a document is the sum, over the query's token vectors, of the largest inner
    product with any of the document's (Khattab and Zaharia, 2020). Vectors are ``TokenVectors``.
    A document without tokens is never a hit, and a query without tokens has none; a vector of
    zeros is a token like any other, whose product is 0.

    ``store`` is how a token vector of d dimensions is kept. ``float32`` and ``float16`` keep its
    values, and 8-bit codes beside them to search by (5 d + 4 and 3 d + 4 bytes); ``int8`` keeps
    the codes alone (d + 4); ``residual4`` and ``residual2`` keep four and two bits a dimension,
    the distance from one of up to 1,024 centroids (d / 2 + 4 and d / 4 + 4; as PLAID, Santhanam et
    al., 2022). What a store gives back
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

    ``mode: gather`` scores only the ``candidates`` whose tokens lie near the centroids of the
    query's (``CentroidGather``), each exactly; ``probes`` centroids of each query token are looked
    at. Where ``candidates`` is not set, saving the index chooses the least that reaches ``recall``
    (.99) at 10 on sampled queries. What it finds is measured and noted (``recall_note``).
    ``mode: auto`` prepares a gather from 10,000 documents on, and uses it where it is faster than
    exact search and exact search takes longer than ``latency_ms``; an index that grows beyond them
    stays exact until ``compact``, and says so (``advice``). A search's own ``params``: ``mode``
    (exact or gather), ``candidates`` and ``probes``.
    """

    type_name = "tokens"

    def __init__(
        self,
        store: Store = "int8",
        *,
        mode: Mode = "exact",
        candidates: int | None = None,
        probes: int | None = None,
        recall: float | None = None,
        latency_ms: float | None = None,
        seed: Annotated[int, "The seed of a new projection, and of new markers (13)."] = 13,
    ) -> None:
        super().__init__()
        self.store: Store = checked_store(store)
        self.mode: Mode = checked_mode(mode)
        self.settings = GatherSettings.checked(self.mode, candidates, probes, recall, latency_ms)
        self.seed = whole_number(seed, "seed", 0)
        self._vectors = TokenRows(self.store)
        self._gathering = (
            None if self.mode == "exact" else Gathering(self.mode, self.settings, self.seed)
        )

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
        """Bytes of codes, values, bounds and codebook, and of the gather's lists."""
        own = 0 if self._gathering is None else self._gathering.gather.size_bytes
        return self._vectors.nbytes + own

    @property
    def resident_bytes(self) -> int:
        """Bytes of all but the values: of these, only tokens that may be a maximum are read."""
        values = {"float32": 4, "float16": 2}.get(self.store, 0)
        return self.size_bytes - values * self.tokens * (self.width or 0)

    @property
    def recall_note(self) -> MeasuredRecall | None:
        """What the gather was measured to find of the exact best; None where nothing was."""
        return MeasuredRecall.from_note(self.notes.get(NOTE))

    @property
    def searches(self) -> str:
        """How it searches: ``exact`` or ``gather``; ``mode: auto`` decides when it is measured.

        Where no centroids are learnt, such as of few documents, ``auto`` searches exactly.
        """
        gathering = self._gathering
        if gathering is None or not gathering.gather.trained:
            return "exact"
        return gathering.searches

    def empty(self) -> Self:
        """Return an index without documents that has the settings of this one, not its codebook."""
        return type(self)(self.store, mode=self.mode, seed=self.seed, **self.settings.as_dict())

    def training_rows(self, documents: int) -> int:
        """Return how many sample documents ``train`` would like; 0 where nothing is learnt."""
        learns = self.store in RESIDUAL_BITS and self._vectors.codebook is None
        wanted = min(documents, SAMPLE) if learns else 0
        if self._gathering is not None:
            wanted = max(wanted, self._gathering.training_rows(documents))
        return wanted

    def train(self, sample: Any) -> None:
        """Learn the codebook of residuals, and centroids, from documents like those to come."""
        documents = self._checked(sample, "sample")
        if self.rows:
            raise DataError("train: the index already holds documents; make a new one")
        self._learn(documents)
        self._vectors.dim = documents.dim
        if self._gathering is not None:
            self._gathering.train(documents)

    def _learn(self, documents: TokenVectors) -> None:
        if bits := RESIDUAL_BITS.get(self.store):
            from sluice.indexing.tokens.storage.codebook import learn_codebook

            self._vectors.codebook = learn_codebook(documents, self.seed, bits)

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

    def measure_recall(self, queries: TokenVectors | None = None) -> MeasuredRecall | None:
        """Measure what the gather finds of the exact best, and note it; None if all is exact.

        Where no ``candidates`` are set, the depth is chosen first. ``queries`` should be real
        ones, of which at most 200 are drawn; without them, windows of documents' tokens serve.
        Saving an index that was never measured does this.
        """
        if self._gathering is None:
            return None
        given = None if queries is None else self._checked(queries, "queries")
        measured = self._gathering.measured(self, given)
        if measured is not None:
            self.notes[NOTE] = measured.as_dict()
            self.notes[CHOICE_NOTE] = self._gathering.reason
        return measured

    @property
    def advice(self) -> str:
        """What to do about a mode that waits for documents it has by now; empty if it does not."""
        return "" if self._gathering is None else self._gathering.waiting(len(self))

    def search_tokens(self, queries: TokenVectors, k: int, parameters: Mapping[str, Any]) -> Hits:
        """Return hits with these parameters alone, see ``search``."""
        return self._reader()._hits(queries, k, None, dict(parameters))

    def live_rows(self) -> Rows:
        """Return the rows of live documents that have tokens, ascending."""
        filled = self._vectors.lengths() > 0
        allowed = self._live.allowed()
        return np.flatnonzero(filled if allowed is None else filled & allowed)

    def add(self, vectors: Any) -> Rows:
        """Append documents; a recall that was measured before says how many came since."""
        before = self.advice
        rows = super().add(vectors)
        if self.advice and not before:
            log.warning("tokens: %s", self.advice)
        return rows

    def compact(self) -> Rows:
        """Drop deleted rows, see ``Index.compact``; ``auto`` prepares a gather if it waits to."""
        moved = super().compact()
        if self._gathering is not None:
            with self._changing:
                self._gathering.prepare(self._vectors)
        return moved

    def save(self, path: str | Path) -> None:
        """Write the index, see ``Index.save``; a gather that was never measured is, before."""
        if self.recall_note is None:
            self.measure_recall()
        super().save(path)

    @property
    def _parameters(self) -> SearchParameters:
        return SearchParameters(() if self._gathering is None else PARAMETERS, check_parameters)

    def _checked(self, vectors: Any, what: str) -> TokenVectors:
        return checked_tokens(vectors, self.width, what)

    def _append(self, documents: TokenVectors) -> None:
        if self.store == "float16":
            check_halves(documents)
        book = self._vectors.codebook
        blank = book is not None and book.blank and not self.tokens and len(documents.values)
        if self.store in RESIDUAL_BITS and (book is None or blank):
            self._learn(documents)
            log.info(
                "tokens: no codebook was learnt before the first add; learnt from its %s documents",
                f"{len(documents):,}",
            )
        gathering = self._gathering
        if gathering is None:
            self._vectors.append(documents)
            return
        gathering.learn_from_first(documents)
        assigned = gathering.gather.assigned(documents)
        self._vectors.append(documents)
        gathering.gather.append(assigned)

    def _search(
        self, queries: TokenVectors, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        from sluice.indexing.tokens.search.search import TokenSearch  # numba

        with notice_once():
            if self._gathering is None:
                return TokenSearch(self._vectors, queries).hits(k, allowed)
            exact = partial(TokenSearch, self._vectors)
            return self._gathering.search(exact, queries, k, allowed, parameters)

    def _documents(self, rows: Rows) -> TokenVectors:
        return self._vectors.gather(rows)

    def _keep_only(self, allowed: Mask) -> None:
        self._vectors.keep_only(allowed)
        if self._gathering is not None:
            self._gathering.gather.keep_only(allowed)

    def _stored_rows(self) -> int:
        return len(self._vectors)

    def _write(self, folder: Path) -> dict[str, Any]:
        facts = {"seed": self.seed, **self._vectors.write(folder)}
        if self._gathering is not None:
            facts["gathering"] = self._gathering.write(folder)
        return facts

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        try:
            store = checked_store(fact(facts, "store", str, folder))
        except ConfigError as error:
            raise IndexFormatError(f"{folder}: {error}") from None
        index = cls(store, seed=fact(facts, "seed", int, folder))
        index._vectors = TokenRows.read(store, folder, facts)
        if "gathering" in facts:
            own = fact(facts, "gathering", dict, folder)
            index._gathering = Gathering.read(folder, own, index._vectors, index.seed)
            index.mode, index.settings = index._gathering.mode, index._gathering.settings
        return index
