"""Ranks documents of several vectors by the query's attention to them, in two steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, IndexFormatError, suggest
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing.checks import Dense, checked_dense
from sluice.indexing.flat.index import FlatIndex
from sluice.indexing.hits import Hits, Mask, Rows, best_first
from sluice.indexing.index import Index, SearchParameters
from sluice.indexing.storage.exact_scores import exact_scores
from sluice.indexing.storage.rows import fact
from sluice.indexing.tokens.index import TokenIndex
from sluice.indexing.tokens.storage.segment import checked_tokens
from sluice.indexing.wrappers.funnel import (
    Spec,
    WrappingIndex,
    inner_index,
    metric_of,
    open_inner,
    write_inner,
)
from sluice.indexing.wrappers.passages import PassageIndex

Mode = Literal["two_step", "exhaustive"]
MODES: Final[tuple[Mode, ...]] = ("two_step", "exhaustive")
INNER = "inner"  # folder of the first step's index, and prefix of its parameters named as ours
OWN: Final = ("mode", "factor")  # parameters of a search
FACTOR = 4  # candidates of the first step for each hit
FEWEST = 100  # candidates, however few the hits
GATHERED = 1 << 14  # documents whose vectors are gathered at a time
Scores = NDArray[np.float32]


def attended(query: Dense, documents: TokenVectors) -> Scores:
    """Return the scores of one query ``[dim]`` with documents, float32 ``[n]``.

    <q, sum_j a_j c_j> with a = softmax_j <q, c_j> over a document's own vectors c. (Tang et al.
    2021.) Never more than the largest <q, c_j>; -inf for a document without vectors. A score is
    summed in float64 in an order that the document alone decides.
    """
    scores = np.full(len(documents), -np.inf, np.float32)
    filled = np.flatnonzero(documents.lengths)
    if not len(filled):
        return scores
    values = documents.values
    products = exact_scores(query, values, "ip", 0.0, np.zeros(len(values))).astype(np.float64)
    starts, lengths = documents.bounds[filled], documents.lengths[filled]
    shares = np.exp(products - np.repeat(np.maximum.reduceat(products, starts), lengths))
    sums = np.add.reduceat(shares * products, starts)
    scores[filled] = sums / np.add.reduceat(shares, starts)
    return scores


class PseudoQueryIndex(WrappingIndex):
    """Documents of several vectors each, ranked by the attention of one query vector to them.

    Documents are ``TokenVectors``, queries ``[n, dim]``, as a pseudo-query encoder makes them;
    documents ``[n, dim]`` have one vector each, and inner products for scores.
    ``mode: two_step`` finds the documents of the largest single inner product, ``factor`` times as
    many as hits are asked for and 100 at least, and scores these by attention (``attended``). It is
    exact where they are all documents; ``mode: exhaustive`` scores all. (Tang et al. 2021.) A
    document without vectors is never a hit.

    ``inner`` is the index of the first step, empty or described by its spec: any dense one of inner
    products (``{type: flat}``, ``faiss``), which holds each vector as a row, or ``{type: tokens}``,
    which keeps them as the token vectors of late interaction (int8, float16 ...). The second step
    reads the vectors that it holds; nothing is stored twice. A search's own ``params``: ``mode``,
    ``factor`` and those of ``inner``, ``inner_mode`` where the name is one of these.
    """

    type_name = "pseudo_queries"

    def __init__(
        self,
        inner: Annotated[
            Index | Spec | None,
            "The index of the first step: any dense one of inner products, or tokens; left "
            "out, flat.",
        ] = None,
        *,
        mode: Annotated[
            Mode, "two_step scores the best by their nearest vector; exhaustive all."
        ] = "two_step",
        factor: Annotated[
            int | None, "Candidates of the first step for each hit: 4, and 100 at least."
        ] = None,
    ) -> None:
        super().__init__(_holding(FlatIndex() if inner is None else inner), "ip")
        if mode == "exhaustive" and factor is not None:
            raise ConfigError(
                "factor has no effect with mode: exhaustive; remove it, or set mode: two_step"
            )
        self.mode: Mode = _checked_mode(mode)
        self.factor = whole_number(FACTOR if factor is None else factor, "factor", 1)

    @property
    def held(self) -> Index:
        """The index that holds the single vectors."""
        return self.inner.inner if isinstance(self.inner, PassageIndex) else self.inner

    @property
    def width(self) -> int | None:
        """Dimensions of the vectors; None before the first ``add``."""
        return self.held.width

    @property
    def size_bytes(self) -> int:
        """Bytes of the inner index, and of where each document's vectors are."""
        return self.inner.size_bytes

    def empty(self) -> Self:
        """Return an index without documents that has the settings of this one."""
        factor = None if self.mode == "exhaustive" else self.factor
        return type(self)(self.held.empty(), mode=self.mode, factor=factor)

    def check_fit(self, width: int, documents: int) -> None:
        """Raise if the inner index cannot hold vectors of this width."""
        self.inner.check_fit(width, documents)

    def train(self, sample: Any) -> None:
        """Train the inner index on the vectors of sample documents."""
        vectors = self._checked(sample, "sample")
        self.inner.train(vectors if isinstance(self.inner, TokenIndex) else vectors.values)

    def _checked(self, vectors: Any, what: str) -> Any:
        if what == "queries":
            return checked_dense(vectors, self.width, what)
        if isinstance(vectors, np.ndarray):
            vectors = _single(checked_dense(vectors, self.width, what))
        return checked_tokens(vectors, self.width, what)

    def _append(self, documents: TokenVectors) -> None:
        if isinstance(self.inner, PassageIndex):
            self.inner.add(documents.values, documents.lengths)
        else:
            self.inner.add(documents)

    def _search(
        self, queries: Dense, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        mode = parameters.pop("mode", self.mode)
        candidates = max(parameters.pop("factor", self.factor) * k, FEWEST)
        hits = Hits.missing(len(queries), k)
        alive = np.arange(self.rows) if allowed is None else np.flatnonzero(allowed)
        if mode == "exhaustive" or candidates >= len(alive):
            found = [alive] * len(queries)
        else:
            names = self._inner_names(INNER, *OWN)
            own = {names[name]: value for name, value in parameters.items()}
            asked = queries if isinstance(self.inner, PassageIndex) else _single(queries)
            lines = self.inner.search(asked, candidates, keep=allowed, params=own).rows
            found = [np.sort(line[line >= 0]) for line in lines]
        for place, (query, rows) in enumerate(zip(queries, found, strict=True)):
            scores = self._scores(query, rows)
            scored = np.isfinite(scores)
            best, values = best_first(rows[scored], scores[scored], k)
            hits.rows[place, : len(best)], hits.scores[place, : len(best)] = best, values
        return hits

    def _scores(self, query: Dense, rows: Rows) -> Scores:
        blocks = range(0, len(rows), GATHERED)
        parts = [attended(query, self._documents(rows[at : at + GATHERED])) for at in blocks]
        return np.concatenate([np.zeros(0, np.float32), *parts])

    def _documents(self, rows: Rows) -> TokenVectors:
        if isinstance(self.inner, PassageIndex):
            values, counts = self.inner.vectors_of(rows)
            return TokenVectors(values, np.concatenate([[0], np.cumsum(counts)]))
        vectors: TokenVectors = self.inner.documents(rows)
        return vectors

    def _keep_only(self, allowed: Mask) -> None:
        self._drop_inner_rows(allowed)

    def _stored_rows(self) -> int:
        return self.inner.rows

    @property
    def _parameters(self) -> SearchParameters:
        names = () if self.mode == "exhaustive" else (*OWN, *self._inner_names(INNER, *OWN))
        return SearchParameters(names, self._check_values, by_mode=True)

    def _check_values(self, params: Mapping[str, Any]) -> None:
        _checked_mode(params.get("mode", "two_step"))
        if "factor" in params:
            whole_number(params["factor"], "params: factor", 1)
        names = self._inner_names(INNER, *OWN)
        own = {names[name]: value for name, value in params.items() if name in names}
        self.inner._parameters.check(own)

    def _write(self, folder: Path) -> dict[str, Any]:
        return {
            "mode": self.mode, "factor": self.factor,
            INNER: write_inner(self.inner, folder / INNER),
        }  # fmt: skip

    @classmethod
    def _open(cls, folder: Path, facts: Mapping[str, Any], allow: Collection[str]) -> Self:
        inner = open_inner(folder / INNER, fact(facts, INNER, dict, folder), allow)
        if not isinstance(inner, PassageIndex | TokenIndex):
            raise IndexFormatError(
                f"{folder}: inner is a {type(inner).__name__}, which holds one vector a document; "
                "rebuild the index"
            )
        index = cls.__new__(cls)
        WrappingIndex.__init__(index, inner, "ip")
        try:
            index.mode = _checked_mode(fact(facts, "mode", str, folder))
            index.factor = whole_number(fact(facts, "factor", int, folder), "factor", 1)
            metric = None if isinstance(inner, TokenIndex) else metric_of(inner.inner, INNER)
        except ConfigError as error:
            raise IndexFormatError(f"{folder}: {error}; rebuild the index") from None
        if metric not in (None, "ip"):
            raise IndexFormatError(f"{folder}: inner compares by {metric}; rebuild the index")
        return index


def _holding(inner: Index | Spec) -> PassageIndex | TokenIndex:
    """Return an empty index of documents of several vectors, by the index that holds these."""
    tokens = isinstance(inner, Mapping) and inner.get("type") == TokenIndex.type_name
    if tokens or isinstance(inner, TokenIndex):
        index = _built_tokens(inner)
        if index.rows:
            raise ConfigError(f"inner: has {index.rows:,} rows already, expected an empty index")
        return index
    held = inner_index(inner, INNER)
    if held.metric != "ip":
        raise ConfigError(
            f"inner.metric: {held.metric}: attention is by inner products; expected metric: ip"
        )
    if isinstance(held, PassageIndex | PseudoQueryIndex):
        raise ConfigError(
            f"inner: {type(held).__name__} holds several vectors a document by itself; expected "
            "one of single vectors, such as {type: flat}, or {type: tokens}"
        )
    return PassageIndex(held)


def _built_tokens(inner: Index | Spec) -> TokenIndex:
    from sluice.encoders.foundation.build import build
    from sluice.indexing.table import INDEXES

    index: Any = build(inner, INDEXES, where=INNER) if isinstance(inner, Mapping) else inner
    made: TokenIndex = index
    return made


def _checked_mode(name: str) -> Mode:
    for known in MODES:
        if name == known:
            return known
    raise ConfigError(
        f"mode is {name!r}, expected two_step or exhaustive{suggest(str(name), MODES)}"
    )


def _single(vectors: Dense) -> TokenVectors:
    """Return vectors as texts of one token, of which MaxSim is the largest inner product."""
    return TokenVectors(vectors, np.arange(len(vectors) + 1))
