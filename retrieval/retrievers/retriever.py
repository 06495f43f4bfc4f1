"""The retriever: an encoder, an index and the documents, as one folder and one stage."""

from __future__ import annotations

import copy
import shutil
import tempfile
import time
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from sluice.encoders.encoder import encodes, hooks_of
from sluice.encoders.foundation.disk.generations import writer_lock
from sluice.encoders.foundation.errors import (
    ConfigError,
    IndexFormatError,
    UnknownDocumentError,
)
from sluice.encoders.foundation.numbers import plural
from sluice.encoders.foundation.processes import peak_memory
from sluice.encoders.foundation.provenance import provenance
from sluice.familiar import QUERY, FamiliarRetriever, K, renamed
from sluice.indexing.wrappers.fan_out import partial_results
from sluice.retrieval.documents.document import of_texts
from sluice.retrieval.documents.store import DocumentStore, write_documents
from sluice.retrieval.documents.where import Where
from sluice.retrieval.execution.executor import LOCAL, Executor
from sluice.retrieval.pipelines.asking import Asking
from sluice.retrieval.pipelines.hit import Hit, Passage, TokenMatch
from sluice.retrieval.pipelines.operators import Fuse
from sluice.retrieval.pipelines.saving import NameOf
from sluice.retrieval.pipelines.search import Several, awaited, hits_of, one_state
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.pipelines.tracing import Span, traced
from sluice.retrieval.retrievers.corpus.encoding import (
    READING,
    Reading,
    documents_of_all,
    encoder_and_corpus,
    encoder_for,
    warn_of_cuts,
)
from sluice.retrieval.retrievers.corpus.fill_index import filled_index
from sluice.retrieval.retrievers.corpus.passages import Passages, keep_vectors
from sluice.retrieval.retrievers.corpus.vectors.index_tasks import (
    as_matrices,
    holds_tokens,
    one_query,
)
from sluice.retrieval.retrievers.folder import (
    DOCUMENTS,
    ENCODING,
    discard_unfinished,
    parts_of,
    read_head,
    refuse_foreign,
    usual_name,
)
from sluice.retrieval.retrievers.shards.folder import committed
from sluice.retrieval.retrievers.state import RetrieverState
from sluice.retrieval.retrievers.updates import Filtered, Updatable, Updated as Updated
from sluice.retrieval.runs.queries import DEPTH, Asked, Queries, as_queries
from sluice.retrieval.runs.run import Run

if TYPE_CHECKING:
    from sluice.encoders.objects import EncoderLike
    from sluice.indexing import Index
    from sluice.retrieval.documents.document import Document
    from sluice.retrieval.retrievers.corpus.encoding import Encoding
    from sluice.retrieval.retrievers.explanation import Explanation


class Retriever(FamiliarRetriever, Updatable):
    """Finds documents for queries: ``build`` once, ``open`` anywhere, ``search`` or ``run``.

    The folder binds the index to its encoder's fingerprint; another encoder is refused. ``add``,
    ``update`` and ``delete`` work by document id and are on disk when they return; a kill leaves
    the state before or after. Threads may search meanwhile: each search sees one state. ``len`` is
    the number of documents.
    """

    @classmethod
    @renamed(encoder="model embedding embeddings embedder", corpus="documents docs texts", id="ids")
    def build(
        cls,
        encoder: EncoderLike = None,
        corpus: Any = None,
        *,
        id: str | Sequence[str] | None = None,
        text: str | Sequence[str] | None = None,
        title: str | None = None,
        metadata: str | Sequence[str] | None = None,
        vectors: Any = None,
        index: Index | None = None,
        path: str | Path | None = None,
        name: str = "",
        config: Mapping[str, Any] | None = None,
        encoding: Encoding | None = None,
        queries: Mapping[str, str] | None = None,
        passages: Passages | None = None,
        shards: int | None = None,
        shard_size: int | None = None,
        executor: Executor = LOCAL,
    ) -> Retriever:
        """Encode a corpus into an index and write the folder ``path`` in one step.

        ``encoder`` is an encoder, ``"bm25"``, a model's name or folder, a ``SentenceTransformer``
        or a function of texts (``as_encoder``); a list of them makes the fusion ``a | b`` of a
        retriever each, which ``path`` is then of. ``corpus`` is a list of texts or documents, a
        folder or file, a frame, a dataset, whose columns ``id``, ``text``, ``title`` and
        ``metadata`` name (``as_documents``); ``id`` may be the ids of texts. ``build(corpus)``
        takes BM25.

        ``index`` is empty and defaults to ``FlatIndex()`` for dense, ``InvertedIndex()`` for
        sparse and ``TokenIndex()`` for token vectors. Encoders that learn from the corpus (BM25)
        are fitted to it. An existing retriever at ``path`` stays until the new one is complete.
        Without ``path`` the folder is temporary and deleted with the object, unless ``save`` keeps
        it. ``config`` is noted in ``retriever.json``.

        ``vectors`` are the documents' vectors if they exist already: one array ``[n, dim]``,
        ``TokenVectors``, or several in corpus order, read after the corpus; ``encoder`` then
        encodes queries only.

        ``encoding`` sets how the corpus is encoded. A build that was killed continues after the
        last complete shard when it is called again with the same encoder. ``queries`` are what an
        index measures with: of type ``auto``, or a gather of token vectors. ``passages`` cuts
        long documents into parts that fit the encoder; later additions are cut the same way.

        ``shards``, or the documents of each in ``shard_size``, part the collection over several
        folders, each a retriever's, by a hash of the ids; the results are those of the whole.
        ``executor`` encodes, and fills shards: this process, several, or Ray
        (``sluice.retrieval.execution``).
        """
        if passages is not None and vectors is not None:
            raise ConfigError(
                "passages and vectors: given vectors cannot be cut; expected one of the two"
            )
        if not (id is None or isinstance(id, str)):
            corpus, id = of_texts(corpus, id), None
        columns = {"id": id, "text": text, "title": title, "metadata": metadata}
        others: dict[str, Any] = {
            "config": config, "encoding": encoding, "queries": queries, "passages": passages,
            "shards": shards, "shard_size": shard_size, "executor": executor,
        }  # fmt: skip
        if isinstance(encoder, list | tuple) and corpus is not None and not encodes(corpus):
            if vectors is not None or index is not None or name:
                raise ConfigError("vectors, index, name: are of one encoder, and here are several")
            shared = documents_of_all(encoder, corpus, columns)
            hybrid: Any = Fuse([cls.build(each, shared, **others) for each in encoder])
            if path is not None:
                hybrid.save(path)
            return hybrid  # type: ignore[no-any-return]
        encoder, corpus = encoder_and_corpus(encoder, corpus, columns)
        if passages is not None:
            passages.check(encoder)
        if path is None:
            temporary = Path(tempfile.mkdtemp(prefix="sluice-"))
            try:
                named = name or usual_name(encoder)
                built = cls.build(
                    encoder, corpus, vectors=vectors, index=index, path=temporary, name=named,
                    **others,
                )  # fmt: skip
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            return built._made_temporary()
        folder = Path(path)
        start = time.monotonic()
        refuse_foreign(folder)
        with writer_lock(folder), peak_memory() as peak:
            discard_unfinished(folder)
            documents: DocumentStore
            shard_set = None
            if shards is None and shard_size is None:
                documents = write_documents(folder / DOCUMENTS, corpus)
            else:
                from sluice.retrieval.retrievers.shards.folder import new_shards

                documents, index, shard_set = new_shards(
                    folder, encoder, corpus, index, shards=shards, shard_size=shard_size
                )
            work = folder / ENCODING
            readings: list[Reading] = []
            given = None if vectors is None else as_matrices(vectors)
            filled = filled_index(
                encoder, documents, index, given, work=work, encoding=encoding, queries=queries,
                passages=passages, readings=readings, executor=executor,
            )  # fmt: skip
            origin = provenance(config or {}, seconds=time.monotonic() - start)
            origin["peak_memory_bytes"] = peak()
            for reading in readings:
                warn_of_cuts(name or folder.name, reading, cure=passages is None)
                origin[READING] = reading._asdict()
            noted = None if passages is None else passages.settings()
            head = committed(
                folder, name or folder.name, encoder, documents, filled, origin, noted, shard_set
            )
            shutil.rmtree(work, ignore_errors=True)
        return cls(RetrieverState(folder, head, encoder=encoder, allow=filled.words))

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        encoder: EncoderLike = None,
        allow: Collection[str] = (),
        params: Mapping[str, Any] | None = None,
        quick: bool = False,
        **options: Any,
    ) -> Retriever:
        """Open a folder; the encoder is loaded when the first query needs it.

        ``encoder`` is given where the folder cannot have it (a function), or to share one.
        ``options`` (``device``, ``dtype``) go to the encoder. ``allow`` lists what the folder
        may do beside reading: classes of your own it may import, and paths of links in it that a
        change may write to. ``params`` are the search parameters of all searches.
        ``quick`` is for a few queries: an encoder that has a numpy form is not loaded, see
        ``sluice.encoders.backends.quick``.
        Raises ``IndexFormatError`` for a folder that is missing, damaged or newer, and for an
        ``encoder`` other than the index was built with.
        """
        folder = Path(path)
        head = read_head(folder)
        given = None if encoder is None else encoder_for(folder, head, encoder)
        state = RetrieverState(
            folder, head, encoder=given, allow=allow, options=options, params=params, quick=quick
        )
        return cls(state)

    load = from_pretrained = open

    def written(self, name_of: NameOf) -> str:
        """Return a name: a retriever is a folder of its own."""
        return name_of(self)

    def save(self, path: str | Path) -> None:
        """Write a copy of the folder, in one step; ``Retriever.open(path)`` opens it.

        Files are linked where the file system can (they never change), else copied. Only an empty
        folder, or one with a retriever, is replaced.
        """
        with self._lock:
            self._state.copy_to(Path(path))

    save_pretrained = save

    def let_go(self, **options: Any) -> None:
        """Let go of the encoder, the index and the documents; the next search opens them again.

        ``options`` are the arguments of ``open``. The folder must hold the encoder.
        """
        with self._lock:
            self._state = type(self).open(self.path, **options)._state

    def _made_temporary(self) -> Self:
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        self.temporary = True
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what opens the folder again; a pickle holds neither documents nor vectors."""
        if self.temporary:
            raise ConfigError(
                f"{self.name}: cannot be pickled or sent to another process, because its folder is "
                "temporary and goes with it; save(path), and send Retriever.open(path)"
            )
        return partial(type(self).open, **self._state.open_arguments()), ()

    def __copy__(self) -> Self:
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a retriever of the same folder, of a temporary one with a copy of the folder."""
        if not self.temporary:
            opened, _ = self.__reduce__()
            return opened()  # type: ignore[no-any-return]
        folder = Path(tempfile.mkdtemp(prefix="sluice-"))
        state = self._state
        state.copy_to(folder)
        return type(self)(state.forked(folder))._made_temporary()

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
        return self._state.documents

    @property
    def base_retriever(self) -> Retriever:
        """Return itself."""
        return self

    @property
    def lexical(self) -> bool:
        """Whether its encoder is BM25."""
        from sluice.encoders.lexical.bm25 import BM25Encoder

        return isinstance(self.encoder, BM25Encoder)

    @property
    def least_score(self) -> float | None:
        """0 for impacts, -1 for cosine; None for products of vectors of any length, and for l2.

        Of token vectors of length 1 it is -1 for each token of the longest query.
        """
        hooks = hooks_of(self.encoder)
        if holds_tokens(self.index):
            longest = hooks.lengths.get("query")
            return -float(longest) if hooks.normalize and longest else None
        metric = self.index.innermost.metric
        if metric is None:
            return 0.0
        if metric == "cosine" or (metric == "ip" and hooks.normalize):
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

    def __iter__(self) -> Iterator[Document]:
        """Stream the documents, without the deleted ones, in the order they were added."""
        return iter(self.store)

    def __contains__(self, document_id: object) -> bool:
        return isinstance(document_id, str) and document_id in self.store

    def __getitem__(self, document_id: str) -> Document:
        """Return the document of an id; ``UnknownDocumentError``, a ``KeyError`` too, without."""
        document = self.store.find(document_id) if isinstance(document_id, str) else None
        if document is None:
            why = self.store.why_unknown(document_id) if isinstance(document_id, str) else ""
            if why:
                raise IndexFormatError(f"{self.name}: document {document_id!r}: {why}; put it back")
            raise UnknownDocumentError(
                f"{self.name}: no document {document_id!r} among {len(self):,}; ids are texts, as "
                "in the corpus"
            )
        return document

    def _shown(self) -> dict[str, str]:
        encoder, index = parts_of(self.path, self.head)
        folder = "temporary: save(path) keeps it" if self.temporary else repr(str(self.path))
        documents = plural(self.head.documents, "document")
        return {
            "name": repr(self.name), "encoder": encoder and f"{encoder} encoder",
            "index": index and f"{index} index",
            "documents": documents, "folder": folder,
        }  # fmt: skip

    def __repr__(self) -> str:
        facts = [fact for fact in self._shown().values() if fact]
        return f"Retriever({', '.join(facts)})"

    @overload
    def search(
        self,
        query: str = "",
        k: int | None = None,
        *,
        where: Where | None = None,
        fuse: bool = False,
        context: str | None = None,
        seen: Collection[str] = (),
        budget_tokens: int | None = None,
        params: Mapping[str, Any] | None = None,
        vector: Any = None,
    ) -> list[Hit]: ...
    @overload
    def search(
        self,
        query: Several,
        k: int | None = None,
        *,
        where: Where | None = None,
        fuse: Literal[True],
        context: str | None = None,
        seen: Collection[str] = (),
        budget_tokens: int | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> list[Hit]: ...
    @overload
    def search(
        self,
        query: Several,
        k: int | None = None,
        *,
        where: Where | None = None,
        fuse: Literal[False] = False,
        context: str | None = None,
        seen: Collection[str] = (),
        budget_tokens: int | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> list[list[Hit]]: ...
    @renamed(query=QUERY, k=K, where="filter filters", vector="embedding query_vector")
    def search(
        self,
        query: str | Several = "",
        k: int | None = None,
        *,
        where: Where | None = None,
        fuse: bool = False,
        context: str | None = None,
        seen: Collection[str] = (),
        budget_tokens: int | None = None,
        params: Mapping[str, Any] | None = None,
        vector: Any = None,
    ) -> list[Hit] | list[list[Hit]]:
        """Return the ``k`` best documents for one query, or a list of them for each of several.

        ``where`` filters by metadata and id, ``params`` are search parameters for this call, as in
        ``run``. ``fuse``, ``context``, ``seen`` and ``budget_tokens`` are those of
        ``Stage.search``. ``vector``, ``[dim]``, is the query's own in place of a text;
        ``[tokens, dim]`` where the index holds a vector for each token.
        """
        state = self._state  # hits and texts come from the same one, whatever changes meanwhile
        asking, given = Asking(fuse, context, seen, budget_tokens), None
        if getattr(getattr(query, "dtype", None), "kind", "") == "f":
            vector, query = query, ""
        if vector is not None:
            if query:
                raise ConfigError("search: a query and a vector; expected one of the two")
            if asking.is_more:
                raise ConfigError(
                    "search: a vector goes with neither fuse, context, seen nor budget_tokens"
                )
            query, given = "(a vector)", one_query(vector, tokens=holds_tokens(state.index))
        elif asking.is_more:
            with one_state():
                return asking.hits(Filtered(self, where or {}, params), query, k)

        @traced
        def run(retriever: Retriever, queries: Queries, _: Run | None, k: int) -> Run:
            if given is None:
                return state.run(queries, k, where=where, params=params)
            keep_vectors(given)
            return state.nearest(queries, list(queries), given, k, where=where, params=params)

        passages = state.passages_of if self.names_passages else None
        return hits_of(partial(run, self), state.documents, query, asking.depth(k), passages)

    _asearch = awaited(search, lambda stage: stage.search)  # apart, or mypy takes the base's
    asearch = _asearch

    def matches_of(self, query: str, doc_id: str) -> Sequence[TokenMatch]:
        """Return which tokens of a document met those of the query, of token vectors."""
        state = self._state
        if not holds_tokens(state.index):
            return ()
        return state.token_reader.matches(query, [doc_id]).get(doc_id, [])

    def filtered(self, where: Where) -> Filtered:
        """Return the stage that finds only documents matching ``where``, for pipelines."""
        return Filtered(self, where)

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Search every query to depth ``k``, see ``run``."""
        return self._state.run(queries, k)

    @renamed(queries="topics query", k=K)
    @traced
    def run(
        self,
        queries: Asked,
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
        with partial_results() as absent:
            run = self._state.run(as_queries(queries), k, where=where, params=params)
        run.partial = tuple(absent)
        return run

    def explain(self, query: str, doc_id: str, *, k: int = 10) -> Explanation:
        """Return each term's part of a document's score, and its rank down to 1,000.

        Of token vectors, which of the document's tokens met each of the query's. With it comes what
        the index's planner chose for a search of ``k`` hits, and why. ``ConfigError`` for an index
        of single dense vectors, ``DataError`` for an unknown document.
        """
        from sluice.retrieval.retrievers.explanation import explained

        return explained(self._state, query, doc_id, depth=DEPTH, k=k)


def retriever_of(stage: Stage) -> Retriever | None:
    """Return the retriever that a stage passes on, see ``Stage.base_retriever``."""
    base = stage.base_retriever
    return base if isinstance(base, Retriever) else None
