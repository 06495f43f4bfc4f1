"""One state of a retriever: an encoder, index and documents that belong together, and searching.

A change builds a new state beside this one and replaces it when it is complete, so a search that
is under way finishes in the state it began with.
"""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import type_name
from sluice.encoders.foundation.errors import IndexFormatError
from sluice.encoders.foundation.numbers import plural
from sluice.encoders.foundation.progress import progress
from sluice.encoders.table import GIVEN
from sluice.indexing.databases.index import DatabaseIndex
from sluice.retrieval.documents.store import DocumentStore, open_documents
from sluice.retrieval.documents.where import (
    Condition,
    Where,
    apart_from_ids,
    conditions,
    matching_rows,
)
from sluice.retrieval.pipelines.tracing import Span, is_traced, note
from sluice.retrieval.retrievers.corpus.index_queries import query_vectors
from sluice.retrieval.retrievers.corpus.passages import PassageFinder, Passages, keep_vectors
from sluice.retrieval.retrievers.corpus.token_scores import TokenReader
from sluice.retrieval.retrievers.folder import (
    DOCUMENTS,
    HEAD,
    INDEX,
    Head,
    check_encoder,
    copy_retriever,
    open_placed_encoder,
    read_head,
)
from sluice.retrieval.runs.queries import DEPTH, Queries, SelfExcluding, Unseen
from sluice.retrieval.runs.run import Ranking, Run, canonical_order, without

if TYPE_CHECKING:
    from sluice.encoders.encoder import Encoder
    from sluice.indexing import Index
    from sluice.indexing.hits import Hits
    from sluice.retrieval.documents.columns import Mask
    from sluice.retrieval.pipelines.hit import Passage
    from sluice.retrieval.retrievers.shards.workers.crew import ShardWorkers

log = logging.getLogger("sluice")

BATCH = 512  # queries searched at a time
QUERY_VALUES = 1 << 26  # of queries' vectors that are wider than documents': 256 MB
MASKS = 8  # masks of the latest ``where``s that stay in memory

Part = TypeVar("Part")


class _Parts:
    """The encoder, index and documents of one ``retriever.json``, each opened when needed."""

    def __init__(self, state: RetrieverState, head: Head, encoder: Encoder | None) -> None:
        self.head = head
        self._state = state
        self._masks: dict[str, Mask] = {}  # of the latest ``where``s
        if encoder is not None:
            self.encoder = encoder

    @cached_property
    def encoder(self) -> Any:
        state = self._state
        return open_placed_encoder(
            state.path, self.head, allow=state.allow, options=state.options, quick=state.quick
        )

    @cached_property
    def index(self) -> Index:
        from sluice.indexing import open_index

        path, generation = self._state.path, self.head.index_generation
        if self.head.shards is not None:
            from sluice.retrieval.retrievers.shards.folder import open_sharded_index

            return open_sharded_index(
                path, self.head, self.store, self._state.allow, self._state.workers
            )
        index = open_index(path / INDEX, generation=generation, allow=self._state.allow)
        if index.encoder_fingerprint != self.head.encoder_fingerprint:
            raise IndexFormatError(
                f"{path}: the index was built with encoder {index.encoder_fingerprint[:12]}, "
                f"retriever.json says {self.head.encoder_fingerprint[:12]}; rebuild it"
            )
        if index.rows != self.store.rows_total:
            raise IndexFormatError(
                f"{path}: the index has {index.rows:,} rows, the document store "
                f"{self.store.rows_total:,}; they do not belong together: rebuild it"
            )
        return index

    @cached_property
    def store(self) -> DocumentStore:
        path, generation = self._state.path, self.head.documents_generation
        if self.head.shards is not None:
            from sluice.retrieval.retrievers.shards.folder import open_sharded_store

            return open_sharded_store(path, self.head)
        return open_documents(path / DOCUMENTS, generation=generation)

    def lasting(self) -> Self:
        """Open all that a change of the folder deletes; what is open stays readable."""
        _ = self.index, self.store
        if self.head.encoder_generation:
            _ = self.encoder
        return self

    def search(self, vectors: Any, k: int, where: Where | None, params: Mapping[str, Any]) -> Hits:
        """Search the index among the documents for which ``where`` holds.

        An index in a database is given the conditions; for others they become a mask of rows.
        """
        index = self.index
        if where is None:
            return index.search(vectors, k, params=params)
        if not (isinstance(index, DatabaseIndex) and index.filters):
            return index.search(vectors, k, keep=self.matching(where), params=params)
        keep, others = apart_from_ids(self.store, conditions(where))
        return index.search_where(vectors, k, others, keep=keep, params=params)

    def matching(self, where: Where) -> Mask:
        """Return the mask over rows, made once for a ``where``."""
        checked = conditions(where)
        key = repr(checked)
        mask = self._masks.get(key)
        if mask is None:
            mask = self._matching(checked)
            latest = list(self._masks.items())[1 - MASKS :]
            self._masks = dict([*latest, (key, mask)])  # a new dict: others may be reading
        return mask

    def _matching(self, where: Sequence[Condition]) -> Mask:
        if self.head.shards is None:
            return matching_rows(self.store, where)
        from sluice.retrieval.retrievers.shards.store import matching_in_shards

        return matching_in_shards(self.store, where)


class RetrieverState:
    """The state that ``head`` describes; each part is opened when it is first needed.

    The stage is ``Retriever``, which searches its current state. Where another process changed the
    folder before all parts were open, and one of them is gone, this becomes the folder's newer
    state as a whole; parts that were handed out stay those of the older.
    """

    def __init__(
        self,
        path: Path,
        head: Head,
        *,
        encoder: Encoder | None = None,
        allow: Collection[str] = (),
        options: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        quick: bool = False,
        workers: ShardWorkers | None = None,
    ) -> None:
        self.path = path
        self.workers = workers  # that search the shards, in place of this process
        self.name = head.name
        self.params = dict(params or {})  # of every search of the index; a call's own come first
        self.shard_set = None if head.shards is None else str(head.shards["set"])
        self.allow, self.options, self.quick = tuple(allow), dict(options or {}), quick
        if encoder is not None:
            check_encoder(path, head, encoder)
        self._given = encoder
        self._parts = _Parts(self, head, encoder)

    @property
    def head(self) -> Head:
        """The content of ``retriever.json`` for this state."""
        return self._parts.head

    @head.setter
    def head(self, head: Head) -> None:
        self._parts.head = head

    @property
    def encoder(self) -> Any:
        """The encoder the index is bound to."""
        return self._newest(lambda parts: parts.encoder)

    @encoder.setter
    def encoder(self, encoder: Any) -> None:
        self._parts.encoder = encoder

    @property
    def index(self) -> Index:
        """The index, memory-mapped."""
        return self._newest(lambda parts: parts.index)

    @index.setter
    def index(self, index: Index) -> None:
        self._parts.index = index

    @property
    def store(self) -> DocumentStore:
        """The ids and texts, memory-mapped."""
        return self._newest(lambda parts: parts.store)

    @store.setter
    def store(self, store: DocumentStore) -> None:
        self._parts.store = store

    @property
    def documents(self) -> DocumentStore:
        """The ids and texts for the hits of later searches, which will be of the same state."""
        return self._newest(_Parts.lasting).store

    def _newest(self, ask: Callable[[_Parts], Part]) -> Part:
        """Return something of this state's parts, or of the newer state's if this one's is gone."""
        while True:
            parts = self._parts
            try:
                return ask(parts)
            except (IndexFormatError, OSError):
                head = read_head(self.path)
                if head == parts.head:
                    raise
                if self._parts is parts:  # else another thread was faster
                    given = self._given
                    if given is not None and head.encoder_generation:
                        given = None  # it was that of the older documents
                    elif given is not None:
                        check_encoder(self.path, head, given)
                    self._parts = _Parts(self, head, given)

    @property
    def passages(self) -> Passages | None:
        """How documents are cut into passages; None if each is indexed as one text."""
        noted = self.head.passages
        return None if noted is None else Passages.noted(noted, str(self.path / HEAD))

    def copy_to(self, folder: Path) -> None:
        """Write a copy of this state's folder, in one step."""
        self._newest(lambda parts: copy_retriever(self.path, folder, parts.head))

    def open_arguments(self) -> dict[str, Any]:
        """Return the arguments of ``Retriever.open`` that open this folder in another process.

        An encoder that only a program can give, such as a function, goes as it is.
        """
        loaded, own = vars(self._parts).get("encoder"), self.head.encoder_type
        given = loaded is not None and type_name(loaded, GIVEN) in GIVEN
        return {
            "path": self.path.absolute(),
            "encoder": loaded if given else None,
            "allow": (*self.allow, own) if own and loaded is not None else self.allow,
            "params": self.params,
            "quick": self.quick,
            **self.options,
        }

    def searched_by(self, workers: ShardWorkers | None) -> RetrieverState:
        """Return this state with shards that ``workers`` search; None: this process."""
        made = RetrieverState(
            self.path, self.head, encoder=self._given, allow=self.allow, options=self.options,
            params=self.params, quick=self.quick, workers=workers,
        )  # fmt: skip
        if "encoder" in vars(self._parts):  # it is loaded
            made.encoder = self.encoder
        return made

    def forked(self, path: Path | None = None) -> RetrieverState:
        """Return this state in objects of their own, all open, which may be changed.

        ``path`` is that of a copy of the folder.
        """
        fork = RetrieverState(
            path or self.path, self.head, allow=self.allow, options=self.options,
            params=self.params,
        )  # fmt: skip
        changing = hooks_of(self.encoder).learner is not None
        fork._given = None if changing else self._given
        fork.encoder = copy.deepcopy(self.encoder) if changing else self.encoder
        _ = fork.index, fork.store
        return fork

    def run(
        self,
        queries: Queries,
        k: int | None = None,
        *,
        where: Where | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Run:
        """Search every query, see ``Retriever.run``."""
        with_text = self.with_text(queries)
        texts = [queries[query] for query in with_text]
        if texts:
            self._newest(_Parts.lasting)
        most = queries_at_a_time(self.encoder)
        if len(texts) > most:
            return self._in_blocks(queries, with_text, most, k, where=where, params=params)
        vectors = self.query_vectors(texts) if texts else ()
        keep_vectors(vectors)
        if texts and is_traced():
            unsure = hooks_of(self.encoder).uncertainty
            if unsure is not None:
                note({"uncertainty": dict(zip(with_text, unsure(vectors).tolist(), strict=True))})
        return self.nearest(queries, with_text, vectors, k, where=where, params=params)

    def _in_blocks(
        self, queries: Queries, with_text: Sequence[str], most: int, k: int | None, **options: Any
    ) -> Run:
        """Encode and search ``most`` queries at a time: all their vectors would not fit."""
        rankings = dict.fromkeys(queries, Ranking([], []))
        for start in range(0, len(with_text), most):
            block = with_text[start : start + most]
            vectors = self.query_vectors([queries[query] for query in block])
            found = self.nearest(queries, block, vectors, k, **options)
            rankings.update({query: found[query] for query in block})
        return Run(rankings, name=self.name)

    def query_vectors(self, texts: Sequence[str]) -> Any:
        """Return what the index searches with for queries."""
        return query_vectors(self.encoder, texts, self.index)

    def passages_of(self, query: str, doc_ids: Sequence[str], span: Span) -> list[Passage | None]:
        """Return the passage each document was found by, None for one that is not cut."""
        if self.passages is None:
            return [None] * len(doc_ids)
        finder = PassageFinder(self.passages, self.encoder, self.index, self.store, self.params)
        return finder.find(query, doc_ids, span)

    @property
    def token_reader(self) -> TokenReader:
        """What reads which tokens met, where the index holds token vectors."""
        kind = TokenReader
        if self.head.shards is not None:
            from sluice.retrieval.retrievers.shards.store import ShardedReader

            kind = ShardedReader
        return kind(self.encoder, self.index, self.store, self.passages is not None)

    def with_text(self, queries: Queries) -> list[str]:
        """Return the queries that are not blank; one warning counts the others."""
        blank = [query for query, text in queries.items() if not text.strip()]
        if blank:
            count = plural(len(blank), "empty query")
            log.warning("no hits for %s (first: %r)", count, blank[0])
        return [query for query, text in queries.items() if text.strip()]

    def nearest(
        self,
        queries: Queries,
        with_text: Sequence[str],
        vectors: Any,
        k: int | None = None,
        *,
        where: Where | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Run:
        """Search with the vectors of the queries ``with_text``, a row each; others have no hits."""
        depth = DEPTH if k is None else k
        parts = self._newest(_Parts.lasting)
        params = {**self.params, **(params or {})}
        excluding = isinstance(queries, SelfExcluding)
        seen = parts.store.rows(sorted(queries.seen) if isinstance(queries, Unseen) else [])
        most = min(depth + excluding + len(seen), len(parts.store))
        rankings = dict.fromkeys(queries, Ranking([], []))
        show = len(with_text) > 2 * BATCH
        with progress(f"search {self.name}", len(with_text), "queries", show=show) as advance:
            for start in range(0, len(with_text), BATCH):
                block = with_text[start : start + BATCH]
                part = vectors[start : start + BATCH]
                hits = parts.search(part, most, where, params)
                if len(seen):
                    hits = _apart_from(hits, seen, depth)
                for query, ranking in zip(block, _rankings(hits, parts.store), strict=True):
                    ranking = without(ranking, query) if excluding else ranking
                    rankings[query] = ranking[:depth]
                advance(len(block))
        return Run(rankings, name=self.name)


def queries_at_a_time(encoder: Any) -> int:
    """Return how many queries' vectors to hold together: those of a Hypencoder are large."""
    q_nets = hooks_of(encoder).q_nets
    return sys.maxsize if q_nets is None else max(1, QUERY_VALUES // q_nets.shape.width)


def _apart_from(hits: Hits, rows: NDArray[np.int64], depth: int) -> Hits:
    """Return the first ``depth`` hits that are none of some rows, as if these were not there."""
    left = (hits.rows >= 0) & ~np.isin(hits.rows, rows)
    left &= np.cumsum(left, axis=1) <= depth
    return hits._replace(rows=np.where(left, hits.rows, -1))


def _rankings(hits: Hits, store: DocumentStore) -> Iterator[Ranking]:
    """Yield each query's ranking: rows become ids, ties are ordered by id."""
    found = hits.rows >= 0
    ids = _ids(store, hits.rows[found])
    stops = np.cumsum(found.sum(axis=1))
    for place, filled in enumerate(found):
        doc_ids = ids[stops[place] - filled.sum() : stops[place]].tolist()
        scores = hits.scores[place][filled]
        if len(scores) > 1 and (scores[1:] == scores[:-1]).any():
            order = canonical_order(doc_ids, scores)
            doc_ids, scores = [doc_ids[at] for at in order.tolist()], scores[order]
        yield Ranking(doc_ids, scores)


def _ids(store: DocumentStore, rows: NDArray[np.int64]) -> NDArray[np.object_]:
    """Return the ids of rows. Of a small corpus all hits share its texts, which runs then hold."""
    if len(rows) < store.rows_total:
        return np.array(store.ids(rows), dtype=object)
    named = np.zeros(store.rows_total, dtype=np.bool_)
    named[rows] = True
    names = np.empty(store.rows_total, dtype=object)
    names[named] = store.ids(np.flatnonzero(named))
    shared: NDArray[np.object_] = names[rows]
    return shared
