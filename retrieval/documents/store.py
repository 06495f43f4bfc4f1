"""Stores ids, titles, texts and metadata on disk, by row and by id: a retriever's documents."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.disk.files import fingerprint_of, link_or_copy, read_json
from sluice.encoders.foundation.disk.generations import MANIFEST, new_generation, open_generation
from sluice.encoders.foundation.errors import DataError, IndexFormatError
from sluice.retrieval.documents.columns import Column, metadata_between
from sluice.retrieval.documents.document import NOTHING, Document, Metadata
from sluice.retrieval.documents.readers.documents import Documents
from sluice.retrieval.documents.segment import Segment, SegmentFiles, id_hash, write_segment

FORMAT = "sluice.documents"
VERSION = 1
CHUNK = 4096  # documents read at a time
DELETED = "deleted.npy"  # int64, ascending: the rows without a document


def write_documents(path: Path | str, documents: Iterable[Document]) -> DocumentStore:
    """Write a stream of documents as the folder's new state and open it.

    Row numbers are positions in the stream. Raises ``DataError`` for an invalid document
    or an id that occurs twice; the folder then stays as it was.
    """
    path = Path(path)
    facts: dict[str, Any] = {}
    with new_generation(path, FORMAT, VERSION, facts) as folder:
        count = write_segment(folder, 1, documents, ())
        _describe(folder, facts, [count] if count else [], np.empty(0, np.int64))
    store = open_documents(path)
    if isinstance(documents, Documents):
        store.unread = documents.unread
    return store


def open_documents(path: Path | str, *, generation: str | None = None) -> DocumentStore:
    """Open a folder's current (or the named) generation; no text is read yet."""
    return DocumentStore(Path(path), generation=generation)


class Placed(NamedTuple):
    """Where ``update`` put documents: their ``rows``, and the rows of those they ``replaced``."""

    rows: NDArray[np.int64]
    replaced: NDArray[np.int64]


class DocumentStore:
    """Documents by row and by id, memory-mapped.

    A row is a position over all segments and stays the same until ``compact``, as in an index that
    is given the same documents. ``append``, ``update``, ``delete`` and ``compact`` write a new
    generation and turn this object to it; other readers keep the state they opened. ``len`` counts
    the documents that are not deleted.
    """

    def __init__(self, path: Path, *, generation: str | None = None) -> None:
        self.path = path
        self.unread: Collection[str] = ()  # of the source it was written from, see ``Documents``
        self._open(generation)

    def _open(self, generation: str | None) -> None:
        manifest, folder = open_generation(self.path, FORMAT, VERSION, generation=generation)
        counts = _counts(manifest, self.path)
        self.generation = str(manifest["generation"])
        self.fingerprint = fingerprint_of(manifest["files"])  # of the documents and deletions
        self._segments = [Segment(folder, *each) for each in enumerate(counts, 1)]
        self._starts = np.cumsum([0, *counts])  # first row of each segment, and the end
        self.deleted: NDArray[np.int64] = open_array(
            folder / DELETED, np.int64, (manifest["deleted"],), mapped=False
        )
        ascending = (np.diff(self.deleted, prepend=-1) > 0).all()
        if not ascending or self.deleted.max(initial=-1) >= self.rows_total:
            raise IndexFormatError(
                f"{folder / DELETED}: its rows are not those of documents; rebuild the folder"
            )

    @property
    def rows_total(self) -> int:
        """The number of rows, those of deleted documents included: the next one to be given."""
        return int(self._starts[-1])

    @property
    def live_rows(self) -> NDArray[np.int64]:
        """The rows with a document, ascending."""
        return np.delete(np.arange(self.rows_total), self.deleted)

    def __len__(self) -> int:
        return self.rows_total - len(self.deleted)

    def __iter__(self) -> Iterator[Document]:
        """Stream the documents in row order, without the deleted ones."""
        dead = set(self.deleted.tolist())
        for segment, start in zip(self._segments, self._starts.tolist(), strict=False):
            for row, document in enumerate(segment.documents(), start):
                if row not in dead:
                    yield document

    def __call__(self) -> Iterator[Document]:
        """Stream the documents: ``retriever.documents()`` is ``iter(retriever.documents)``."""
        return iter(self)

    def __contains__(self, document_id: str) -> bool:
        return self.row(document_id) is not None

    # By row.

    def id(self, row: int) -> str:
        """Return the id of a row, deleted or not."""
        return self.ids([row])[0]

    def ids(self, rows: ArrayLike) -> list[str]:
        """Return the ids of rows, in their order."""
        places = self._checked(rows)
        ids: list[str] = [""] * len(places)
        for segment, positions, local in self._parted(places):
            for position, name in zip(positions.tolist(), segment.ids(local), strict=True):
                ids[position] = name
        return ids

    def document(self, row: int) -> Document:
        """Return the document of a row, deleted or not."""
        return self.documents([row])[0]

    def documents(self, rows: ArrayLike) -> list[Document]:
        """Return the documents of rows, in their order; each block is decompressed once."""
        places = self._checked(rows)
        documents: dict[int, Document] = {}
        for segment, positions, local in self._parted(places):
            order = np.argsort(local, kind="stable")
            found = segment.documents_at(local[order])
            documents.update(zip(positions[order].tolist(), found, strict=True))
        return [documents[position] for position in range(len(places))]

    def streamed(self, rows: ArrayLike) -> Iterator[Document]:
        """Stream the documents of rows, in their order."""
        places = self._checked(rows)
        for start in range(0, len(places), CHUNK):
            yield from self.documents(places[start : start + CHUNK])

    def all_rows(self) -> Iterator[Document]:
        """Stream the documents of all rows, those of deleted documents too."""
        return self.streamed(np.arange(self.rows_total))

    def described(self, rows: ArrayLike) -> tuple[list[str], list[Metadata]]:
        """Return the ids and the metadata of rows, in their order, without reading texts."""
        places = self._checked(rows)
        metadata: list[Metadata] = [NOTHING] * len(places)
        for segment, positions, local in self._parted(places):
            if segment.columns and len(local):
                first, stop = int(local.min()), int(local.max()) + 1
                between = metadata_between(segment.columns, first, stop)
                for position, row in zip(positions.tolist(), local.tolist(), strict=True):
                    metadata[position] = between[row - first]
        return self.ids(places), metadata

    # By id.

    def row(self, document_id: str) -> int | None:
        """Return the row of an id, or None if no document (that is not deleted) has it."""
        row = int(self.rows([document_id])[0])
        return None if row < 0 else row

    def rows(self, document_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of each id, -1 where no document has it."""
        rows = np.full(len(document_ids), -1, dtype=np.int64)
        hashes = np.fromiter(map(id_hash, document_ids), np.uint64, len(document_ids))
        for segment, start in zip(self._segments, self._starts.tolist(), strict=False):
            for position, row in segment.find(document_ids, hashes):
                if not self._is_deleted(start + row):
                    rows[position] = start + row
        return rows

    def find(self, document_id: str) -> Document | None:
        """Return the document of an id, or None."""
        row = self.row(document_id)
        return None if row is None else self.document(row)

    def why_unknown(self, document_id: str) -> str:
        """Return why a document may be there and is not found: "", unless a part is missing."""
        return ""

    def text(self, document_id: str) -> str:
        """Return what is encoded and reranked of a document: its title and text."""
        return self.texts([document_id])[0]

    def texts(self, document_ids: Sequence[str]) -> list[str]:
        """Return the full text of each id, in their order."""
        return [document.full_text for document in self.documents_of(document_ids)]

    def documents_of(self, document_ids: Sequence[str]) -> list[Document]:
        """Return the document of each id, in their order; an unknown id is a ``DataError``."""
        rows = self.rows(document_ids)
        if len(rows) and rows.min() < 0:
            absent = [document_ids[at] for at in np.flatnonzero(rows < 0).tolist()]
            raise DataError(
                f"{self.path}: {len(absent):,} of {len(rows):,} requested documents are not in the "
                f"store ({', '.join(map(repr, absent[:3]))}); was the run made on another corpus?"
            )
        return self.documents(rows)

    def sorted_id_hashes(self) -> NDArray[np.uint64]:
        """Return the hashes of all ids, ascending: equal for stores of the same ids."""
        kept = [np.empty(0, np.uint64)]
        for segment, start in zip(self._segments, self._starts.tolist(), strict=False):
            rows = segment.rows_at(np.arange(len(segment))) + start
            kept.append(segment.id_hashes[~np.isin(rows, self.deleted)])
        return np.sort(np.concatenate(kept))

    # Metadata.

    @property
    def columns(self) -> list[tuple[int, dict[str, list[Column]]]]:
        """The metadata in row order: of each segment its number of rows and its columns by key."""
        return [(len(segment), segment.columns) for segment in self._segments]

    # Changes.

    def append(self, documents: Iterable[Document]) -> NDArray[np.int64]:
        """Add documents after the others; return their rows.

        Raises ``DataError`` for an id that is in use (a deleted one may be added again).
        """
        return self._extended(documents, refuse=True).rows

    def update(self, documents: Iterable[Document]) -> Placed:
        """Add documents after the others and delete those of the same ids, in one step."""
        return self._extended(documents, refuse=False)

    def _extended(self, documents: Iterable[Document], *, refuse: bool) -> Placed:
        start, known = self.rows_total, list[int]()
        with self._next_generation() as (folder, facts):
            counts = self._link_segments(folder)
            names = {name for _, columns in self.columns for name in columns}
            count = write_segment(folder, len(counts) + 1, documents, names)
            if count:
                for name, row in self._known(Segment(folder, len(counts) + 1, count)):
                    if refuse:
                        raise DataError(
                            f"{self.path}: document {name!r} is already there (row {row}); delete "
                            "it first, update instead of adding, or give the new one another id"
                        )
                    known.append(row)
                counts.append(count)
            replaced = np.array(sorted(known), dtype=np.int64)
            _describe(folder, facts, counts, np.union1d(self.deleted, replaced))
        self._open(None)
        return Placed(np.arange(start, start + count), replaced)

    def delete(self, rows: ArrayLike) -> None:
        """Delete the documents of rows; the rows stay, empty, until ``compact``."""
        deleted = np.union1d(self.deleted, self._checked(rows))
        with self._next_generation() as (folder, facts):
            _describe(folder, facts, self._link_segments(folder), deleted)
        self._open(None)

    @property
    def is_compact(self) -> bool:
        """Whether it is as ``write_documents`` wrote it: one segment, and no row deleted."""
        return len(self._segments) < 2 and not len(self.deleted)

    def compact(self) -> None:
        """Write the documents that are left as one segment; rows are renumbered in their order."""
        self.replace(self)

    def replace(self, documents: Iterable[Document]) -> None:
        """Write documents in the place of all, as one segment: rows begin anew."""
        with self._next_generation() as (folder, facts):
            count = write_segment(folder, 1, documents)
            _describe(folder, facts, [count] if count else [], np.empty(0, np.int64))
        self._open(None)

    @contextmanager
    def _next_generation(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        facts: dict[str, Any] = {}
        with new_generation(self.path, FORMAT, VERSION, facts) as folder:
            current = read_json(self.path / MANIFEST).get("generation")
            if current != self.generation:
                raise IndexFormatError(
                    f"{self.path}: generation {current} is current, this store opened "
                    f"{self.generation}; open it again before changing it"
                )
            yield folder, facts

    def _link_segments(self, folder: Path) -> list[int]:
        """Put this state's segments into a new folder, without copying where links are possible."""
        for number, segment in enumerate(self._segments, 1):
            for source, target in zip(segment.files, SegmentFiles.of(folder, number), strict=True):
                if not source.exists():  # a segment without metadata has no columns
                    continue
                link_or_copy(source, target)
        return [len(segment) for segment in self._segments]

    def _known(self, added: Segment) -> Iterator[tuple[str, int]]:
        """Yield (id, row) of the documents here whose ids a new segment has too."""
        for segment, start in zip(self._segments, self._starts.tolist(), strict=False):
            shared = np.flatnonzero(np.isin(added.id_hashes, segment.id_hashes))
            names = added.ids(added.rows_at(shared))
            for position, row in segment.find(names, added.id_hashes[shared]):
                if not self._is_deleted(start + row):
                    yield names[position], start + row

    # Rows.

    def _checked(self, rows: ArrayLike) -> NDArray[np.int64]:
        checked = np.atleast_1d(np.asarray(rows, dtype=np.int64))
        if len(checked) and (checked.min() < 0 or checked.max() >= self.rows_total):
            outside = checked[(checked < 0) | (checked >= self.rows_total)]
            raise DataError(
                f"{self.path}: row {outside[0]} is outside the {self.rows_total:,} rows; "
                "do index and documents belong together?"
            )
        return checked

    def _parted(
        self, rows: NDArray[np.int64]
    ) -> Iterator[tuple[Segment, NDArray[np.intp], NDArray[np.int64]]]:
        """Yield (segment, positions in ``rows``, rows within the segment)."""
        if len(self._segments) == 1 and len(rows):  # as of most: a search reads a few ids
            yield self._segments[0], np.arange(len(rows)), rows
            return
        which = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(which).tolist():
            positions = np.flatnonzero(which == number)
            yield self._segments[number], positions, rows[positions] - self._starts[number]

    def _is_deleted(self, row: int) -> bool:
        if not len(self.deleted):
            return False
        at = int(np.searchsorted(self.deleted, row))
        return at < len(self.deleted) and int(self.deleted[at]) == row


def _counts(manifest: Mapping[str, Any], path: Path) -> list[int]:
    """Return the documents of each segment, deleted ones too, as the manifest says."""
    counts: Any = manifest.get("segments")
    deleted: Any = manifest.get("deleted")
    sound = isinstance(counts, list) and all(
        type(count) is int and 0 < count < 2**40 for count in counts
    )
    if not sound or type(deleted) is not int or not 0 <= deleted <= sum(counts):
        raise IndexFormatError(
            f"{path / MANIFEST}: segments {counts!r:.80} and {deleted!r:.80} deleted documents; "
            "expected their numbers: rebuild the folder"
        )
    return list(counts)


def _describe(
    folder: Path, facts: dict[str, Any], counts: list[int], deleted: NDArray[np.int64]
) -> None:
    np.save(folder / DELETED, deleted)
    gone = np.diff(np.searchsorted(deleted, np.cumsum([0, *counts])))
    for number in np.flatnonzero(gone == counts).tolist():  # names that only the deleted have
        for file in SegmentFiles.of(folder, number + 1)[-2:]:
            file.unlink(missing_ok=True)
    facts.update(documents=sum(counts) - len(deleted), deleted=len(deleted), segments=counts)
