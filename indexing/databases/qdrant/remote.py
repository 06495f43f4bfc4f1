"""A collection on a Qdrant server: checked, built, and built further after a kill."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy.sparse import csr_array

from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.errors import (
    DataError,
    IndexFormatError,
    SluiceError,
    needed_package,
)
from sluice.encoders.foundation.numbers import plural
from sluice.indexing.databases.index import former_facts
from sluice.indexing.databases.qdrant.collection import (
    BATCH,
    KEY,
    NAME,
    Answer,
    Collection,
    Filter,
    Kind,
    Settings,
    Shape,
    kind_of,
    query_values,
    rows_from,
    vector_of,
)
from sluice.indexing.hits import Hits, Rows

NOTE, CHUNKS = "qdrant.json", "qdrant.jsonl"


class BuildNotes:
    """Which collection a build fills, and which of its chunks are on the disk there."""

    def __init__(self, folder: Path) -> None:
        self._note, self._lines = folder / NOTE, folder / CHUNKS
        self._stored: dict[int, tuple[int, str]] = {}

    def begun(self, own: Mapping[str, Any]) -> str | None:
        """Return the collection of a killed build of the same settings, if it stored anything."""
        try:
            note = json.loads(self._note.read_text("utf-8"))
            lines = self._lines.read_text("utf-8").split("\n")[:-1]  # a cut line is not ended
            stored = [json.loads(line) for line in lines]
            if {**note, "name": ""} != {**own, "name": ""} or not stored:
                return None
            name = _name(note)
            self._stored = {int(first): (int(stop), str(digest)) for first, stop, digest in stored}
            return name
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def abandoned(self) -> str | None:
        """Return the collection of a killed build, whatever its settings were."""
        try:
            return _name(json.loads(self._note.read_text("utf-8")))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def begin(self, own: Mapping[str, Any], name: str) -> None:
        """Note the collection, before it is created."""
        self._note.parent.mkdir(parents=True, exist_ok=True)
        self._lines.unlink(missing_ok=True)
        write_json(self._note, {**own, "name": name})

    def stored(self, first: int, stop: int, digest: str) -> bool:
        """Return whether a killed build stored these very rows."""
        return self._stored.get(first) == (stop, digest)

    def note(self, first: int, stop: int, digest: str) -> None:
        """Note a chunk that is on the collection's disk."""
        with self._lines.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps([first, stop, digest]) + "\n")


def _name(note: Mapping[str, Any]) -> str:
    """Return the collection that a note names; ``ValueError`` for a name that is not ours."""
    if NAME.fullmatch(note["name"]) is None:
        raise ValueError(note["name"])
    return str(note["name"])


def former_names(folder: Path, type_name: str, settings: Settings) -> set[str]:
    """Return the collections, in the same place, of the state before that of ``folder``."""
    names = set()
    for facts in former_facts(folder, type_name):
        name, had = facts.get("name"), facts.get("settings")
        here = isinstance(had, dict) and (had.get("path"), had.get("url")) == (
            settings.path, settings.url,
        )  # fmt: skip
        if here and isinstance(name, str) and NAME.fullmatch(name):
            names.add(name)
    return names


def digest_of(vectors: Any, payloads: Sequence[Mapping[str, Any]]) -> str:
    """Return a hash of vectors and payloads."""
    hashed = hashlib.blake2b(digest_size=16)
    parts = [vectors]
    if isinstance(vectors, csr_array):
        parts = [vectors.indptr, vectors.indices, vectors.data]
    for part in parts:
        hashed.update(part.tobytes())
    hashed.update(json.dumps(payloads, sort_keys=True).encode())
    return hashed.hexdigest()


SAMPLED = 64  # rows looked up, and searched for
DEPTH = 10


def check_points(collection: Collection, live: Rows, rows: int) -> Sequence[str]:
    """Count the points and look some up; ``IndexFormatError`` where live rows are missing.

    ``rows`` are all of the state, deleted ones included.
    """
    where = f"qdrant: {collection.name}"
    stored, beyond = collection.count({}), collection.count(rows_from(rows))
    if not len(live) <= stored - beyond <= rows:
        raise IndexFormatError(
            f"{where}: {stored - beyond:,} points for {len(live):,} documents; another program "
            "changed it: rebuild"
        )
    sampled = spread(live)
    points = collection.points(sampled, vectors=True)
    for row in sampled.tolist():
        vector, payload = points.get(row, (None, {}))
        if vector is None or payload.get("row") != row:
            raise IndexFormatError(f"{where}: no vector of row {row}; rebuild")
    have = "has a point" if len(live) == 1 else "have points"
    said = [f"{plural(len(live), 'document')} {have}; {len(sampled)} looked up"]
    if left := stored - len(live):
        said.append(f"{plural(left, 'point')} that a killed change left, which no search finds")
    return said


class Searched(Protocol):
    """An index in Qdrant, as far as it is measured."""

    def documents(self, rows: Rows) -> Any:
        """Return the stored vectors of rows."""
        ...

    def search(self, vectors: Any, k: int) -> Hits:
        """Return the best rows of each query, as the settings say."""
        ...

    def search_exactly(self, vectors: Any, k: int) -> Hits:
        """Return the best rows of each query, exactly."""
        ...


def measured(index: Searched, live: Rows, *, walks: bool) -> Sequence[str]:
    """Search for stored vectors: the order of ties, and how many exact hits a graph finds."""
    sampled = spread(live)
    if not len(sampled):
        return []
    queries = index.documents(sampled)
    exact = index.search_exactly(queries, DEPTH)
    rows, scores = exact.rows, exact.scores
    tied = (scores[:, 1:] == scores[:, :-1]) & (rows[:, 1:] >= 0)
    if (rows[:, 1:][tied] <= rows[:, :-1][tied]).any():
        raise IndexFormatError("qdrant: ties are not in the order of rows; report this")
    said = [f"ties of {len(sampled)} searches are in the order of rows"]
    if walks:
        said.append(f"recall@{DEPTH} {recall(index, sampled):.3f}")
    return said


def recall(index: Searched, live: Rows) -> float:
    """Return the mean share of the exact hits that a walk finds, for stored vectors as queries."""
    queries = index.documents(spread(live))
    found, exact = index.search(queries, DEPTH), index.search_exactly(queries, DEPTH)
    pairs = [(one, other[other >= 0]) for one, other in zip(found.rows, exact.rows, strict=True)]
    return float(np.mean([np.isin(other, one).mean() for one, other in pairs if len(other)]))


def spread(live: Rows) -> Rows:
    """Return at most ``SAMPLED`` of the rows, evenly spread."""
    if len(live) <= SAMPLED:
        return live
    return live[np.linspace(0, len(live) - 1, SAMPLED).astype(np.int64)]


def differences(settings: Settings, notes: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each way in which results differ from those of our exact index."""
    said = ["exact; scores are float32 sums of Qdrant, equal in about six digits"]
    if settings.method == "hnsw":
        said = ["approximate: a walk of ef candidates along a graph (128), unless exact: true"]
        if "recall" in notes:
            said.append(f"recall@{DEPTH} {notes['recall']:.3f} against its own exact search")
    if settings.metric == "cosine":
        said.append("cosine: vectors are stored normalised")
    if settings.path:
        said.append("the folder is open in one process at a time")
    return said


SECONDS = 60  # for one request
NO_GRAPH = 0  # as m


def need_client() -> Any:
    """Return the package qdrant_client; ``MissingPackageError`` without it."""
    with needed_package("qdrant-client", "qdrant", "an index of type qdrant with a url"):
        import qdrant_client
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
                    found[int(point.id)] = (vector_of(point.vector), point.payload or {})
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
