"""Opens saved indexes: generation folders whose manifest names type, counts and encoder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sluice.encoders.foundation.build import factory
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.generations import MANIFEST, open_generation
from sluice.indexing.index import DELETED, FORMAT, VERSION, Index
from sluice.indexing.live_rows import LiveRows
from sluice.indexing.storage.arrays import fact, open_array
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
    encoder is refused; one that names none is not. Built-in types open; somebody's own class only
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
            "open it with its own encoder or build it again with this one"
        )
    facts = fact(manifest, "index", dict, where)
    index = _index_class(manifest, where, allow)._open(folder, facts, allow)
    index.encoder_fingerprint = bound
    index.default_params = fact({"default_params": {}, **manifest}, "default_params", dict, where)
    index.notes = fact({"notes": {}, **manifest}, "notes", dict, where)
    index._live = _open_rows(folder, manifest, where)
    stored = index._stored_rows()
    if stored is not None and stored != index.rows:
        raise IndexFormatError(
            f"{where}: {index.rows:,} rows, the arrays hold {stored:,}; rebuild the folder"
        )
    return index


def _index_class(manifest: Mapping[str, Any], where: Path, allow: Collection[str]) -> type[Index]:
    name = fact(manifest, "type", str, where)
    try:
        found = factory(name, INDEXES, where=str(where), allow=allow)
    except ConfigError as error:
        raise IndexFormatError(str(error)) from None
    if not (isinstance(found, type) and issubclass(found, Index)):
        raise IndexFormatError(f"{where}: type {name!r} is no subclass of indexing.Index")
    return found


def _open_rows(folder: Path, manifest: Mapping[str, Any], where: Path) -> LiveRows:
    rows = fact(manifest, "rows", int, where)
    gone = rows - fact(manifest, "documents", int, where)
    deleted = open_array(folder / DELETED, np.int64, (gone,), mapped=False)
    try:
        return LiveRows(rows, deleted)
    except DataError as error:
        raise IndexFormatError(f"{folder / DELETED}: {error}; rebuild") from None
