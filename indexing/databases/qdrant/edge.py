"""Qdrant's engine in this process: a collection is a folder, open in one process at a time."""

from __future__ import annotations

import shutil
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import (
    ConfigError,
    DataError,
    IndexFormatError,
    SluiceError,
    needed_package,
)
from sluice.indexing.databases.qdrant.collection import (
    BATCH,
    Answer,
    Collection,
    Filter,
    Kind,
    Shape,
    kind_of,
    query_values,
    vector_of,
)
from sluice.indexing.hits import Rows

FREE = 64_000_000  # bytes of the disk, for what is stored together
GRAPH_FROM = 1  # kilobytes of vectors from which a segment gets a graph


def need_edge() -> Any:
    """Return the package qdrant_edge; ``MissingPackageError`` without it."""
    with needed_package("qdrant-edge-py", "qdrant", "an index of type qdrant with a path"):
        import qdrant_edge
    return qdrant_edge


class _Shard:
    """An open folder, which all indexes of this process share, and which closes with the last."""

    def __init__(self, folder: Path, config: Any = None) -> None:
        edge = need_edge()
        shard = edge.EdgeShard
        self.engine = (
            shard.load(str(folder)) if config is None else shard.create(str(folder), config)
        )
        weakref.finalize(self, self.engine.close)


_open: weakref.WeakValueDictionary[Path, _Shard] = weakref.WeakValueDictionary()
_lock = threading.RLock()


class EdgeCollection(Collection):
    """A collection in a folder below ``path``."""

    _shard: _Shard | None = None  # kept, so that it stays open

    @property
    def folder(self) -> Path:
        """Where it is."""
        return Path(self.settings.path) / self.name

    def create(self, shape: Shape) -> None:
        """Make the folder; what a killed creation left is removed."""
        edge = need_edge()
        self.drop()
        self._check_space()
        settings = self.settings
        graph = settings.method == "hnsw"
        if shape.kind == "dense":
            distance = edge.Distance.Euclid if settings.metric == "l2" else edge.Distance.Dot
            vectors = {"vectors": {"dense": edge.EdgeVectorParams(shape.width, distance)}}
        else:
            vectors = {"sparse_vectors": {"sparse": edge.EdgeSparseVectorParams()}}
        config = edge.EdgeConfig(
            **vectors,
            hnsw_config=edge.HnswIndexConfig(settings.m if graph else 0, settings.ef_construct, 1),
            optimizers=edge.EdgeOptimizersConfig(indexing_threshold=GRAPH_FROM if graph else None),
        )
        with _lock, self._translated():
            try:
                self.folder.mkdir(parents=True)
            except OSError as error:
                raise ConfigError(
                    f"path: {self.folder}: {error.strerror}; choose a folder"
                ) from None
            self._shard = _open[self._key] = _Shard(self.folder, config)

    def drop(self) -> None:
        """Remove the folder, if it is there."""
        with _lock:
            held = _open.pop(self._key, None)
            if held is not None:
                held.engine.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def upsert(self, rows: Rows, vectors: Any, payloads: Sequence[Mapping[str, Any]]) -> None:
        """Store points; they are in the engine's log on the disk when this returns."""
        edge = need_edge()
        self._check_space()
        kind = kind_of(vectors)
        values = list(vectors) if kind == "dense" else [
            edge.SparseVector(*each) for each in query_values(kind, vectors)
        ]  # fmt: skip
        points = [
            edge.Point(row, {kind: value}, payload)
            for row, value, payload in zip(rows.tolist(), values, payloads, strict=True)
        ]
        with self._translated():
            for start in range(0, len(points), BATCH):
                batch = points[start : start + BATCH]
                self._engine.update(edge.UpdateOperation.upsert_points(batch))

    def delete(self, chosen: Filter) -> None:
        """Delete the points of a filter."""
        edge = need_edge()
        with self._translated():
            operation = edge.UpdateOperation.delete_points_by_filter(edge_filter(chosen))
            self._engine.update(operation)

    def count(self, chosen: Filter) -> int:
        """Return how many points of a filter there are."""
        with self._translated():
            request = need_edge().CountRequest(exact=True, filter=edge_filter(chosen))
            return int(self._engine.count(request))

    def points(self, rows: Rows, *, vectors: bool) -> dict[int, tuple[Any, Mapping[str, Any]]]:
        """Return (vector, payload) of the rows that there are."""
        found: dict[int, tuple[Any, Mapping[str, Any]]] = {}
        with self._translated():
            for start in range(0, len(rows), BATCH):
                part = rows[start : start + BATCH].tolist()
                for point in self._engine.retrieve(part, with_payload=True, with_vector=vectors):
                    found[int(point.id)] = (vector_of(point.vector), point.payload or {})
        return found

    def nearest(
        self, kind: Kind, queries: Any, limit: int, chosen: Filter, ef: int | None
    ) -> list[Answer]:
        """Return the best points of each query, exactly where ``ef`` is None."""
        edge = need_edge()
        among = edge_filter(chosen)
        params = edge.SearchParams(exact=ef is None, hnsw_ef=ef)
        requests = []
        for value in query_values(kind, queries):
            vector = value if kind == "dense" else edge.SparseVector(*value)
            nearest = edge.Query.Nearest(vector, using=kind)
            requests.append(edge.QueryRequest(limit, query=nearest, filter=among, params=params))
        with self._translated():
            if len(requests) == 1:  # a batch is planned as a whole, which takes longer than one
                answers = [self._engine.query(requests[0])]
            else:
                answers = self._engine.query_batch(edge.QueryBatchRequest(requests))
        return [
            Answer([int(point.id) for point in found], [point.score for point in found])
            for found in answers
        ]

    def optimise(self) -> None:
        """Merge segments, and build the graph where the settings want one."""
        self._check_space()
        with self._translated():
            self._engine.optimize()
            self._engine.flush()

    def _check_space(self) -> None:
        """Raise ``DataError`` on a disk that is nearly full.

        The engine maps its files: where a page of one finds no space, the process ends by a signal.
        """
        there = next(each for each in (self.folder, *self._key.parents) if each.exists())
        free = shutil.disk_usage(there).free
        if free < FREE:
            raise DataError(
                f"qdrant: {self.folder}: {free // 1_000_000} MB of its disk are free, expected "
                f"{FREE // 1_000_000} MB or more; nothing was changed: free space there and try "
                "again"
            )

    @property
    def size_bytes(self) -> int:
        """Bytes of the folder's files that are in use; the log is allotted in advance."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return sum(path.stat().st_blocks * 512 for path in files)

    @cached_property
    def _key(self) -> Path:
        return self.folder.resolve()

    @property
    def _engine(self) -> Any:
        with _lock:
            shard = _open.get(self._key)
            if shard is None or shard is not self._shard:
                if shard is None:
                    if not self.folder.is_dir():
                        raise IndexFormatError(
                            f"qdrant: no folder {self.folder}; a later state has another: open the "
                            "index again from the folder it was built in, or rebuild it"
                        )
                    shard = _open[self._key] = _Shard(self.folder)
                self._shard = shard
        return shard.engine

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Let an error of the engine name the folder, what happened, and what to do."""
        try:
            yield
        except (SluiceError, KeyboardInterrupt, SystemExit):
            raise
        except Exception as error:  # the engine raises no narrower class
            said = str(error).strip().splitlines()[0][:300]
            if "WouldBlock" in said:
                raise DataError(
                    f"qdrant: {self.folder} is open in another process; the engine in a folder "
                    "serves one at a time: close the other, or run a server and set url"
                ) from None
            raise DataError(
                f"qdrant: {self.folder}: {said}; free space or memory and try again, or rebuild"
            ) from None


def edge_filter(chosen: Filter) -> Any:
    """Return a filter as the engine's objects; None for one that excludes nothing."""
    if not any(chosen.values()):
        return None
    edge = need_edge()
    parts = {
        name: [_condition(edge, each) for each in some] for name, some in chosen.items() if some
    }
    return edge.Filter(**parts)


def _condition(edge: Any, each: Mapping[str, Any]) -> Any:
    if "has_id" in each:
        return edge.HasIdCondition(set(each["has_id"]))
    if "match" in each:
        return edge.FieldCondition(each["key"], match=edge.MatchAny(each["match"]["any"]))
    if "range" in each:
        return edge.FieldCondition(each["key"], range=edge.RangeFloat(**each["range"]))
    return edge_filter(each)
