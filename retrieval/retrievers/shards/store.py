"""The documents of a collection in several stores, read as one, as are their tokens and terms."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError
from sluice.encoders.foundation.numbers import plural, whole_number
from sluice.indexing.wrappers.fan_out import ShardRows
from sluice.indexing.wrappers.sharded import ShardedIndex
from sluice.retrieval.documents.columns import Column, Mask
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.segment import id_hash
from sluice.retrieval.documents.store import CHUNK, DocumentStore, Placed, write_documents
from sluice.retrieval.documents.where import Condition, matching_rows
from sluice.retrieval.retrievers.corpus.token_scores import TokenReader

MOST = 1000  # shards
INCOMING = ".incoming"  # documents on their way to their shards


def shard_count(documents: int, shards: int | None, shard_size: int | None) -> int:
    """Return the number of shards, given as it is or by the documents of each.

    ``ConfigError`` for both or neither, and for more shards than documents.
    """
    if (shards is None) == (shard_size is None):
        raise ConfigError("shards: expected their number, or shard_size, the documents of each")
    if shard_size is not None:
        name, count = "shard_size", -(-documents // whole_number(shard_size, "shard_size", 1))
        count = max(count, 1)
    else:
        name, count = "shards", whole_number(shards, "shards", 1)
        if count > max(documents, 1):
            raise ConfigError(
                f"shards: {count:,}, for {plural(documents, 'document')}; expected at most one for "
                "each document"
            )
    if count > MOST:
        raise ConfigError(f"{name}: makes {count:,} shards, expected at most {MOST:,}")
    return count


def owners_of(document_ids: Iterable[str], shards: int) -> NDArray[np.int64]:
    """Return the shard of each id: a hash of it, the same everywhere and always."""
    hashes = np.fromiter(map(id_hash, document_ids), np.uint64)
    return (hashes % np.uint64(shards)).astype(np.int64)


class ShardedStore(DocumentStore):
    """A collection's documents, each in the store of its shard; rows are the collection's.

    ``rows`` is shared with the index. A store that is None could not be opened, and ``absent`` has
    the reason: nothing can be changed, and its documents are read in its replica of ``replicas``,
    or not found.
    """

    def __init__(
        self,
        path: Path,
        stores: Sequence[DocumentStore | None],
        rows: ShardRows,
        *,
        names: Sequence[str],
        generation: str = "",
        absent: Mapping[str, str] | None = None,
        replicas: Mapping[int, DocumentStore] | None = None,
    ) -> None:
        self.path, self.names, self.generation = path, list(names), generation
        self.stores, self.shard_rows = list(stores), rows
        self.absent, self._replicas = dict(absent or {}), dict(replicas or {})
        self.changed: set[int] = set()  # shards whose documents differ from what was opened

    @classmethod
    def written(
        cls,
        path: Path,
        folder: Path,
        documents: Iterable[Document],
        *,
        part: str,
        shards: int | None = None,
        shard_size: int | None = None,
    ) -> ShardedStore:
        """Write a stream of documents into new stores ``folder/shard-i/part``.

        Row numbers are positions in the stream; ``path`` is the retriever's folder, which keeps the
        documents for as long as it takes to part them.
        """
        shutil.rmtree(path / INCOMING, ignore_errors=True)
        whole = write_documents(path / INCOMING, documents)
        count = shard_count(len(whole), shards, shard_size)
        rows = ShardRows.split(_owners(whole, count), count)
        names = [f"shard-{number}" for number in range(count)]
        stores = [
            write_documents(folder / name / part, whole.streamed(own))
            for name, own in zip(names, rows.rows, strict=True)
        ]
        shutil.rmtree(path / INCOMING, ignore_errors=True)
        made = cls(path, stores, rows, names=names)
        made.changed = set(range(count))
        return made

    def _present(self) -> Iterator[tuple[int, DocumentStore]]:
        for shard in range(len(self.stores)):
            store = self.readable(shard)
            if store is not None:
                yield shard, store

    def readable(self, shard: int) -> DocumentStore | None:
        """Return the store, or the replica, that a shard's documents are read in; None without."""
        store = self.stores[shard]
        return self._replicas.get(shard) if store is None else store

    def _all(self) -> list[DocumentStore]:
        stores = [store for store in self.stores if store is not None]
        if len(stores) < len(self.stores):
            missing = [n for n, s in zip(self.names, self.stores, strict=True) if s is None]
            raise IndexFormatError(
                f"{self.path}: {', '.join(missing)} cannot be opened, so no document can be "
                "changed; put the shard back (sluice verify says what is wrong)"
            )
        return stores

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        """A hash of the documents and deletions."""
        found = map(self.readable, range(len(self.stores)))
        return fingerprint_of(*[store and store.fingerprint for store in found])

    @property
    def deleted(self) -> NDArray[np.int64]:  # type: ignore[override]
        """The rows without a document, ascending."""
        dead = [self.shard_rows.rows[shard][store.deleted] for shard, store in self._present()]
        return np.sort(np.concatenate([np.empty(0, np.int64), *dead]))

    @property
    def rows_total(self) -> int:
        """The number of rows, those of deleted documents included."""
        return len(self.shard_rows)

    def __iter__(self) -> Iterator[Document]:
        """Stream the documents in row order, without the deleted ones."""
        yield from self.streamed(self.live_rows)

    def ids(self, rows: ArrayLike) -> list[str]:
        """Return the ids of rows, in their order."""
        places = self._checked(rows)
        ids = [""] * len(places)
        for shard, at, local in self.shard_rows.parted(places):
            for place, name in zip(at.tolist(), self._store(shard).ids(local), strict=True):
                ids[place] = name
        return ids

    def documents(self, rows: ArrayLike) -> list[Document]:
        """Return the documents of rows, in their order."""
        places = self._checked(rows)
        found: dict[int, Document] = {}
        for shard, at, local in self.shard_rows.parted(places):
            found.update(zip(at.tolist(), self._store(shard).documents(local), strict=True))
        return [found[place] for place in range(len(places))]

    def part(self, row: int) -> DocumentStore:
        """Return the store that holds a row."""
        return self._store(int(self.shard_rows.owners[row]))

    def _store(self, shard: int) -> DocumentStore:
        store = self.readable(shard)
        if store is None:
            name = self.names[shard]
            raise IndexFormatError(
                f"{self.path}: {name} cannot be read ({self.absent.get(name, 'it is missing')}); "
                "put the shard back"
            )
        return store

    def rows(self, document_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of each id, -1 where no document has it."""
        rows = np.full(len(document_ids), -1, dtype=np.int64)
        owners = owners_of(document_ids, len(self.stores))
        for shard, store in self._present():
            here = np.flatnonzero(owners == shard)
            local = store.rows([document_ids[at] for at in here.tolist()])
            known = local >= 0
            rows[here[known]] = self.shard_rows.rows[shard][local[known]]
        return rows

    def why_unknown(self, document_id: str) -> str:
        """Return which shard would have the document, where that cannot be read; else ""."""
        (owner,) = owners_of([document_id], len(self.stores)).tolist()
        if self.readable(owner) is not None:
            return ""
        name = self.names[owner]
        return f"{name}, where it would be, cannot be read ({self.absent.get(name, 'missing')})"

    def sorted_id_hashes(self) -> NDArray[np.uint64]:
        """Return the hashes of all ids, ascending."""
        hashes = [store.sorted_id_hashes() for _, store in self._present()]
        return np.sort(np.concatenate([np.empty(0, np.uint64), *hashes]))

    @property
    def columns(self) -> list[tuple[int, dict[str, list[Column]]]]:
        """The metadata of the shards' rows, one shard after the other."""
        return [each for _, store in self._present() for each in store.columns]

    def matching(self, where: Iterable[Condition]) -> Mask:
        """Return the mask over all rows of what matches, see ``matching_rows``."""
        mask = np.zeros(self.rows_total, dtype=np.bool_)
        present = [self.shard_rows.rows[shard] for shard, _ in self._present()]
        order = np.concatenate([np.empty(0, np.int64), *present])
        mask[order] = matching_rows(_InTurn(self, order), where)
        return mask

    # Changes.

    def append(self, documents: Iterable[Document]) -> NDArray[np.int64]:
        """Add documents to their shards; return their rows, in the order given."""
        return self._added(documents, refuse=True).rows

    def update(self, documents: Iterable[Document]) -> Placed:
        """Add documents and delete those of the same ids."""
        return self._added(documents, refuse=False)

    def _added(self, documents: Iterable[Document], *, refuse: bool) -> Placed:
        stores, before = self._all(), list(self.shard_rows.rows)
        shutil.rmtree(self.path / INCOMING, ignore_errors=True)
        try:
            given = write_documents(self.path / INCOMING, documents)
            owners = _owners(given, len(stores))
            replaced = [np.empty(0, np.int64)]
            for shard in np.unique(owners).tolist():
                stream = given.streamed(np.flatnonzero(owners == shard))
                if refuse:
                    stores[shard].append(stream)
                else:
                    placed = stores[shard].update(stream)
                    replaced.append(before[shard][placed.replaced])
                self.changed.add(shard)
        finally:
            shutil.rmtree(self.path / INCOMING, ignore_errors=True)
        return Placed(self.shard_rows.extend(owners), np.sort(np.concatenate(replaced)))

    def delete(self, rows: ArrayLike) -> None:
        """Delete the documents of rows; the rows stay, empty, until ``compact``."""
        stores = self._all()
        for shard, _, local in self.shard_rows.parted(self._checked(rows)):
            stores[shard].delete(local)
            self.changed.add(shard)

    @property
    def is_compact(self) -> bool:
        """Whether every shard's documents are."""
        return all(store.is_compact for store in self._all())

    def replace(self, documents: Iterable[Document]) -> None:
        """Write documents in the place of all: rows begin anew."""
        stores, given = self._all(), write_documents(self.path / INCOMING, documents)
        self.shard_rows = ShardRows.split(_owners(given, len(stores)), len(stores))
        for store, rows in zip(stores, self.shard_rows.rows, strict=True):
            store.replace(given.streamed(rows))
        self.changed = set(range(len(stores)))
        shutil.rmtree(self.path / INCOMING, ignore_errors=True)

    def compact(self) -> None:
        """Compact every shard; rows are renumbered in their order."""
        kept = np.ones(self.rows_total, dtype=np.bool_)
        kept[self.deleted] = False
        for store in self._all():
            store.compact()
        self.changed = set(range(len(self.stores)))
        self.shard_rows.keep(kept)


def matching_in_shards(store: DocumentStore, where: Iterable[Condition]) -> Mask:
    """Return the mask over all rows of a store in shards, see ``ShardedStore.matching``."""
    if not isinstance(store, ShardedStore):
        raise TypeError("the documents are not in shards")
    return store.matching(where)


class _InTurn(DocumentStore):
    """The shards' documents one shard after the other, as their columns of metadata are."""

    def __init__(self, store: ShardedStore, order: NDArray[np.int64]) -> None:
        self.path, self._store = store.path, store
        self._places = np.full(store.rows_total, -1, dtype=np.int64)
        self._places[order] = np.arange(len(order))
        self._count = len(order)

    @property
    def rows_total(self) -> int:
        return self._count

    @property
    def columns(self) -> list[tuple[int, dict[str, list[Column]]]]:
        return self._store.columns

    def all_rows(self) -> Iterator[Document]:
        return (each for _, store in self._store._present() for each in store.all_rows())

    def rows(self, document_ids: Sequence[str]) -> NDArray[np.int64]:
        rows = self._store.rows(document_ids)
        return np.where(rows >= 0, self._places[rows], rows)


def _owners(store: DocumentStore, shards: int) -> NDArray[np.int64]:
    total = store.rows_total
    parts = [
        owners_of(store.ids(range(start, min(start + CHUNK, total))), shards)
        for start in range(0, total, CHUNK)
    ]
    return np.concatenate([np.empty(0, np.int64), *parts])


class ShardedReader(TokenReader):
    """A reader over shards."""

    def holding(self, row: int) -> tuple[TokenReader, int]:
        """Return the reader of the shard that holds a row, and its own row there."""
        if not (isinstance(self.index, ShardedIndex) and isinstance(self.store, ShardedStore)):
            raise TypeError("documents and index are not in shards")
        part, local = self.index.part(row)
        return TokenReader(self.encoder, part, self.store.part(row), self.cut), local
