"""Saves a retriever in shards: every shard that changed first, what binds them last."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sluice.encoders.foundation.disk.files import link_or_copy, read_json, sync_tree
from sluice.encoders.foundation.disk.generations import MANIFEST, new_generation, pin_generation
from sluice.indexing.index import Index
from sluice.indexing.storage.rows import write_array
from sluice.indexing.wrappers.sharded import ShardedIndex
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.retrievers.folder import (
    DOCUMENTS,
    GENERATION,
    HEAD,
    INDEX,
    SHARDS,
    Head,
    copy_part,
    place_encoder,
    read_head,
    write_head,
)
from sluice.retrieval.retrievers.shards.opening import FORMAT, VERSION
from sluice.retrieval.retrievers.shards.store import ShardedStore

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
