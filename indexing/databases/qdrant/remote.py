"""A collection on a Qdrant server, through qdrant-client."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from sluice.encoders.foundation.errors import (
    DataError,
    IndexFormatError,
    MissingPackageError,
    SluiceError,
)
from sluice.indexing.databases.qdrant.collection import (
    BATCH,
    Answer,
    Collection,
    Shape,
    kind_of,
    query_values,
)
from sluice.indexing.databases.qdrant.filters import Filter
from sluice.indexing.databases.qdrant.settings import KEY, Kind
from sluice.indexing.live_rows import Rows

SECONDS = 60  # for one request
NO_GRAPH = 0  # as m


def need_client() -> Any:
    """Return the package qdrant_client; ``MissingPackageError`` without it."""
    try:
        import qdrant_client
    except ImportError:
        raise MissingPackageError(
            "qdrant-client", "qdrant", "an index of type qdrant with a url"
        ) from None
    return qdrant_client


def connected(url: str) -> Any:
    """Return a client of a server; the key comes from the environment."""
    key = os.environ.get(KEY)
    return need_client().QdrantClient(
        url=url, api_key=key, timeout=SECONDS, check_compatibility=False
    )


class RemoteCollection(Collection):
    """A collection of a server."""

    def create(self, shape: Shape) -> None:
        """Make it; what a killed creation left is removed."""
        models = need_client().models

        settings = self.settings
        graph = settings.method == "hnsw"
        hnsw = models.HnswConfigDiff(
            m=settings.m if graph else NO_GRAPH, ef_construct=settings.ef_construct
        )
        self.drop()
        with self._translated():
            if shape.kind == "dense":
                product = settings.metric != "l2"
                distance = models.Distance.DOT if product else models.Distance.EUCLID
                dense = {"dense": models.VectorParams(size=shape.width, distance=distance)}
                self._client.create_collection(self.name, dense, hnsw_config=hnsw)
            else:
                sparse = {"sparse": models.SparseVectorParams()}
                self._client.create_collection(self.name, {}, sparse_vectors_config=sparse)
            for field, kind in (("row", "integer"), ("equals", "keyword")):
                self._client.create_payload_index(
                    self.name, field, models.PayloadSchemaType(kind), wait=True
                )

    def drop(self) -> None:
        """Remove it, if it is there."""
        with self._translated():
            if self._client.collection_exists(self.name):
                self._client.delete_collection(self.name)

    def upsert(self, rows: Rows, vectors: Any, payloads: Sequence[Mapping[str, Any]]) -> None:
        """Store points; the server answers when they are on its disk."""
        models = need_client().models

        kind = kind_of(vectors)
        values = query_values(kind, vectors)
        points = [
            models.PointStruct(id=row, vector={kind: _sent(kind, value)}, payload=dict(payload))
            for row, value, payload in zip(rows.tolist(), values, payloads, strict=True)
        ]
        with self._translated():
            for start in range(0, len(points), BATCH):
                self._client.upsert(self.name, points[start : start + BATCH], wait=True)

    def delete(self, chosen: Filter) -> None:
        """Delete the points of a filter."""
        models = need_client().models

        with self._translated():
            selector = models.FilterSelector(filter=_filter(chosen))
            self._client.delete(self.name, selector, wait=True)

    def count(self, chosen: Filter) -> int:
        """Return how many points of a filter there are."""
        with self._translated():
            among = _filter(chosen) if any(chosen.values()) else None
            return int(self._client.count(self.name, among, exact=True).count)

    def points(self, rows: Rows, *, vectors: bool) -> dict[int, tuple[Any, Mapping[str, Any]]]:
        """Return (vector, payload) of the rows that there are."""
        found: dict[int, tuple[Any, Mapping[str, Any]]] = {}
        with self._translated():
            for start in range(0, len(rows), BATCH):
                part = rows[start : start + BATCH].tolist()
                for point in self._client.retrieve(
                    self.name, part, with_payload=True, with_vectors=vectors
                ):
                    found[int(point.id)] = (_vector(point.vector), point.payload or {})
        return found

    def nearest(
        self, kind: Kind, queries: Any, limit: int, chosen: Filter, ef: int | None
    ) -> list[Answer]:
        """Return the best points of each query, exactly where ``ef`` is None."""
        models = need_client().models

        among = _filter(chosen) if any(chosen.values()) else None
        params = models.SearchParams(exact=ef is None, hnsw_ef=ef)
        requests = [
            models.QueryRequest(
                query=_sent(kind, value), using=kind, filter=among, params=params, limit=limit
            )
            for value in query_values(kind, queries)
        ]
        with self._translated():
            answers = self._client.query_batch_points(self.name, requests)
        return [
            Answer([int(each.id) for each in found.points], [each.score for each in found.points])
            for found in answers
        ]

    def optimise(self) -> None:
        """Leave it to the server, which builds graphs by itself."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its vectors, as far as their number says; the disk is the server's."""
        return 0

    @cached_property
    def _client(self) -> Any:
        return connected(self.settings.url)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Let an error of the client name the server, what happened, and what to do."""
        try:
            yield
        except (SluiceError, KeyboardInterrupt, SystemExit):
            raise
        except Exception as error:  # of the client, of httpx, of pydantic
            said = " ".join(str(error).split())[:300]
            key = os.environ.get(KEY)
            said = said.replace(key, "***") if key else said
            where = f"qdrant: {self.settings.url}, collection {self.name}"
            # A 404 alone may be said by any other server at a wrong url.
            if re.search(
                rf"[Cc]ollection \W?{self.name}\W? (doesn.{{1,2}}t exist|not found)", said
            ):
                raise IndexFormatError(
                    f"{where}: gone; a later state has another: open the folder again, or rebuild"
                ) from None
            raise DataError(
                f"{where}: {said}; start the server, or correct url; a key belongs in {KEY}"
            ) from None


def _filter(chosen: Filter) -> Any:
    models = need_client().models

    return models.Filter(**{name: some for name, some in chosen.items() if some})


def _sent(kind: Kind, value: Any) -> Any:
    models = need_client().models

    if kind == "dense":
        return value
    return models.SparseVector(indices=value[0], values=value[1])


def _vector(named: Any) -> Any:
    if not named:
        return None
    if "dense" in named:
        return named["dense"]
    return named["sparse"].indices, named["sparse"].values
