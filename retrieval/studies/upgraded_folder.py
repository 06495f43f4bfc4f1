"""Gives an index a new query encoder: documents and their vectors stay as they are."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.disk.files import read_json, write_json
from sluice.encoders.foundation.disk.folder_swap import replaced_folder, settle
from sluice.encoders.foundation.disk.generations import MANIFEST, pin_generation
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.given import EncoderLike, as_encoder
from sluice.retrieval.retrievers.folder import (
    DOCUMENTS,
    HEAD,
    INDEX,
    copy_part,
    open_placed_encoder,
    place_encoder,
    refuse_foreign,
    write_head,
)
from sluice.retrieval.retrievers.retriever import Retriever

if TYPE_CHECKING:
    from sluice.encoders.towers import TowerEncoder

UPGRADE = "upgrade"  # in `origin`: whose queries and whose documents these are


def joined_encoder(old: Retriever, new: EncoderLike) -> TowerEncoder:
    """Return the encoder of a retriever's documents with the queries of ``new``.

    ``new`` is an encoder, or a model's folder or name; of one with two towers, that of queries is
    taken. The encoders in use are left as they are. Raises ``ConfigError`` where the vectors could
    not be compared: by kind, dimensions, similarity or vocabulary.
    """
    from sluice.encoders.towers import TowerEncoder

    given = as_encoder(new)
    query = hooks_of(given).towers.get("query", given)
    own = open_placed_encoder(old.path, old.head, allow=old.state.allow)
    document = hooks_of(own).towers.get("document", own)
    width, dim = old.index.width, hooks_of(query).dim if _one_vector(query) else None
    if _one_vector(document) and dim is not None and width not in (None, dim):
        raise ConfigError(
            f"{old.path / INDEX / MANIFEST}: encoder_fingerprint: the index has vectors of "
            f"{width:,} dimensions, and the new encoder's have {dim:,}; train it with "
            f"encoder.projection: {width}, or rebuild the index"
        )
    if not isinstance(new, str | Path):
        query = copy.deepcopy(query)
    try:
        return TowerEncoder(query, document)
    except ConfigError as error:
        raise ConfigError(
            f"{old.path / HEAD}: encoder_fingerprint: {error}: the index takes the queries of no "
            "such encoder; rebuild it with the new one"
        ) from None


def _one_vector(encoder: Any) -> bool:
    """Whether an encoder makes one dense vector of a text, by whose width others may differ."""
    return hooks_of(encoder).kind in ("dense", "static")


def save_with(old: Retriever, encoder: TowerEncoder, path: str | Path) -> Retriever:
    """Write a copy of a retriever that asks the same index by ``encoder``, in one step; open it.

    ``encoder`` is what ``joined_encoder`` returns. Files of the index and the documents are linked
    where the file system can; documents that are added later are encoded as those before.
    """
    target, head = Path(path), old.head
    if head.shards is not None:
        raise ConfigError(
            f"{old.path}: is in shards, whose indexes are bound to one encoder each; build it "
            "without shards, upgrade that, and sluice reshard it"
        )
    if target.resolve() == old.path.resolve():
        raise ConfigError(f"{path}: is the old retriever's own folder; choose another")
    refuse_foreign(target)
    settle(target)
    with replaced_folder(target, markers=(HEAD,)) as draft:
        copy_part(old.path / DOCUMENTS, draft / DOCUMENTS, head.documents_generation)
        copy_part(old.path / INDEX, draft / INDEX, head.index_generation)
        pin_generation(draft / INDEX, head.index_generation)
        for folder in (draft / INDEX / head.index_generation, draft / INDEX):
            manifest = read_json(folder / MANIFEST)
            facts = {**manifest, "encoder_fingerprint": str(encoder.fingerprint)}
            write_json(folder / MANIFEST, facts)
        noted: dict[str, Any] = {
            "query_encoder": str(encoder.query.fingerprint),
            "index_encoder": head.encoder_fingerprint,
        }
        placed = place_encoder(draft, encoder)
        write_head(draft, replace(head, origin={**head.origin, UPGRADE: noted}, **placed))
    return Retriever.open(target, allow=old.state.allow)
