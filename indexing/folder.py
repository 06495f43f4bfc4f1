"""Opens saved indexes: generation folders whose manifest names type, counts and encoder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sluice.encoders.foundation.build import factory
from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.disk.generations import MANIFEST, open_generation
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.indexing.hits import LiveRows
from sluice.indexing.index import DELETED, FORMAT, VERSION, Index
from sluice.indexing.storage.rows import fact
from sluice.indexing.table import INDEXES


def open_index(
    path: str | Path,
    *,
    generation: str | None = None,
    encoder_fingerprint: str | None = None,
    allow: Collection[str] = (),
) -> Index:
    """Open a saved index; its arrays are mapped into memory, not read.

    Changes to an opened index stay in memory until ``save``. ``generation`` names another state
    than the current one. With ``encoder_fingerprint``, an index whose manifest names another
    encoder is refused; one that names none is not. Built-in types open; a user's own class only
    when ``allow`` names it, because opening it imports it. ``IndexFormatError`` for a folder that
    is missing, damaged, edited, newer, or bound to another encoder.
    """
    path = Path(path)
    try:
        manifest, folder = open_generation(path, FORMAT, VERSION, generation=generation)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise IndexFormatError(
            f"{path / MANIFEST}: damaged, {type(error).__name__} {error}; rebuild the folder"
        ) from None
    where = path / MANIFEST
    bound = fact(manifest, "encoder_fingerprint", str, where)
    if encoder_fingerprint is not None and bound not in ("", encoder_fingerprint):
        raise IndexFormatError(
            f"{path}: built with the encoder {bound}, opened with {encoder_fingerprint}; "
            "open it with its own encoder, or rebuild it with this one"
        )
    facts = fact(manifest, "index", dict, where)
    index = index_class(manifest, where, allow)._open(folder, facts, allow)
    index.encoder_fingerprint = bound
    set_facts(index, manifest, _open_rows(folder, manifest, where), where)
    return index


def index_class(facts: Mapping[str, Any], where: Path, allow: Collection[str]) -> type[Index]:
    """Return the class that ``facts`` name: a built-in one, or one of ``allow``."""
    name = fact(facts, "type", str, where)
    try:
        kind = factory(name, INDEXES, where=str(where), allow=allow)
    except ConfigError as error:
        raise IndexFormatError(str(error)) from None
    if not (isinstance(kind, type) and issubclass(kind, Index)):
        raise IndexFormatError(f"{where}: type {name!r} is not a subclass of sluice.indexing.Index")
    return kind


def set_facts(index: Index, facts: Mapping[str, Any], live: LiveRows, where: Path) -> None:
    """Give an opened index its rows, parameters and notes; ``IndexFormatError`` for other rows."""
    index.default_params = fact({"default_params": {}, **facts}, "default_params", dict, where)
    index.notes = fact({"notes": {}, **facts}, "notes", dict, where)
    index._live = live
    stored = index._stored_rows()
    if stored is not None and stored != index.rows:
        raise IndexFormatError(
            f"{where}: {index.rows:,} rows, the arrays hold {stored:,}; rebuild the folder"
        )


def _open_rows(folder: Path, manifest: Mapping[str, Any], where: Path) -> LiveRows:
    rows = fact(manifest, "rows", int, where)
    dead = rows - fact(manifest, "documents", int, where)
    deleted = open_array(folder / DELETED, np.int64, (dead,), mapped=False)
    try:
        return LiveRows(rows, deleted)
    except DataError as error:
        raise IndexFormatError(f"{folder / DELETED}: {error}; rebuild") from None
