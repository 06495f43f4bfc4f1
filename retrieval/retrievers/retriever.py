"""The retriever: an encoder, an index and the documents, as one folder and one stage."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.generations import writer_lock
from sluice.encoders.foundation.provenance import provenance
from sluice.retrieval.documents.store import DocumentStore, write_documents
from sluice.retrieval.documents.where import Where
from sluice.retrieval.pipelines.hit import Hit, Passage
from sluice.retrieval.pipelines.stage import Stage, searched
from sluice.retrieval.pipelines.tracing import Span, traced
from sluice.retrieval.retrievers.corpus.fill_index import filled_index, forget_rows, index_rows
from sluice.retrieval.retrievers.corpus.passages import Passages
from sluice.retrieval.retrievers.corpus.reading import READING, Reading, warn_of_cuts
from sluice.retrieval.retrievers.filtered import Filtered
from sluice.retrieval.retrievers.folder import (
    DOCUMENTS,
    ENCODING,
    INDEX,
    Head,
    discard_unfinished,
    head_of,
    read_head,
    refuse_foreign,
    roll_back,
    write_head,
)
from sluice.retrieval.retrievers.state import RetrieverState
from sluice.retrieval.runs.queries import DEPTH, Queries
from sluice.retrieval.runs.run import Run

if TYPE_CHECKING:
    from sluice.encoders.encoder import Encoder
    from sluice.indexing import Index
    from sluice.retrieval.documents.document import Document
    from sluice.retrieval.retrievers.corpus.encoding import Encoding
    from sluice.retrieval.retrievers.explanation import Explanation


class Updated(NamedTuple):
    """The counts of ``Retriever.update``: new documents, and documents that replaced another."""

    added: int
    replaced: int


class Retriever(Stage):
    """Finds documents for queries: ``build`` once, ``open`` anywhere, ``search`` or ``run``.

    The folder binds the index to its encoder's fingerprint; another encoder is refused. ``add``,
    ``update`` and ``delete`` work by document id and are on disk when they return; a kill leaves
    the state before or after. Threads may search meanwhile: each search sees one state. ``len`` is
    the number of documents.
    """

    def __init__(self, state: RetrieverState) -> None:
        self.path, self.name = state.path, state.name
        self._lock = threading.Lock()
        self._state = state

    @classmethod
    def build(
        cls,
        encoder: Encoder,
        corpus: Iterable[Document],
        *,
        vectors: Iterable[Any] | None = None,
        index: Index | None = None,
        path: str | Path | None = None,
        name: str = "",
        config: Mapping[str, Any] | None = None,
        encoding: Encoding | None = None,
        queries: Mapping[str, str] | None = None,
        passages: Passages | None = None,
    ) -> Retriever:
        """Encode a corpus into an index and write the folder ``path`` in one step.

        ``index`` is empty and defaults to ``FlatIndex()`` for dense and ``InvertedIndex()`` for
        sparse vectors. Encoders that learn from the corpus (BM25) are fitted to it. An existing
        retriever at ``path`` stays until the new one is complete. Without ``path`` the folder is
        temporary and deleted with the object. ``config`` is noted in ``retriever.json``.

        ``vectors`` are the documents' vectors if they exist already: matrices in corpus order, read
        after the corpus; ``encoder`` then encodes queries only.

        ``encoding`` sets how the corpus is encoded. A build that was killed continues after the
        last complete shard when it is called again with the same encoder. ``queries`` are what an
        index of type ``auto`` measures with. ``passages`` cuts long documents into parts that fit
        the encoder; later additions are cut the same way.
        """
        if passages is not None and vectors is not None:
            raise ConfigError(
                "passages and vectors: given vectors cannot be cut; expected one of the two"
            )
        if passages is not None:
            passages.check(encoder)
        if path is None:
            temporary = Path(tempfile.mkdtemp(prefix="sluice-"))
            try:
                built = cls.build(
                    encoder, corpus, vectors=vectors, index=index, path=temporary, name=name,
                    config=config, encoding=encoding, queries=queries, passages=passages,
                )  # fmt: skip
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            weakref.finalize(built, shutil.rmtree, temporary, ignore_errors=True)
            return built
        folder = Path(path)
        start = time.monotonic()
        refuse_foreign(folder)
        with writer_lock(folder):
            discard_unfinished(folder)
            documents = write_documents(folder / DOCUMENTS, corpus)
            work = folder / ENCODING
            readings: list[Reading] = []
            filled = filled_index(
                encoder, documents, index, vectors, work=work, encoding=encoding, queries=queries,
                passages=passages, readings=readings,
            )  # fmt: skip
            filled.encoder_fingerprint = str(encoder.fingerprint)
            filled.save(folder / INDEX)
            origin = provenance(config or {}, seconds=time.monotonic() - start)
            for reading in readings:
                warn_of_cuts(name or folder.name, reading, cure=passages is None)
                origin[READING] = reading._asdict()
            noted = None if passages is None else passages.settings()
            head = head_of(folder, name or folder.name, encoder, documents, origin, noted)
            write_head(folder, head)
            shutil.rmtree(work, ignore_errors=True)
        return cls(RetrieverState(folder, head, encoder=encoder))

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        encoder: Encoder | None = None,
        allow: Collection[str] = (),
        params: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Retriever:
        """Open a folder; the encoder is loaded when the first query needs it.

        ``options`` (``device``, ``dtype``) go to the encoder. ``allow`` names encoder classes of
        your own that the folder may import. ``params`` are the search parameters of all searches.
        Raises ``IndexFormatError`` for a folder that is missing, damaged or newer, and for an
        ``encoder`` other than the index was built with.
        """
        folder = Path(path)
        state = RetrieverState(
            folder, read_head(folder), encoder=encoder, allow=allow, options=options, params=params
        )
        return cls(state)

    @property
    def head(self) -> Head:
        """The content of ``retriever.json`` for the state that is searched."""
        return self._state.head

    @property
    def state(self) -> RetrieverState:
        """The current encoder, index and documents, which belong together whatever changes."""
        return self._state

    @property
    def encoder(self) -> Any:
        """The encoder of the index; another object after a change of BM25's counts."""
        return self._state.encoder

    @property
    def index(self) -> Index:
        """The index, memory-mapped."""
        return self._state.index

    @property
    def store(self) -> DocumentStore:
        """The ids and texts, memory-mapped."""
        return self._state.store

    @property
    def params(self) -> dict[str, Any]:
        """Search parameters of every search, such as ``{"alpha": 0.9}``: none by default.

        Which ones there are depends on the index; ``ConfigError`` for one that it does not take. A
        call's own come first. They belong to this object: the folder does not store them.
        """
        return dict(self._state.params)

    @params.setter
    def params(self, params: Mapping[str, Any]) -> None:
        self._state.index.check_params(params)
        self._state.params = dict(params)

    @property
    def documents(self) -> DocumentStore:
        """Where later stages read texts."""
        return self.store

    @property
    def base_retriever(self) -> Retriever:
        """Return itself."""
        return self

    @property
    def least_score(self) -> float | None:
        """0 for impacts, -1 for cosine; None for products of vectors of any length, and for l2."""
        metric = self.index.innermost.metric
        if metric is None:
            return 0.0
        if metric == "cosine" or (metric == "ip" and hooks_of(self.encoder).normalize):
            return -1.0
        return None

    @property
    def names_passages(self) -> bool:
        """Whether documents are searched by their passages."""
        return self.head.passages is not None

    def passages_of(self, query: str, doc_ids: Sequence[str], span: Span) -> list[Passage | None]:
        """Return each document's best passage for the query, see ``PassageFinder``."""
        return self._state.passages_of(query, doc_ids, span)

    def __len__(self) -> int:
        return len(self.store)

    def __repr__(self) -> str:
        return f"Retriever({self.name!r}, {self.head.documents:,} documents, {str(self.path)!r})"

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        where: Where | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> list[Hit]:
        """Return the ``k`` best documents for one query, of those that match ``where``.

        ``params`` are search parameters for this call, as in ``run``.
        """
        state = self._state  # hits and texts come from the same one, whatever changes meanwhile

        @traced
        def run(retriever: Retriever, queries: Queries, given: Run | None, k: int) -> Run:
            return state.run(queries, k, where=where, params=params)

        passages = state.passages_of if self.names_passages else None
        return searched(partial(run, self), state.store, query, k, passages)

    def filtered(self, where: Where) -> Filtered:
        """Return the stage that finds only documents matching ``where``, for pipelines."""
        return Filtered(self, where)

    def run(
        self,
        queries: Queries,
        given: Run | None = None,
        k: int | None = None,
        *,
        where: Where | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Run:
        """Search every query to depth ``k`` (1,000 unless given): ties by document id descending.

        Of documents that tie with the last one, those that were added first are found.

        ``where`` filters by metadata, as in ``{"lang": "en", "year": {"gte": 2020}}``; the module
        ``sluice.retrieval.documents.where`` has the conditions. ``params`` are search parameters
        of the index for this call, before those in ``self.params``: ``alpha``, ``beta`` and
        ``engine`` of an inverted index, ``nprobe`` or ``efSearch`` of FAISS. A blank query has no
        hits; one warning is logged.
        """
        return self._state.run(queries, k, where=where, params=params)

    def explain(self, query: str, doc_id: str, *, k: int = 10) -> Explanation:
        """Return each term's part of a document's score, and its rank down to 1,000.

        With it comes what the index's planner chose for a search of ``k`` hits, and why.
        ``ConfigError`` unless the index is sparse, ``DataError`` for an unknown document.
        """
        from sluice.retrieval.retrievers.explanation import explained

        return explained(self._state, query, doc_id, depth=DEPTH, k=k)

    def add(self, documents: Iterable[Document]) -> int:
        """Add documents and return how many; an id that exists already is a ``DataError``.

        BM25 counts the new documents into idf at once; its average length stays that of the build
        until ``compact``.
        """
        with self._changing() as state:
            rows = state.store.append(documents)
            index_rows(state.encoder, state.store, state.index, rows, state.passages)
        return len(rows)

    def update(self, documents: Iterable[Document]) -> Updated:
        """Replace the documents whose ids exist already and add the others, in one step.

        BM25 counts as in ``delete`` and ``add``. An id given twice is a ``DataError``.
        """
        with self._changing() as state:
            rows, replaced = state.store.update(documents)
            forget_rows(state.encoder, state.store, state.index, replaced, state.passages)
            index_rows(state.encoder, state.store, state.index, rows, state.passages)
        return Updated(len(rows) - len(replaced), len(replaced))

    def delete(self, document_ids: Sequence[str]) -> int:
        """Delete documents by id and return how many; an unknown id is a ``DataError``."""
        if isinstance(document_ids, str):
            raise ConfigError(f"delete({document_ids!r}): expected a list of ids, not a string")
        distinct = list(dict.fromkeys(document_ids))
        with self._changing() as state:
            rows = state.store.rows(distinct)
            unknown = [name for name, row in zip(distinct, rows, strict=True) if row < 0]
            if unknown:
                raise DataError(
                    f"{self.path}: no document {unknown[0]!r} (and {len(unknown) - 1} more); "
                    "nothing was deleted"
                )
            forget_rows(state.encoder, state.store, state.index, rows, state.passages)
            state.store.delete(rows)
        return len(distinct)

    def compact(self) -> None:
        """Free the space of deleted documents; BM25 is refitted, average length included."""
        with self._changing() as state:
            state.store.compact()
            if hooks_of(state.encoder).fits_documents:
                work = self.path / ENCODING
                state.index = filled_index(
                    state.encoder,
                    state.store,
                    state.index.empty(),  # an inverted one, whose settings stay
                    work=work,
                    passages=state.passages,
                )
            else:
                state.index.compact()

    @contextmanager
    def _changing(self) -> Iterator[RetrieverState]:
        """Yield a state to change, committed by ``retriever.json`` and dropped on an error.

        Other threads search the old state until the new one replaces it.
        """
        with self._lock, writer_lock(self.path):
            if read_head(self.path) != self.head:
                raise IndexFormatError(
                    f"{self.path}: changed by another process since it was opened; open it again"
                )
            roll_back(self.path)
            state = self._state.forked()
            try:
                yield state
                state.index.encoder_fingerprint = str(state.encoder.fingerprint)
                state.index.save(self.path / INDEX)
                # The folder is no longer what its config builds: without a key it is not reused.
                config = {**self.head.origin.get("config", {}), "key": None}
                origin = {**self.head.origin, "config": config}
                noted = self.head.passages
                state.head = head_of(
                    self.path, self.name, state.encoder, state.store, origin, noted
                )
                write_head(self.path, state.head)
            except BaseException:
                roll_back(self.path)
                raise
            self._state = state


def retriever_of(stage: Stage) -> Retriever | None:
    """Return the retriever that a stage passes on, see ``Stage.base_retriever``."""
    base = stage.base_retriever
    return base if isinstance(base, Retriever) else None
