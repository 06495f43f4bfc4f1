"""Indexes inside indexes: built from a spec, wrapped, and saved with the outer one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing.folder import index_class, set_facts
from sluice.indexing.index import Index, saved_type
from sluice.indexing.live_rows import LiveRows, Mask
from sluice.indexing.storage.arrays import fact
from sluice.indexing.storage.exact_scores import Metric, checked_metric
from sluice.indexing.table import INDEXES

Spec = Mapping[str, Any]  # {type: name, ...arguments}, as in YAML


class WrappingIndex(Index):
    """An index around another one, ``inner``, to which it passes on what both do alike."""

    def __init__(self, inner: Index, metric: Metric | None) -> None:
        super().__init__()
        self.inner = inner
        self.metric = metric

    @property
    def resident_bytes(self) -> int:
        """Bytes of the inner index that should fit into memory."""
        return self.inner.resident_bytes

    def training_rows(self, documents: int) -> int:
        """Return how many sample vectors the inner index would like."""
        return self.inner.training_rows(documents)

    def spool(self, folder: Path) -> None:
        """Keep what is added from now on in files of ``folder``, where the inner index can."""
        self.inner.spool(folder)

    @property
    def words(self) -> Sequence[str]:
        """What opening this index and the inner one must be allowed."""
        return [*super().words, *self.inner.words]

    def settle(self) -> None:
        """Free what only earlier states of the inner index used."""
        self.inner.settle()

    def verify(self) -> Sequence[str]:
        """Check what the inner index has outside the folder."""
        return self.inner.verify()

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        return cls._open(folder, facts, ())

    def _drop_inner_rows(self, allowed: Mask) -> None:
        """Drop the inner rows that ``allowed`` excludes; the inner index has no tombstones."""
        self.inner.delete(np.flatnonzero(~allowed))
        self.inner.compact()


def inner_index(index: Index | Spec, where: str) -> Index:
    """Return the empty index that is given or described.

    ``ConfigError`` for one that holds rows already or has no metric, as inverted indexes have none,
    and for a description of one that would need training queries.
    """
    if isinstance(index, Mapping) and index.get("type") == "query_graph":
        raise ConfigError(
            f"{where}: query_graph learns from training queries, which are not passed on to an "
            "index inside another; take another type here, or query_graph by itself"
        )
    inner = build(index, INDEXES, where=where) if isinstance(index, Mapping) else index
    if not isinstance(inner, Index):
        raise ConfigError(
            f"{where}: {type(inner).__name__}, expected an index, or its spec such as "
            "{type: flat}"
        )
    if inner.rows:
        raise ConfigError(f"{where}: has {inner.rows:,} rows already, expected an empty index")
    metric_of(inner, where)
    return inner


def metric_of(index: Index, where: str) -> Metric:
    """Return the metric of a dense index; ``ConfigError`` for an index without one."""
    if index.metric is None:
        raise ConfigError(
            f"{where}: {type(index).__name__} has no metric, expected a dense index such as "
            "flat or faiss"
        )
    return checked_metric(index.metric)


def write_inner(inner: Index, folder: Path) -> dict[str, Any]:
    """Write an inner index into a folder of its own; return the facts ``open_inner`` needs."""
    folder.mkdir()
    return {
        "type": saved_type(inner),
        "rows": inner.rows,
        "default_params": inner.default_params,
        "notes": inner.notes,
        "index": inner._write(folder),
    }


def open_inner(folder: Path, facts: Mapping[str, Any], allow: Collection[str]) -> Index:
    """Open what ``write_inner`` wrote; built-in types, and those that ``allow`` names."""
    kind = index_class(facts, folder, allow)
    inner = kind._open(folder, fact(facts, "index", dict, folder), allow)
    set_facts(inner, facts, LiveRows(fact(facts, "rows", int, folder)), folder)
    return inner
