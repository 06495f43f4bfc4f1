"""The retriever: an encoder, an index and the documents, as one folder and one stage."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from encoders.errors import ConfigError, DataError, IndexFormatError
from encoders.files import writer_lock
from encoders.progress import progress
from retrieval.corpus_indexing import filled_index, forget_rows, index_rows
from retrieval.document_store import DocumentStore, open_documents, write_documents
from retrieval.provenance import provenance
from retrieval.ranking import Ranking, Run
from retrieval.retriever_folder import (
    DOCUMENTS,
    INDEX,
    Head,
    check_encoder,
    discard_unfinished,
    head_of,
    open_placed_encoder,
    read_head,
    refuse_foreign,
    roll_back,
    write_head,
)
from retrieval.score_order import canonical_order
from retrieval.stage import DEPTH, Hit, Queries, SelfExcluding, Stage
from retrieval.where import Where, conditions, matching_rows

if TYPE_CHECKING:
    from encoders.encoder import Encoder
    from indexing import Index
    from retrieval.document import Document
    from retrieval.document_columns import Mask
    from retrieval.explanation import Explanation
    from retrieval.filtered import Filtered

log = logging.getLogger("sluice")

BATCH = 512  # queries searched at a time
MASKS = 8  # masks of ``where`` that are kept

Part = TypeVar("Part")


class Updated(NamedTuple):
    """What ``Retriever.update`` did: documents that are new, and that took another's place."""

    added: int
    replaced: int


class Retriever(Stage):
    """Finds documents for queries: ``build`` once, ``open`` anywhere, ``search`` or ``run``.

    The folder binds the index to its encoder's fingerprint; another encoder is refused. ``add``,
    ``update`` and ``delete`` work by document id and are on disk when they return; a kill leaves
    the state before or after. ``len`` is the number of documents.
    """

    def __init__(
        self,
        path: Path,
        head: Head,
        *,
        encoder: Encoder | None = None,
        allow: Collection[str] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = path
        self.head = head
        self.name = head.name
        self._allow, self._options = allow, dict(options or {})
        self._lock = threading.Lock()
        self._masks: dict[tuple[str, str], Mask] = {}  # of the latest ``where``s
        if encoder is not None:
            check_encoder(path, head, encoder)
            self.encoder = encoder

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
    ) -> Retriever:
        """Encode a corpus into an index and write the folder ``path`` in one step.

        ``index`` is empty and defaults to ``FlatIndex()`` for dense and ``InvertedIndex()`` for
        sparse vectors. Encoders that learn from the corpus (BM25) are fitted to it. An existing
        retriever at ``path`` stays until the new one is whole. Without ``path`` the folder is
        temporary and goes with the object. ``config`` is noted in ``retriever.json``.

        ``vectors`` are the documents' vectors where they exist already: matrices in corpus order,
        read after the corpus; ``encoder`` then encodes queries only.
        """
        folder = Path(tempfile.mkdtemp(prefix="sluice-") if path is None else path)
        start = time.monotonic()
        refuse_foreign(folder)
        with writer_lock(folder):
            discard_unfinished(folder)
            documents = write_documents(folder / DOCUMENTS, corpus)
            filled = filled_index(encoder, documents, index, vectors)
            filled.encoder_fingerprint = str(encoder.fingerprint)
            filled.save(folder / INDEX)
            origin = provenance(config or {}, seconds=time.monotonic() - start)
            head = head_of(folder, name or folder.name, encoder, documents, origin)
            write_head(folder, head)
        retriever = cls(folder, head, encoder=encoder)
        if path is None:
            weakref.finalize(retriever, shutil.rmtree, folder, ignore_errors=True)
        return retriever

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        encoder: Encoder | None = None,
        allow: Collection[str] = (),
        **options: Any,
    ) -> Retriever:
        """Open a folder; the encoder is loaded when the first query needs it.

        ``options`` (``device``, ``dtype``) go to the encoder. ``allow`` names encoder classes of
        your own that the folder may import. Raises ``IndexFormatError`` for a folder that is
        missing, damaged or newer, and for an ``encoder`` other than the index was built with.
        """
        folder = Path(path)
        return cls(folder, read_head(folder), encoder=encoder, allow=allow, options=options)

    @cached_property
    def encoder(self) -> Any:
        """The encoder the index is bound to."""
        return self._part(
            lambda: open_placed_encoder(
                self.path, self.head, allow=self._allow, options=self._options
            )
        )

    @cached_property
    def index(self) -> Index:
        """The index, memory-mapped."""
        from indexing import open_index

        def opened() -> Index:
            generation = self.head.index_generation
            return open_index(self.path / INDEX, generation=generation, allow=self._allow)

        found = self._part(opened)
        if found.encoder_fingerprint != self.head.encoder_fingerprint:
            raise IndexFormatError(
                f"{self.path}: the index was built with encoder {found.encoder_fingerprint[:12]}, "
                f"retriever.json says {self.head.encoder_fingerprint[:12]}; rebuild it"
            )
        if found.rows != self.store.rows_total:
            raise IndexFormatError(
                f"{self.path}: the index has {found.rows:,} rows and the documents "
                f"{self.store.rows_total:,}; they do not belong together: rebuild it"
            )
        return found

    @cached_property
    def store(self) -> DocumentStore:
        """The ids and texts, memory-mapped."""
        return self._part(
            lambda: open_documents(self.path / DOCUMENTS, generation=self.head.documents_generation)
        )

    def _part(self, opened: Callable[[], Part]) -> Part:
        """Open a part of the state in ``head``; take the newer state if no part is open yet."""
        try:
            return opened()
        except IndexFormatError as error:
            head = read_head(self.path)
            if head == self.head:
                raise
            if self.__dict__.keys() & {"encoder", "index", "store"}:
                raise IndexFormatError(
                    f"{self.path}: changed since it was opened; open it again"
                ) from error
            self.head = head
            return opened()

    @property
    def documents(self) -> DocumentStore:
        """Where later stages read texts."""
        return self.store

    def __len__(self) -> int:
        return len(self.store)

    def search(self, query: str, k: int = 10, *, where: Where | None = None) -> list[Hit]:
        """Return the ``k`` best documents for one query, of those that match ``where``."""
        return super().search(query, k) if where is None else self.filtered(where).search(query, k)

    def filtered(self, where: Where) -> Filtered:
        """Return the stage that finds only documents matching ``where``, for pipelines."""
        from retrieval.filtered import Filtered

        return Filtered(self, where)

    def run(
        self,
        queries: Queries,
        given: Run | None = None,
        k: int | None = None,
        *,
        where: Where | None = None,
    ) -> Run:
        """Search every query to depth ``k`` (1,000 unless given): ties by document id descending.

        ``where`` filters by metadata, as in ``{"lang": "en", "year": {"gte": 2020}}``; the module
        ``retrieval.where`` has the conditions. A query of white space has no hits; that is said
        once.
        """
        depth = DEPTH if k is None else k
        keep = None if where is None else self._matching(where)
        excluding = isinstance(queries, SelfExcluding)
        blank = [query for query, text in queries.items() if not text.strip()]
        if blank:
            log.warning("%d empty queries have no hits (first: %r)", len(blank), blank[0])
        wanted = [query for query in queries if queries[query].strip()]
        rankings = dict.fromkeys(queries, Ranking([], []))
        if wanted:
            vectors = self.encoder.encode_queries([queries[query] for query in wanted])
            show = len(wanted) > 2 * BATCH
            with progress(f"search {self.name}", len(wanted), "queries", show=show) as advance:
                for start in range(0, len(wanted), BATCH):
                    block = wanted[start : start + BATCH]
                    part = vectors[start : start + BATCH]
                    for query, ranking in self._searched(block, part, depth + excluding, keep):
                        found = without(ranking, query) if excluding else ranking
                        rankings[query] = found[:depth]
                    advance(len(block))
        return Run(rankings, name=self.name)

    def _matching(self, where: Where) -> Mask:
        """Return the mask over rows, made once for a ``where`` and a state of the documents."""
        wanted = conditions(where)
        key = (self.store.generation, repr(wanted))
        found = self._masks.get(key)
        if found is None:
            found = matching_rows(self.store, wanted)
            kept = list(self._masks.items())[1 - MASKS :]
            self._masks = dict([*kept, (key, found)])  # replaced whole: others may be reading
        return found

    def explain(self, query: str, doc_id: str) -> Explanation:
        """Return each term's part of a document's score, and its rank down to 1,000.

        ``ConfigError`` unless the index is sparse, ``DataError`` for an unknown document.
        """
        from retrieval.explanation import explained

        return explained(self, query, doc_id, DEPTH)

    def _searched(
        self, queries: Sequence[str], vectors: Any, k: int, keep: Mask | None
    ) -> Iterator[tuple[str, Ranking]]:
        hits = self.index.search(vectors, min(k, len(self.store)), keep=keep)
        found = hits.rows >= 0
        ids = np.array(self.store.ids(hits.rows[found]), dtype=object)
        stops = np.cumsum(found.sum(axis=1))
        for place, query in enumerate(queries):
            doc_ids = ids[stops[place] - found[place].sum() : stops[place]].tolist()
            scores = hits.scores[place][found[place]]
            if len(scores) > 1 and (scores[1:] == scores[:-1]).any():
                order = canonical_order(doc_ids, scores)
                doc_ids, scores = [doc_ids[at] for at in order.tolist()], scores[order]
            yield query, Ranking(doc_ids, scores)

    def add(self, documents: Iterable[Document]) -> int:
        """Add documents and return how many; an id that is there already is a ``DataError``.

        BM25 counts the new documents into idf at once; its average length stays that of the build
        until ``compact``.
        """
        with self._changing():
            rows = self.store.append(documents)
            index_rows(self.encoder, self.store, self.index, rows)
        return len(rows)

    def update(self, documents: Iterable[Document]) -> Updated:
        """Replace the documents whose ids are there already and add the others, in one step.

        BM25 counts as ``delete`` and ``add`` do. An id given twice is a ``DataError``.
        """
        with self._changing():
            rows, replaced = self.store.update(documents)
            forget_rows(self.encoder, self.store, self.index, replaced)
            index_rows(self.encoder, self.store, self.index, rows)
        return Updated(len(rows) - len(replaced), len(replaced))

    def delete(self, document_ids: Sequence[str]) -> int:
        """Delete documents by id and return how many; an unknown id is a ``DataError``."""
        if isinstance(document_ids, str):
            raise ConfigError(f"delete({document_ids!r}): expected a list of ids, not one text")
        wanted = list(dict.fromkeys(document_ids))
        with self._changing():
            rows = self.store.rows(wanted)
            unknown = [name for name, row in zip(wanted, rows, strict=True) if row < 0]
            if unknown:
                raise DataError(
                    f"{self.path}: no document {unknown[0]!r} (and {len(unknown) - 1} more); "
                    "nothing was deleted"
                )
            forget_rows(self.encoder, self.store, self.index, rows)
            self.store.delete(rows)
        return len(wanted)

    def compact(self) -> None:
        """Give back the room of deleted documents; BM25 is refitted, average length included."""
        with self._changing():
            self.store.compact()
            if hasattr(self.encoder, "fit_documents"):
                emptied: Any = self.index  # an inverted one, whose settings stay
                self.__dict__["index"] = filled_index(self.encoder, self.store, emptied.empty())
            else:
                self.index.compact()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the folder for one change: committed by ``retriever.json``, undone on an error."""
        with self._lock, writer_lock(self.path):
            if read_head(self.path) != self.head:
                raise IndexFormatError(
                    f"{self.path}: changed by another process since it was opened; open it again"
                )
            roll_back(self.path)
            _ = self.encoder, self.index, self.store
            try:
                yield
                self.index.encoder_fingerprint = str(self.encoder.fingerprint)
                self.index.save(self.path / INDEX)
                # What stands here is no longer what its config made: no key to reuse it by.
                config = {**self.head.origin.get("config", {}), "key": None}
                origin = {**self.head.origin, "config": config}
                head = head_of(self.path, self.name, self.encoder, self.store, origin)
                write_head(self.path, head)
            except BaseException:
                roll_back(self.path)
                self._forget()
                raise
            self.head = head

    def _forget(self) -> None:
        """Drop half-changed parts: they are opened again from what the folder pins."""
        for part in ("index", "store", *(["encoder"] if self.head.encoder_generation else [])):
            self.__dict__.pop(part, None)


def without(ranking: Ranking, doc_id: str) -> Ranking:
    """Return a ranking without one document."""
    kept = [place for place, found in enumerate(ranking.doc_ids) if found != doc_id]
    return Ranking([ranking.doc_ids[place] for place in kept], ranking.scores[kept])
