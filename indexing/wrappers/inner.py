"""Indexes inside indexes: made from a spec, written beside the outer one's files, opened again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sluice.encoders.foundation.build import build, factory
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError
from sluice.indexing.index import Index
from sluice.indexing.live_rows import LiveRows, Mask
from sluice.indexing.storage.arrays import fact
from sluice.indexing.storage.exact_scores import Metric, checked_metric
from sluice.indexing.table import INDEXES

Spec = Mapping[str, Any]  # {type: name, ...arguments}, as in YAML


def inner_index(given: Index | Spec, where: str) -> Index:
    """Return the empty index that ``given`` is or describes.

    ``ConfigError`` for one that holds rows already or has no metric, as inverted indexes have none.
    """
    made = build(given, INDEXES, where=where) if isinstance(given, Mapping) else given
    if not isinstance(made, Index):
        raise ConfigError(
            f"{where}: {type(made).__name__}, expected an index, or its spec such as {{type: flat}}"
        )
    if made.rows:
        raise ConfigError(f"{where}: has {made.rows:,} rows already, expected an empty index")
    metric_of(made, where)
    return made


def metric_of(index: Index, where: str) -> Metric:
    """Return the metric of a dense index; ``ConfigError`` for an index without one."""
    if index.metric is None:
        raise ConfigError(
            f"{where}: {type(index).__name__} has no metric, expected a dense index such as "
            "flat or faiss"
        )
    return checked_metric(index.metric)


def drop_rows(inner: Index, allowed: Mask) -> None:
    """Drop the rows of an inner index that ``allowed`` excludes; it has no tombstones itself."""
    inner.delete(np.flatnonzero(~allowed))
    inner.compact()


def qualified_name(instance: Any) -> str:
    """Return the type name of a built-in object, or ``module:Class`` of somebody's own."""
    kind = type(instance)
    return str(instance.type_name or f"{kind.__module__}:{kind.__qualname__}")


def write_inner(inner: Index, folder: Path) -> dict[str, Any]:
    """Write an inner index into a folder of its own; return the facts ``open_inner`` needs."""
    folder.mkdir()
    return {
        "type": qualified_name(inner),
        "rows": inner.rows,
        "default_params": inner.default_params,
        "notes": inner.notes,
        "index": inner._write(folder),
    }


def open_inner(folder: Path, facts: Mapping[str, Any], allow: Collection[str]) -> Index:
    """Open what ``write_inner`` wrote; built-in types, and those that ``allow`` names."""
    try:
        kind = factory(fact(facts, "type", str, folder), INDEXES, where=str(folder), allow=allow)
    except ConfigError as error:
        raise IndexFormatError(str(error)) from None
    if not (isinstance(kind, type) and issubclass(kind, Index)):
        raise IndexFormatError(f"{folder}: type {facts['type']!r} is no subclass of indexing.Index")
    inner = kind._open(folder, fact(facts, "index", dict, folder), allow)
    inner._live = LiveRows(fact(facts, "rows", int, folder))
    inner.default_params = fact(facts, "default_params", dict, folder)
    inner.notes = fact(facts, "notes", dict, folder)
    stored = inner._stored_rows()
    if stored is not None and stored != inner.rows:
        raise IndexFormatError(
            f"{folder}: {inner.rows:,} rows, the arrays hold {stored:,}; rebuild the folder"
        )
    return inner
