"""Opens the shards of a retriever, in the state that its ``retriever.json`` pins."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.disk.generations import open_generation
from sluice.encoders.foundation.errors import IndexFormatError, SluiceError
from sluice.indexing import open_index
from sluice.indexing.index import Index
from sluice.indexing.wrappers.fan_out import ShardRows
from sluice.indexing.wrappers.sharded import ShardedIndex
from sluice.retrieval.documents.store import DocumentStore, open_documents
from sluice.retrieval.retrievers.folder import (
    DOCUMENTS,
    INDEX,
    REPLICAS,
    Head,
    pinned_shards,
    read_head,
)
from sluice.retrieval.retrievers.shards.store import ShardedStore

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.shards.workers.crew import ShardWorkers

log = logging.getLogger("sluice")

Opener = Callable[[Path, str], Index]  # of an index's folder, in the state of a generation

FORMAT, VERSION = "sluice.shards", 1  # of the folder that says where each row is


def open_sharded_store(path: Path, head: Head) -> ShardedStore:
    """Open the documents of every shard that can be opened, of others those of a replica."""
    rows = _open_rows(path, head)
    stores: list[DocumentStore | None] = []
    absent: dict[str, str] = {}
    replicas: dict[int, DocumentStore] = {}
    pinned = pinned_shards(path, head)
    for shard, (name, (folder, own)) in enumerate(pinned.items()):
        count = len(rows.rows[shard])
        try:
            stores.append(_opened_documents(folder, own, count))
        except (SluiceError, OSError) as error:
            _raise_if_newer(path, head, error)
            stores.append(None)
            absent[name] = str(error)
            with contextlib.suppress(SluiceError, OSError):  # its index says why it is not used
                replica = path / REPLICAS / name
                _check_state(replica, own)
                replicas[shard] = _opened_documents(replica, own, count)
    return ShardedStore(
        path, stores, rows, names=list(pinned), generation=head.documents_generation,
        absent=absent, replicas=replicas,
    )  # fmt: skip


def _opened_documents(folder: Path, own: Head, rows: int) -> DocumentStore:
    store = open_documents(folder / DOCUMENTS, generation=own.documents_generation)
    if store.rows_total != rows:
        raise IndexFormatError(
            f"{folder}: {store.rows_total:,} rows, {rows:,} are noted; put back the shard that was "
            "built with the others"
        )
    return store


def open_sharded_index(
    path: Path,
    head: Head,
    store: DocumentStore,
    allow: Collection[str],
    workers: ShardWorkers | None = None,
) -> ShardedIndex:
    """Open the index of every shard that can be opened, and of replicas of the same state.

    A shard that cannot, or whose documents cannot be read, is noted with the reason: a search
    raises it, or goes without. ``store`` has the documents of the same state. ``workers`` open and
    search the shards in place of this process.
    """
    if not isinstance(store, ShardedStore):
        raise TypeError("the documents are not in shards")
    parts: list[Index | None] = []
    absent: dict[str, str] = {}
    replicas: list[list[Index]] = []
    for shard, (name, (folder, own)) in enumerate(pinned_shards(path, head).items()):
        count = len(store.shard_rows.rows[shard])
        if store.readable(shard) is None:  # what is found there could not be named
            parts.append(None)
            absent[name] = store.absent[name]
            replicas.append([])
            continue
        opens = _openers(shard, workers, allow)
        copies: list[Index] = []
        for open_part in opens:
            try:
                copies.append(_opened(folder, own, head, count, open_part))
            except (SluiceError, OSError) as error:
                _raise_if_newer(path, head, error)
                absent.setdefault(name, str(error))
        if copies:
            absent.pop(name, None)
        parts.append(copies[0] if copies else None)
        others = _replicas(path / REPLICAS / name, own, head, count, opens[-1])
        replicas.append([*copies[1:], *others])
    index = ShardedIndex(
        parts, store.shard_rows, names=store.names, absent=absent, replicas=replicas
    )
    if workers is not None:
        index.default_params = dict(workers.params)
    return index


def _openers(shard: int, workers: ShardWorkers | None, allow: Collection[str]) -> list[Opener]:
    """Return what opens a shard's index: this process, or each worker that has the shard."""
    if workers is None:
        return [lambda folder, generation: open_index(folder, generation=generation, allow=allow)]
    return [
        lambda folder, generation, replica=replica: workers.open(  # type: ignore[misc]
            shard, replica, folder, generation, allow
        )
        for replica in range(workers.replicas)
    ]


def _opened(folder: Path, own: Head, head: Head, rows: int, open_part: Opener) -> Index:
    index = open_part(folder / INDEX, own.index_generation)
    other = not head.encoder_generation and head.encoder_fingerprint != own.encoder_fingerprint
    if index.encoder_fingerprint != own.encoder_fingerprint or other:
        raise IndexFormatError(
            f"{folder}: of encoder {index.encoder_fingerprint[:12]}, the retriever's is "
            f"{head.encoder_fingerprint[:12]}; all shards are of one encoder: rebuild the retriever"
        )
    if index.rows != rows:
        raise IndexFormatError(
            f"{folder}: the index has {index.rows:,} rows, {rows:,} are noted; put back the shard "
            "that was built with the others"
        )
    return index


def _replicas(folder: Path, own: Head, head: Head, rows: int, open_part: Opener) -> list[Index]:
    if not folder.is_dir():
        return []
    try:
        _check_state(folder, own)
        return [_opened(folder, own, head, rows, open_part)]
    except (SluiceError, OSError) as error:
        log.warning("replica not used: %s", error)
        return []


def _check_state(replica: Path, own: Head) -> None:
    found = read_head(replica)
    states = [
        (each.index_generation, each.documents_generation, each.encoder_fingerprint)
        for each in (found, own)
    ]
    if states[0] != states[1]:
        raise IndexFormatError(f"{replica}: of another state than the shard; copy it again")


def _raise_if_newer(path: Path, head: Head, error: Exception) -> None:
    """Raise ``error`` where it is due to a change of the folder, whose newer state is opened."""
    if read_head(path) != head:
        raise IndexFormatError(str(error)) from None


def _open_rows(path: Path, head: Head) -> ShardRows:
    _, folder = open_generation(path / INDEX, FORMAT, VERSION, generation=head.index_generation)
    shards = len(pinned_shards(path, head))
    return ShardRows(
        [
            np.asarray(open_array(folder / f"rows-{shard}.npy", np.int64, (None,), mapped=False))
            for shard in range(shards)
        ]
    )
