"""Brings an index home from a database: the same retriever with a flat or an inverted index."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import plural
from sluice.indexing.databases.index import DatabaseIndex
from sluice.indexing.flat.index import FlatIndex
from sluice.indexing.inverted.index import InvertedIndex
from sluice.retrieval.retrievers.folder.parts import refuse_foreign
from sluice.retrieval.retrievers.retriever import Retriever

if TYPE_CHECKING:
    from sluice.indexing import Index

FORM = "retriever"  # in the place of a database's name


def export_home(retriever: Retriever, output: Path, allow: Collection[str]) -> str:
    """Write a copy of a retriever whose index lies in a database, with an exact index of ours.

    Encoder, documents, rows and deletions stay, so the hits do; nothing is encoded, and the
    database is only read. ``output`` is written in one step. Returns what was written.
    ``ConfigError`` for an index that lies in no database.
    """
    index = retriever.index
    if not isinstance(index, DatabaseIndex):
        raise ConfigError(
            f"--format {FORM}: is for an index in PostgreSQL or Qdrant, one for whole documents; "
            f"that of {retriever.path} is of type {index.type_name}: its folder can be copied"
        )
    own: Index = InvertedIndex() if index.metric is None else FlatIndex(index.metric)
    refuse_foreign(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as work:
        draft = Path(work) / "draft"
        retriever.save(draft)
        copy = Retriever.open(draft, allow=allow, encoder=retriever.encoder)
        copy.move_index(own)
        copy.save(output)
    kind = f"index of type {own.type_name}"
    return f"{plural(len(retriever), 'document')}, {kind}, {own.size_bytes:,} bytes"
