"""An index that a worker searches; what is read of single rows is read in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from sluice.encoders.foundation.errors import ConfigError, IndexFormatError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing.hits import Hits, LiveRows, Mask, Rows
from sluice.indexing.index import Index, Parameters, SearchParameters
from sluice.indexing.storage.exact_scores import Metric


@dataclass(frozen=True, slots=True)
class RemoteFacts:
    """What a worker tells of the index that it has opened."""

    form: type[Index]
    metric: Metric | None
    width: int | None
    rows: int
    deleted: Rows
    by_passages: bool
    parameters: tuple[str, ...]
    size_bytes: int
    resident_bytes: int
    encoder_fingerprint: str


class Searcher(Protocol):
    """A worker that has opened the index; ``OSError`` where it does not answer."""

    def begin(
        self, queries: Any, k: int, keep: Mask | None, params: Parameters
    ) -> Callable[[], Hits]:
        """Ask for the hits; return what waits for them, and raises what went wrong."""

    def winning_passages(self, vector: Any, rows: Rows, params: Parameters) -> Rows:
        """Return the number of each document's best passage."""


class RemoteIndex(Index):
    """Stands for an index that a worker has opened: queries go there, rows and scores come back.

    ``opened`` opens the index in this process, where explanations, stored vectors and the planner
    are read; it is called when one of them is asked for. Nothing can be changed.
    """

    def __init__(self, facts: RemoteFacts, searcher: Searcher, opened: Callable[[], Index]) -> None:
        super().__init__()
        self._facts, self._searcher, self._opened = facts, searcher, opened
        self.metric = facts.metric
        self.encoder_fingerprint = facts.encoder_fingerprint
        self._live = LiveRows(facts.rows, facts.deleted)

    @cached_property
    def local(self) -> Index:
        """The index, opened in this process."""
        return self._opened()

    @property
    def form(self) -> type[Index]:
        """The class that holds the vectors as they were encoded."""
        return self._facts.form

    @property
    def by_passages(self) -> bool:
        """Whether it holds passages."""
        return self._facts.by_passages

    @property
    def width(self) -> int | None:
        """The width of its vectors."""
        return self._facts.width

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays that are stored."""
        return self._facts.size_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes that should fit into the worker's memory."""
        return self._facts.resident_bytes

    @property
    def innermost(self) -> Index:
        """The index that holds the vectors as they were encoded, opened in this process."""
        return self.local.innermost

    # Searching.

    def begin(
        self, queries: Any, k: int, keep: Mask | None, params: Parameters
    ) -> Callable[[], Hits]:
        """Ask for the hits of checked queries; return what waits for them."""
        return self._searcher.begin(queries, k, keep, params)

    def search(
        self,
        vectors: Any,
        k: int,
        *,
        keep: ArrayLike | None = None,
        params: Parameters | None = None,
    ) -> Hits:
        """Return the worker's hits; ``OSError`` where it does not answer."""
        mask = None if keep is None else self._live.allowed(keep)
        return self.begin(self._checked(vectors, "queries"), k, mask, params or {})()

    def winning_passages(
        self, vector: Any, rows: ArrayLike, *, params: Parameters | None = None
    ) -> Rows:
        """Return the number of each document's best passage, see ``PassageIndex``."""
        return self._searcher.winning_passages(
            self._checked(vector, "queries"), np.asarray(rows, np.int64), params or {}
        )

    @property
    def _parameters(self) -> SearchParameters:
        return SearchParameters(self._facts.parameters)

    def _checked(self, vectors: Any, what: str) -> Any:
        """Return what can be sent; the worker checks it."""
        known = isinstance(vectors, TokenVectors | sparse.csr_array) or (
            isinstance(vectors, np.ndarray) and vectors.dtype == np.float32
        )
        if known and len(vectors.shape) == 2:
            return vectors
        return self.local._checked(vectors, what)

    def _search(
        self, queries: Any, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        return self.begin(queries, k, allowed, parameters)()

    # What is read in this process.

    def explain(self, query: Any, row: int) -> Any:
        """Return what each term adds to the score of ``row``."""
        return self.local.explain(query, row)

    def plan(self, queries: Any, k: int, *, params: Parameters | None = None) -> Any:
        """Return what the planner chooses."""
        return self.local.plan(queries, k, params=params)

    def _documents(self, rows: Rows) -> Any:
        return self.local.documents(rows)

    # Changes belong to the retriever's folder, not to what searches it.

    def _append(self, documents: Any) -> None:
        self._refuse()

    def delete(self, rows: ArrayLike) -> None:
        """Refuse."""
        self._refuse()

    def _keep_only(self, allowed: Mask) -> None:
        self._refuse()

    def _write(self, folder: Path) -> dict[str, Any]:
        return self._refuse()

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        raise IndexFormatError(f"{folder}: a worker's index is opened with its retriever")

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            "RemoteIndex: a worker searches it, and it cannot be changed; change the retriever"
        )
