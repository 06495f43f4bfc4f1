"""Changes of a retriever's documents: each is on disk, in one step, when its call returns."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.disk.files import OwnLock
from sluice.encoders.foundation.disk.generations import writer_lock
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.numbers import plural
from sluice.encoders.foundation.trust import refuse_links, refuse_writing
from sluice.familiar import renamed
from sluice.indexing.databases.index import DatabaseIndex
from sluice.retrieval.documents.difference import Difference, Rows, difference
from sluice.retrieval.documents.document import of_texts
from sluice.retrieval.documents.readers.code.folder import MEMBER
from sluice.retrieval.documents.readers.source import as_documents
from sluice.retrieval.documents.store import DocumentStore, write_documents
from sluice.retrieval.documents.where import Where, conditions
from sluice.retrieval.pipelines.hit import TokenMatch
from sluice.retrieval.pipelines.saving import NameOf
from sluice.retrieval.pipelines.search import Several, kept_state
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.corpus.fill_index import (
    filled_index,
    forget_rows,
    index_rows,
    moved_index,
)
from sluice.retrieval.retrievers.corpus.index_queries import chooses
from sluice.retrieval.retrievers.folder import (
    ENCODING,
    Head,
    read_head,
    roll_back,
)
from sluice.retrieval.retrievers.folder.head import KINDS, Changes, noted_in
from sluice.retrieval.retrievers.shards.folder import committed
from sluice.retrieval.retrievers.state import RetrieverState
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Run

if TYPE_CHECKING:
    from sluice.indexing import Index
    from sluice.retrieval.pipelines.hit import Hit
    from sluice.retrieval.pipelines.stage import Texts
    from sluice.retrieval.retrievers.retriever import Retriever
    from sluice.retrieval.retrievers.shards.workers.crew import ShardWorkers


class Filtered(Stage):
    """``retriever.filtered(where)``: ``where`` holds for every hit."""

    def __init__(
        self, retriever: Retriever, where: Where, params: Mapping[str, Any] | None = None
    ) -> None:
        conditions(where)  # raises for an invalid condition now, not at the first query
        self.retriever, self.where, self.params = retriever, dict(where), params
        self.name = retriever.name

    @property
    def documents(self) -> Texts:
        """The store of the retriever, which has all documents."""
        return self.retriever.documents

    @property
    def base_retriever(self) -> Retriever:
        """The retriever without its filter."""
        return self.retriever

    @property
    def base_where(self) -> Where:
        """The condition as it was given."""
        return self.where

    @property
    def names_passages(self) -> bool:
        """Whether the retriever searches documents by their passages."""
        return self.retriever.names_passages

    def matches_of(self, query: str, doc_id: str) -> Sequence[TokenMatch]:
        """Return which tokens met, as the retriever does."""
        return self.retriever.matches_of(query, doc_id)

    @property
    def least_score(self) -> float | None:
        """The least score of the retriever."""
        return self.retriever.least_score

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Search every query among the documents that match."""
        return self.retriever.run(queries, given, k, where=self.where or None, params=self.params)

    def filtered(self, where: Where) -> Filtered:
        """Return the stage for which both hold; ``ConfigError`` for two conditions on one key."""
        conditions(where)
        for key in self.where:
            if key in where and where[key] != self.where[key]:
                raise ConfigError(
                    f"where: {key!r} is filtered by {self.where[key]!r} already; expected one "
                    "condition on a key"
                )
        return Filtered(self.retriever, {**self.where, **where}, self.params)

    def written(self, name_of: NameOf) -> str:
        """Return a name: the filter is saved with the retriever."""
        return name_of(self)

    def _hits(self, query: str | Several, k: int) -> list[Hit] | list[list[Hit]]:
        return self.retriever.search(query, k, where=self.where or None, params=self.params)


GIVEN = ".given"  # documents that are compared with those of the folder


class Updated(NamedTuple):
    """The counts of ``Retriever.update``: documents by what became of them."""

    added: int = 0
    replaced: int = 0
    deleted: int = 0
    unchanged: int = 0


class Updatable(Stage):
    """A state of a folder that is searched, and replaced by the next one when that is complete.

    A kill leaves the state before or after. Threads may search meanwhile: each search sees one
    state.
    """

    def __init__(self, state: Any = None, *others: Any, **options: Any) -> None:
        if not isinstance(state, RetrieverState) or others or options:
            raise TypeError(
                "Retriever: made by its class methods; write: retriever = Retriever.build(encoder, "
                "documents), or of a folder: retriever = Retriever.open(path)"
            )
        self.path, self.name = state.path, state.name
        self.mark = ""  # noted with each change: the change of an experiment that it is part of
        self.temporary = False  # whether the folder goes with this object
        self._lock = OwnLock()
        self._current = state

    @property
    def _state(self) -> RetrieverState:
        return kept_state(self, self._current)

    @_state.setter
    def _state(self, state: RetrieverState) -> None:
        self._current = state

    @property
    def head(self) -> Head:
        """The content of ``retriever.json`` for the state that is searched."""
        return self._state.head

    @property
    def state(self) -> RetrieverState:
        """The current encoder, index and documents, which belong together whatever changes."""
        return self._state

    def use_workers(self, workers: ShardWorkers | None) -> None:
        """Let other processes search the shards from now on; None: this one again.

        Changes are made by this process, and searched by the workers when they are complete.
        ``ConfigError`` for a retriever that is not in shards.
        """
        if workers is not None and self.head.shards is None:
            raise ConfigError(
                f"{self.name}: is not in shards, which workers could search; part it first: sluice "
                f"reshard {self.path} 4"
            )
        with self._lock:
            self._state = self._current.searched_by(workers)

    def add(self, documents: Any, *, ids: Any = None, metadatas: Any = None) -> int:
        """Add documents, in any form that ``build`` takes, and return how many.

        A list of texts gets ``ids`` and ``metadatas``, or for ids the next whole numbers, counted
        from the number of documents so far, without those in use: ``"2"`` after ``"0"`` and
        ``"1"``. An id that exists already is a ``DataError``, and so is a table without ids.

        BM25 counts the new documents into idf at once; its average length stays that of the build
        until ``compact``.
        """
        with self._changing() as (state, counts):
            if ids is None and _are_texts(documents):
                ids = _next_ids(state.store, len(documents))
            named = documents if ids is None else of_texts(documents, ids, metadatas)
            rows = state.store.append(as_documents(named).with_own_ids())
            index_rows(state.encoder, state.store, state.index, rows, state.passages)
            counts["added"] = len(rows)
        return len(rows)

    def update(
        self,
        documents: Any,
        *,
        sync: bool = False,
        delete_most: bool = False,
        dry_run: bool = False,
    ) -> Updated:
        """Replace the documents whose ids exist already and add the others, in one step.

        Those that have the same title, text and metadata stay as they are. BM25 counts as in
        ``delete`` and ``add``. An id given twice is a ``DataError``, and so are texts without ids
        of their own.

        ``sync`` also deletes the documents that are not given, and puts all in the order given, so
        that searches find what they would in a new build; to delete more than half is a
        ``DataError`` unless ``delete_most``; so is one whose file is there but cannot be read.
        Vectors come from the index where it has them exactly
        (flat and inverted, without passages), else from the cache of the experiment that made it;
        one made in Python encodes again. BM25 is refitted. ``dry_run`` counts, changes nothing.
        """
        from sluice.indexing.wrappers.sharded import ShardedIndex
        from sluice.retrieval.retrievers.shards.store import ShardedStore

        with self._changing() as (state, counts), self._written(documents, sync) as given:
            pruned = self.head.section.get("prune")
            if sync and (pruned or isinstance(state.index.innermost, DatabaseIndex)):
                raise ConfigError(
                    f"{self.path}: --sync (sync=True) is not for a pruned corpus or a database; "
                    "use sluice update without it, and sluice delete"
                )
            found = difference(state.store, given)
            updated = _counted(found, gone=len(found.gone) if sync else 0)
            differs = any(updated[:3])
            if sync:
                _keep_unread(self.path, given.unread, state.store.ids(found.gone))
            stays = not differs and (not sync or (found.in_order and state.store.is_compact))
            if dry_run or stays:
                counts["added"] = 0  # nothing to commit
                return updated
            if 2 * updated.deleted > len(state.store) and not delete_most:
                held = plural(len(state.store), "document")
                raise DataError(
                    f"{self.path}: {updated.deleted:,} of its {held} are not in the source, more "
                    "than half; nothing was changed. Check the source; to delete them all the "
                    "same give --delete-most (in Python delete_most=True)"
                )
            if sync:
                index = _emptied(state.index)
                state.store.replace(given)
                if isinstance(state.store, ShardedStore):
                    index = ShardedIndex.split(index, state.store.shard_rows, state.store.names)
                reads_all = hooks_of(state.encoder).fields  # else a line that moved is nothing new
                self._fill(state, index, found.same if reads_all else found.same_text)
            else:
                rows, replaced = state.store.update(given.streamed(found.changed))
                forget_rows(state.encoder, state.store, state.index, replaced, state.passages)
                index_rows(state.encoder, state.store, state.index, rows, state.passages)
            if differs:
                counts.update(zip(KINDS, updated[:3], strict=True))
        return updated

    @contextmanager
    def _written(self, documents: Any, sync: bool) -> Iterator[DocumentStore]:
        """Yield given documents as a store, which goes with the block unless it was given."""
        if type(documents) is DocumentStore and documents.is_compact:
            yield documents
            return
        given = as_documents(documents)
        folder = self.path / GIVEN
        shutil.rmtree(folder, ignore_errors=True)  # of a killed process
        try:
            yield write_documents(folder, given if sync else given.with_own_ids())
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _fill(self, state: RetrieverState, index: Index, rows: Rows | None = None) -> None:
        """Index a state's documents anew; ``rows`` are those of vectors that the old index has."""
        from sluice.retrieval.retrievers.corpus.encoding import Encoding
        from sluice.retrieval.retrievers.shards.folder import stored_vectors

        vectors = encoding = None
        if section := self.head.section:  # else maybe a function, whose fingerprint is its name
            try:
                encoding = Encoding(**{"cache": True, **(section.get("encoding") or {})})
            except TypeError as error:
                raise IndexFormatError(f"{self.path}: encoding, as it was built: {error}") from None
            if isinstance(encoding.cache, str | Path):
                refuse_writing(encoding.cache, "encoding.cache", self.path, state.allow)
        if rows is not None and state.passages is None:
            vectors = stored_vectors(state.encoder, state.store, state.index, rows)
        state.index = filled_index(
            state.encoder, state.store, index, vectors, work=self.path / ENCODING,
            encoding=encoding, passages=state.passages,
        )  # fmt: skip

    @renamed(document_ids="ids docids")
    def delete(self, document_ids: Sequence[str]) -> int:
        """Delete documents by id and return how many; an unknown id is a ``DataError``."""
        if isinstance(document_ids, str):
            raise ConfigError(f"delete({document_ids!r}): expected a list of ids, not a string")
        distinct = list(dict.fromkeys(document_ids))
        with self._changing() as (state, counts):
            rows = state.store.rows(distinct)
            unknown = [name for name, row in zip(distinct, rows, strict=True) if row < 0]
            if unknown:
                raise DataError(f"{self.path}: no {_documents(unknown)}; nothing was deleted")
            forget_rows(state.encoder, state.store, state.index, rows, state.passages)
            state.store.delete(rows)
            counts["deleted"] = len(distinct)
        return len(distinct)

    def compact(self) -> None:
        """Free the space of deleted documents; BM25 is refitted, average length included."""
        with self._changing() as (state, _):
            state.store.compact()
            if hooks_of(state.encoder).learner is not None:
                self._fill(state, state.index.empty())  # an inverted one, whose settings stay
            else:
                state.index.compact()

    def reshard(self, shards: int, *, index: Index | None = None) -> None:
        """Part the documents over another number of shards, in one step; it compacts too.

        The vectors are moved where the index has them exactly (flat, and inverted unless its
        encoder counts the collection); else the collection is encoded again, from the cache of an
        experiment that made it. ``index`` is an empty one of the shards' kind, for a kind
        that cannot make one of its settings.
        """
        from sluice.retrieval.retrievers.shards.folder import new_shards

        with self._changing() as (state, _):
            held = state.store.live_rows
            state.store, parts, state.shard_set = new_shards(
                self.path, state.encoder, iter(state.store),
                index or _emptied(state.index), shards=shards,
            )  # fmt: skip
            self._fill(state, parts, held)

    def move_index(self, index: Index) -> None:
        """Move the stored vectors into ``index``, an empty one, with the deletions of this one.

        Nothing is encoded: rows stay, and hits with them where both are exact. ``ConfigError`` for
        shards, passages, and indexes that give no vectors back.
        """
        if chooses(index):
            raise ConfigError(
                f"move_index: {type(index).__name__} measures vectors and makes an index of its "
                "own choice; expected an empty index"
            )
        with self._changing() as (state, _):
            if state.shard_set is not None or state.passages is not None or index.rows:
                raise ConfigError(
                    "move_index: expected an empty index, and a retriever of whole documents "
                    "without shards; build it anew with the other index"
                )
            state.index = moved_index(state.index, index, state.store)

    @contextmanager
    def _changing(self) -> Iterator[tuple[RetrieverState, dict[str, int]]]:
        """Yield a state to change, committed by ``retriever.json`` and dropped on an error.

        With it comes a dictionary, which the block fills with the counts of ``Changes``. Other
        threads search the old state until the new one replaces it.
        """
        refuse_links(self.path, self._state.allow)
        with self._lock, writer_lock(self.path):
            if read_head(self.path) != self.head:
                raise IndexFormatError(
                    f"{self.path}: changed by another process since it was opened; open it again"
                )
            roll_back(self.path)
            state = self._state.forked()
            try:
                counts: dict[str, int] = {}
                yield state, counts
                if counts and not any(counts.values()):  # nothing is to be changed
                    roll_back(self.path)
                    return
                origin = self.head.origin
                if any(counts.values()):  # else the documents are those of the build
                    since = (self.head.changes or Changes()).plus(counts, self.mark)
                    origin = noted_in(origin, since)
                state.head = committed(
                    self.path, self.name, state.encoder, state.store, state.index, origin,
                    self.head.passages, state.shard_set,
                )  # fmt: skip
            except BaseException:
                roll_back(self.path)
                raise
            shutil.rmtree(self.path / ENCODING, ignore_errors=True)
            workers = self._current.workers
            self._state = state if workers is None else state.searched_by(workers)


def _are_texts(documents: Any) -> bool:
    return isinstance(documents, list | tuple) and all(isinstance(each, str) for each in documents)


def _next_ids(store: DocumentStore, size: int) -> list[str]:
    free = (name for name in map(str, count(store.rows_total)) if name not in store)
    return list(islice(free, size))


def _documents(ids: Sequence[str]) -> str:
    """Return ``document 'a'``, or with several ids ``document 'a' (and 2 more)``."""
    more = f" (and {len(ids) - 1:,} more)" if len(ids) > 1 else ""
    return f"document {ids[0]!r}{more}"


def _counted(found: Difference, *, gone: int) -> Updated:
    changed, added = len(found.changed), int(np.count_nonzero(found.before < 0))
    return Updated(added, changed - added, gone, len(found.same) - changed)


def _emptied(index: Index) -> Index:
    """Return an empty index with the settings of this one, of a shard, or of its passages."""
    from sluice.indexing.wrappers.passages import PassageIndex
    from sluice.indexing.wrappers.sharded import ShardedIndex

    own = index.first if isinstance(index, ShardedIndex) else index
    return (own.inner if isinstance(own, PassageIndex) else own).empty()


def _keep_unread(path: Path, unread: Collection[str], gone: Sequence[str]) -> None:
    """Refuse to delete documents only because their files, or folders, cannot be read."""
    of_files = (name.partition(MEMBER)[0] for name in gone)
    above = ({file, *map(str, PurePosixPath(file).parents)} for file in of_files)
    kept = [name for name, places in zip(gone, above, strict=True) if not places.isdisjoint(unread)]
    if kept:
        files = "file is" if len(kept) == 1 else "files are"
        raise DataError(
            f"{path}: --sync would delete {plural(len(kept), 'document')} whose {files} there but "
            f"cannot be read ({', '.join(kept[:3])}); nothing was changed. Repair or remove the "
            "files; to give their documents up all the same, use sluice delete first"
        )
