"""Checks that a retriever's folder, or a model's, is as it was written."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.generations import verify
from sluice.encoders.foundation.errors import IndexFormatError, ModelError, SluiceError
from sluice.encoders.model_files.probes import PROBES, Verified, verify_probes
from sluice.encoders.model_files.registry import open_encoder
from sluice.indexing.folder import open_index
from sluice.retrieval.retrievers.folder.head import (
    DOCUMENTS,
    INDEX,
    pinned_shards,
    read_head,
    read_shard,
)
from sluice.retrieval.retrievers.folder.placed_encoder import check_encoder, opened_unchecked

log = logging.getLogger("sluice")


def verify_retriever(path: Path, allow: Collection[str] = ()) -> int:
    """Check every checksum of index and documents, and what the encoder computes; count files.

    An encoder whose probe texts have other vectors than when it was saved is an
    ``IndexFormatError`` that names what was changed. Nothing is written, so a retriever in use may
    be verified.
    """
    head = read_head(path)
    files = verify(path / INDEX, generation=head.index_generation)
    for folder, own in pinned_shards(path, head).values():
        if read_shard(folder) != own:
            raise IndexFormatError(
                f"{folder}: changed by itself, and a shard is changed through the whole, {path}; "
                "the next sluice add, update or delete there undoes it"
            )
        files += verify_retriever(folder, allow)
    if head.shards is None:
        files += verify(path / DOCUMENTS, generation=head.documents_generation)
    if head.shards is None:  # a shard's index has all it is in its folder
        index = open_index(path / INDEX, generation=head.index_generation, allow=allow)
        if checked := index.verify():
            log.info("%s: as saved in the database: %s", path, ", ".join(checked))
    encoder = opened_unchecked(path, head, allow=allow)
    refuse_moved(path / head.encoder, encoder)
    check_encoder(path, head, encoder)
    return files + 1


def verify_model(folder: Path, allow: Collection[str] = ()) -> Verified:
    """Compute the vectors, or scores, of a saved model's probe texts again; return what they are.

    Raises ``ModelError`` that names what differs, or for a folder without any.
    """
    verified = refuse_moved(folder, open_encoder(folder, allow=allow), ModelError)
    if verified is None:
        raise ModelError(
            f"{folder}: no {PROBES} to compare with, which Sluice writes beside the models of most "
            "types that it saves; of others verify the retriever that was made with the model"
        )
    return verified


def refuse_moved(
    folder: Path, encoder: Any, error: type[SluiceError] = IndexFormatError
) -> Verified | None:
    """Raise ``error`` if the probe texts of a model's folder have other vectors than they had.

    Returns what was compared, None in a folder without any.
    """
    verified = verify_probes(folder, encoder)
    if verified is not None and verified.differences:
        raise error(
            f"{folder}: is not as it was saved; {'; '.join(verified.differences)}; put the files "
            "back, or save the model and build what was made with it again"
        )
    return verified
