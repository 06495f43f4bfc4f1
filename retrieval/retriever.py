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
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from encoders.errors import ConfigError, DataError, IndexFormatError
from encoders.files import writer_lock
from encoders.progress import progress
from retrieval.document_store import DocumentStore, open_documents, write_documents
from retrieval.provenance import provenance
from retrieval.ranking import Ranking, Run
from retrieval.retriever_folder import (
    DOCUMENTS,
    HEAD,
    INDEX,
    Head,
    check_encoder,
    open_placed_encoder,
    place_encoder,
    read_head,
    refuse_foreign,
    roll_back,
    write_head,
)
from retrieval.score_order import canonical_order
from retrieval.stage import DEPTH, Queries, SelfExcluding, Stage

if TYPE_CHECKING:
    from encoders.encoder import Encoder
    from indexing import Index
    from retrieval.document import Document

log = logging.getLogger("sluice")

CHUNK = 16_384  # documents encoded at a time: bounds memory while indexing
BATCH = 512  # queries searched at a time

Part = TypeVar("Part")


class Retriever(Stage):
    """Finds documents for queries: ``build`` once, ``open`` anywhere, ``search`` or ``run``.

    The folder binds the index to its encoder's fingerprint; another encoder is refused. ``add`` and
    ``delete`` work by document id and are on disk when they return; a kill leaves the state before
    or after. ``len`` is the number of documents.
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
        if encoder is not None:
            check_encoder(path, head, encoder)
            self.encoder = encoder

    @classmethod
    def build(
        cls,
        encoder: Encoder,
        corpus: Iterable[Document],
        *,
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
        """
        folder = Path(tempfile.mkdtemp(prefix="sluice-") if path is None else path)
        start = time.monotonic()
        refuse_foreign(folder)
        with writer_lock(folder):
            _settle(folder)
            documents = write_documents(folder / DOCUMENTS, corpus)
            filled = _filled(encoder, documents, index)
            filled.encoder_fingerprint = str(encoder.fingerprint)
            filled.save(folder / INDEX)
            origin = provenance(config or {}, seconds=time.monotonic() - start)
            head = _head(folder, name or folder.name, encoder, documents, origin)
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

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Search every query to depth ``k`` (1,000 unless given): ties by document id descending.

        A query of white space has no hits; that is said once.
        """
        depth = DEPTH if k is None else k
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
                    for query, ranking in self._searched(block, part, depth + excluding):
                        found = without(ranking, query) if excluding else ranking
                        rankings[query] = found[:depth]
                    advance(len(block))
        return Run(rankings, name=self.name)

    def _searched(
        self, queries: Sequence[str], vectors: Any, k: int
    ) -> Iterator[tuple[str, Ranking]]:
        hits = self.index.search(vectors, min(k, len(self.store)))
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
            if len(rows) == 0:
                return 0
            for start in range(0, len(rows), CHUNK):
                chunk = self.store.documents(rows[start : start + CHUNK])
                texts = [document.full_text for document in chunk]
                grow = getattr(self.encoder, "add_documents", self.encoder.encode_documents)
                self.index.add(grow(texts))
        return len(rows)

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
            if hasattr(self.encoder, "remove_documents"):
                self.encoder.remove_documents(self.store.texts(wanted))
            self.index.delete(rows)
            self.store.delete(rows)
        return len(wanted)

    def compact(self) -> None:
        """Give back the room of deleted documents; BM25 is refitted, average length included."""
        with self._changing():
            self.store.compact()
            if hasattr(self.encoder, "fit_documents"):
                from indexing import InvertedIndex

                self.__dict__["index"] = _filled(self.encoder, self.store, InvertedIndex())
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
                head = _head(self.path, self.name, self.encoder, self.store, origin)
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


def _settle(folder: Path) -> None:
    """Undo a killed write before building anew; a head that cannot be read is as good as none."""
    try:
        roll_back(folder)
    except IndexFormatError as error:
        if (folder / HEAD).exists():
            log.warning("%s; it is built anew", error)
            (folder / HEAD).unlink()
        for part in (INDEX, DOCUMENTS, "encoder"):
            shutil.rmtree(folder / part, ignore_errors=True)


def without(ranking: Ranking, doc_id: str) -> Ranking:
    """Return a ranking without one document."""
    kept = [place for place, found in enumerate(ranking.doc_ids) if found != doc_id]
    return Ranking([ranking.doc_ids[place] for place in kept], ranking.scores[kept])


def _head(
    folder: Path, name: str, encoder: Encoder, documents: DocumentStore, origin: dict[str, Any]
) -> Head:
    from encoders.files import MANIFEST, read_json

    manifest = read_json(folder / INDEX / MANIFEST)
    return Head(
        name=name,
        index_generation=str(manifest["generation"]),
        documents_generation=documents.generation,
        documents=len(documents),
        index_bytes=sum(int(entry["bytes"]) for entry in manifest["files"].values()),
        origin=origin,
        **place_encoder(folder, encoder),
    )


def _filled(encoder: Any, documents: DocumentStore, index: Index | None) -> Index:
    """Return an index of every document of the store, in row order."""
    from indexing import FlatIndex, InvertedIndex

    if index is not None and index.rows:
        raise ConfigError(f"index: has {index.rows:,} rows already; build takes an empty one")
    if hasattr(encoder, "fit_documents"):
        filled = InvertedIndex() if index is None else index
        filled.add(encoder.fit_documents(document.full_text for document in documents))
        return filled
    if index is None:
        dense = isinstance(encoder.encode_documents([]), np.ndarray)
        filled = FlatIndex() if dense else InvertedIndex()
    else:
        filled = index
    with progress("index", len(documents), "documents", show=len(documents) > CHUNK) as advance:
        for chunk in _chunks(documents):
            vectors = encoder.encode_documents(chunk)
            filled.add(vectors)
            advance(len(chunk))
    return filled


def _chunks(documents: DocumentStore) -> Iterator[list[str]]:
    chunk: list[str] = []
    for document in documents:
        chunk.append(document.full_text)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
