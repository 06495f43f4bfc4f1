"""The folder of a retriever in shards: begun, opened, filled, moved, saved and committed."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.disk.files import link_or_copy, read_json, sync_tree
from sluice.encoders.foundation.disk.generations import (
    MANIFEST,
    new_generation,
    open_generation,
    pin_generation,
)
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError, SluiceError
from sluice.indexing import FlatIndex, InvertedIndex, open_index
from sluice.indexing.index import Index, Recipe
from sluice.indexing.storage.rows import write_array
from sluice.indexing.table import SHARDABLE
from sluice.indexing.wrappers.fan_out import ShardRows
from sluice.indexing.wrappers.sharded import ShardedIndex
from sluice.retrieval.documents.document import document_input
from sluice.retrieval.documents.store import DocumentStore, open_documents
from sluice.retrieval.retrievers.corpus.fill_index import default_index
from sluice.retrieval.retrievers.folder import (
    DOCUMENTS,
    GENERATION,
    HEAD,
    INDEX,
    REPLICAS,
    SHARDS,
    Head,
    copy_part,
    head_of,
    pinned_shards,
    place_encoder,
    read_head,
    write_head,
)
from sluice.retrieval.retrievers.shards.store import ShardedStore

if TYPE_CHECKING:
    from sluice.retrieval.documents.document import Document
    from sluice.retrieval.retrievers.shards.workers.crew import ShardWorkers


def committed(
    path: Path,
    name: str,
    encoder: Any,
    documents: DocumentStore,
    index: Index,
    origin: dict[str, Any],
    passages: dict[str, Any] | None,
    shard_set: str | None,
) -> Head:
    """Save encoder and index, then make them and the saved documents the folder's current state.

    ``shard_set`` is the folder of the shards, None of a retriever without any.
    """
    index.encoder_fingerprint = str(encoder.fingerprint)
    if shard_set is None:
        index.save(path / INDEX)
        head = head_of(path, name, encoder, documents, origin, passages)
    else:
        head = save_shards(path, name, encoder, documents, index, origin, passages, shard_set)
    write_head(path, head)
    index.settle()
    return head


CHUNK = 4_096  # documents at a time

Rows = NDArray[np.int64]


def stored_vectors(
    encoder: Any, store: DocumentStore, index: Index, rows: Rows
) -> Iterator[Any] | None:
    """Return the vectors of the store's documents in row order, in chunks; None: encode again.

    ``rows`` are the documents' in the index; one of row -1 is encoded. An encoder that learns from
    the collection encodes again, because it forgets what was deleted.
    """
    hooks = hooks_of(encoder)
    parts = index.parts if isinstance(index, ShardedIndex) else [index]
    unfitted = hooks.fitted_terms is not None and hooks.fitted_terms.needs_floors
    if hooks.learner is not None or unfitted or not all(map(_exact, parts)):
        return None
    return (
        _vectors(encoder, store, index, rows[at : at + CHUNK], at)
        for at in range(0, len(rows), CHUNK)
    )


def _vectors(encoder: Any, store: DocumentStore, index: Index, rows: Rows, first: int) -> Any:
    new = rows < 0
    if not new.any():
        return index.documents(rows)
    documents = store.documents(first + np.flatnonzero(new))
    made = encoder.encode_documents([document_input(encoder, each) for each in documents])
    if new.all():  # the index may be empty, and know no width
        return made
    kept, dense = index.documents(rows[~new]), isinstance(made, np.ndarray)
    joined = np.concatenate([kept, made]) if dense else sparse.vstack([kept, made], format="csr")
    return joined[np.argsort(np.argsort(new, kind="stable"))]


def _exact(part: Index) -> bool:
    if type(part) is InvertedIndex:
        return part.settings.exact and part.settings.top_terms is None
    return type(part) is FlatIndex


# Scores of one document and one query; those of the others need the whole collection.
PARTABLE = ("cosine", "dot", "max_sim")


def new_shards(
    path: Path,
    encoder: Any,
    documents: Iterable[Document],
    index: Index | None,
    *,
    shards: int | None = None,
    shard_size: int | None = None,
) -> tuple[ShardedStore, ShardedIndex, str]:
    """Write the documents into new shards below ``path``; return them, an index, the folder's name.

    ``index`` is empty, and copied for each shard. ``ConfigError`` for an encoder or an index that
    cannot be split, before anything is written.
    """
    check_partable(encoder, index)
    shard_set = next_set(path)
    store = ShardedStore.written(
        path, path / SHARDS / shard_set, documents, part=DOCUMENTS, shards=shards,
        shard_size=shard_size,
    )  # fmt: skip
    empty = default_index(encoder) if index is None else index
    return store, ShardedIndex.split(empty, store.shard_rows, store.names), shard_set


def check_partable(encoder: Any, index: Any) -> None:
    """Raise ``ConfigError`` for what answers a query from the whole collection only."""
    similarity = hooks_of(encoder).similarity
    if similarity not in PARTABLE:
        raise ConfigError(
            f"shards: the scores of this encoder ({similarity}) need the whole collection; "
            f"expected one of {', '.join(PARTABLE)}, or leave shards out"
        )
    if isinstance(index, Recipe):
        raise ConfigError(
            "shards: index: auto measures one index and chooses; name the type of the shards: "
            f"{', '.join(SHARDABLE)}"
        )
    if isinstance(index, Index) and index.type_name:
        ShardedIndex.check(index)


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
                copies.append(_open_shard(folder, own, head, count, open_part))
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


def _open_shard(folder: Path, own: Head, head: Head, rows: int, open_part: Opener) -> Index:
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
        return [_open_shard(folder, own, head, rows, open_part)]
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


ENCODER = "encoder"  # of a shard: links to the files of the retriever's


def save_shards(
    path: Path,
    name: str,
    encoder: Any,
    store: DocumentStore,
    index: Index,
    origin: dict[str, Any],
    passages: dict[str, Any] | None,
    shard_set: str,
) -> Head:
    """Write the shards of the folder ``shards/SET`` that changed, and return the whole's head.

    The whole's ``retriever.json``, which the caller writes, pins the state of each: until then they
    are rolled back to the one before.
    """
    if not (isinstance(store, ShardedStore) and isinstance(index, ShardedIndex)):
        raise TypeError("documents and index are not in shards")
    fields = place_encoder(path, encoder)
    before = {} if not (path / HEAD).exists() else read_head(path).shards or {}
    known = before.get("heads", {}) if before.get("set") == shard_set else {}
    heads = {}
    changed = store.changed | index.changed
    for shard, (part, own) in enumerate(zip(store.names, store.stores, strict=True)):
        if shard not in changed and part in known:
            heads[part] = known[part]
            continue
        folder = path / SHARDS / shard_set / part
        piece = index.parts[shard]
        piece.encoder_fingerprint = fields["encoder_fingerprint"]
        piece.save(folder / INDEX)
        _link_encoder(path, folder, fields, known.get(part))
        manifest = read_json(folder / INDEX / MANIFEST)
        documents = read_json(folder / DOCUMENTS / MANIFEST)
        head = Head(
            **{**fields, "encoder": ENCODER},
            name=f"{name}-{part}",
            index_generation=str(manifest["generation"]),
            documents_generation=str(documents["generation"]),
            documents=0 if own is None else len(own),
            index_bytes=sum(int(entry["bytes"]) for entry in manifest["files"].values()),
            origin={"part_of": {"name": name, "shard": shard, "shards": len(store.names)}},
            passages=passages,
        )
        write_head(folder, head)
        heads[part] = asdict(head)
    with new_generation(path / INDEX, FORMAT, VERSION, {}) as folder:
        for shard, rows in enumerate(store.shard_rows.rows):
            write_array(folder / f"rows-{shard}.npy", [rows], rows.shape, np.int64)
    generation = str(read_json(path / INDEX / MANIFEST)["generation"])
    store.generation = generation
    return Head(
        **fields,
        name=name,
        index_generation=generation,
        documents_generation=generation,
        documents=len(store),
        index_bytes=sum(int(head["index_bytes"]) for head in heads.values()),
        origin=origin,
        passages=passages,
        shards={"set": shard_set, "heads": heads},
    )


def next_set(path: Path) -> str:
    """Return the name of a new folder of shards; one that a killed build left is removed."""
    current = read_head(path).shards if (path / HEAD).exists() else None
    used = None if current is None else current["set"]
    for folder in path.glob(f"{SHARDS}/*"):
        if folder.name != used:
            shutil.rmtree(folder, ignore_errors=True)
    return f"s{1 if used is None else int(used[1:]) + 1:06d}"


def _link_encoder(
    path: Path, folder: Path, fields: dict[str, Any], before: dict[str, Any] | None
) -> None:
    """Give a shard the retriever's encoder, whose files are linked where they can be."""
    source, generation = path / fields["encoder"], fields.get("encoder_generation")
    target = folder / ENCODER
    if generation is None:
        if before is None or before["encoder_fingerprint"] != fields["encoder_fingerprint"]:
            shutil.rmtree(target, ignore_errors=True)
            copy_part(source, target, None)
            sync_tree(target)
        return
    pinned = None if before is None else before["encoder_generation"]
    if target.is_dir():
        for old in target.iterdir():
            if GENERATION.fullmatch(old.name) and old.name != pinned:
                shutil.rmtree(old, ignore_errors=True)  # of an earlier change, or a killed one
    if generation != pinned:
        shutil.copytree(source / generation, target / generation, copy_function=link_or_copy)
    if not (target / MANIFEST).exists():
        link_or_copy(source / generation / MANIFEST, target / MANIFEST)
    sync_tree(target)
    pin_generation(target, generation)
