"""An index whose vectors lie in Qdrant."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection as Words, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from scipy import sparse

from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.trust import Allow, refuse_database
from sluice.indexing.checks import checked_dense, checked_sparse
from sluice.indexing.databases.index import Condition, DatabaseIndex
from sluice.indexing.databases.qdrant.collection import (
    MOST_DIMENSIONS,
    NAME,
    Collection,
    Live,
    Method,
    Settings,
    Shape,
    filter_of,
    joined,
    kind_of,
    nearest,
    next_name,
    payload_of,
    rows_from,
)
from sluice.indexing.databases.qdrant.remote import (
    BuildNotes,
    check_points,
    differences,
    digest_of,
    former_names,
    measured,
    recall,
)
from sluice.indexing.hits import Hits, Mask, Rows
from sluice.indexing.index import SearchParameters
from sluice.indexing.storage.exact_scores import Metric, norms_of
from sluice.indexing.storage.rows import fact

log = logging.getLogger("sluice")

CHUNK = 2_048  # rows stored, and noted, together
TOGETHER = 64  # queries of one request
EF = 128  # candidates of a walk along the graph
MOST_EF = 100_000
SPARSE_WIDTH = 2**32


class QdrantIndex(DatabaseIndex):
    """Vectors in Qdrant: ``path`` is the folder of an engine in this process, ``url`` a server's.

    One of the two is given. A folder is open in one process at a time. The key of a server is in
    the environment variable QDRANT_API_KEY; ``url`` is https, or http of this machine. The names
    of its collections begin with ``collection``. The vectors decide whether they are dense or
    sparse. ``metric`` is ``ip``, ``l2`` (scores are negative squared distances) or ``cosine``,
    which stores normalised vectors; sparse ones have inner products alone.

    Exact hits are those of ``FlatIndex`` and ``InvertedIndex``: ties by row, at the boundary of
    ``k`` too, because a group of ties that the boundary cuts is fetched whole; scores are float32
    sums of Qdrant, equal in about six digits, so documents nearer than that may swap. ``method:
    hnsw`` walks a graph of ``m`` links, built with ``ef_construct`` candidates; ``params`` of a
    search are ``ef``, the candidates (128, and ``k`` at least), and ``exact: true``.

    A point's id is the row; its payload has the document's id and metadata. The folder of the index
    names the collection: two copies share it. Deleted documents leave it when the deletion is
    committed. A build that was killed continues after the last chunk that was stored. Needs ``pip
    install 'sluice-ir[qdrant]'``.
    """

    type_name = "qdrant"
    settings: Settings

    def __init__(
        self,
        path: Annotated[
            str, "The folder of Qdrant's engine in this process, open in one at a time; or url."
        ] = "",
        *,
        url: Annotated[
            str, "A Qdrant server: https, or http of this machine; its key is in QDRANT_API_KEY."
        ] = "",
        collection: Annotated[str, "The prefix of its collections' names."] = "sluice",
        metric: Metric = "ip",
        method: Annotated[
            Method, "exact, or hnsw: a graph, approximate and faster for many documents."
        ] = "exact",
        m: Annotated[int, "Links of a vector in the graph, 16."] = 16,
        ef_construct: Annotated[int, "Candidates for the links of a new vector, 100."] = 100,
    ) -> None:
        super().__init__()
        self.settings = Settings(path, url, collection, metric, method, m, ef_construct)
        self.metric = metric
        self._collection: Collection | None = None
        self._shape: Shape | None = None
        self._former: list[Collection] = []  # to be dropped when this state is committed
        self._clean = True  # whether the collection has no rows beyond ours
        self._notes: BuildNotes | None = None

    # What it is.

    @property
    def width(self) -> int | None:
        """Dimensions of the vectors; None before the first ``add``, and of sparse ones."""
        return None if self._shape is None or self._sparse else self._shape.width

    @property
    def size_bytes(self) -> int:
        """Bytes of the collection's folder; of a server's, those of its vectors."""
        if self._collection is None:
            return 0
        return self._collection.size_bytes or 4 * (self.width or 0) * self.rows

    @property
    def differences(self) -> Sequence[str]:
        """How results may differ from those of our exact index; one sentence each."""
        return differences(self.settings, self.notes)

    def check_fit(self, width: int, documents: int) -> None:
        """Raise ``ConfigError`` for vectors wider than Qdrant takes; and see that it is there."""
        if width > MOST_DIMENSIONS:
            raise ConfigError(
                f"index: {width:,} dimensions; Qdrant has at most {MOST_DIMENSIONS:,}: take "
                "{type: flat} or {type: faiss}"
            )

    def check_vectors(self, *, are_sparse: bool) -> None:
        """Raise ``ConfigError`` for another metric of sparse vectors, or a graph of them."""
        if are_sparse:
            self.settings.check_sparse()

    def spool(self, folder: Path) -> None:
        """Note in ``folder`` what is stored, so that a killed build continues it."""
        if self._collection is None and not self.rows:
            self._notes = BuildNotes(folder)

    @property
    def _sparse(self) -> bool:
        return self._shape is not None and self._shape.kind == "sparse"

    @property
    def _walks(self) -> bool:
        return self.settings.method == "hnsw"

    # Adding.

    def _checked(self, vectors: Any, what: str) -> Any:
        if self._sparse or (self._shape is None and sparse.issparse(vectors)):
            self.settings.check_sparse()
            return checked_sparse(vectors, what)
        dense = checked_dense(vectors, self.width, what)
        if self.settings.metric == "cosine":
            norms = norms_of(dense)
            lengths = np.where(norms > 0, norms, 1)[:, None]
            dense = (dense / lengths).astype(np.float32)
        return dense

    def _append(self, documents: Any) -> None:
        width = int(documents.shape[1])
        self.check_fit(0 if sparse.issparse(documents) else width, self.rows)
        collection = self._writable(Shape(kind_of(documents), width))
        self._clean = False  # until all of it is ours
        try:
            for start in range(0, int(documents.shape[0]), CHUNK):
                part = documents[start : start + CHUNK]
                first = self.rows + start
                self._store(collection, np.arange(first, first + part.shape[0]), part)
        except BaseException:
            if self._shape is None:  # nothing is saved; what a build stored is in its notes
                self._collection = None
                if self._notes is None:
                    collection.drop()
            raise
        self._described = self._described and self.described is not None
        self._clean = True
        if self._shape is None or self._shape.width < width:
            self._shape = Shape(kind_of(documents), width)
        if self._sparse:
            self.metric = None

    def _store(self, collection: Collection, rows: Rows, part: Any) -> None:
        if self.described is None:
            payloads = [payload_of(row) for row in rows.tolist()]
        else:
            payloads = list(map(payload_of, rows.tolist(), *self.described(rows)))
        notes = self._notes
        if notes is None:
            collection.upsert(rows, part, payloads)
            return
        first, stop, digest = int(rows[0]), int(rows[-1]) + 1, digest_of(part, payloads)
        if not notes.stored(first, stop, digest):
            collection.upsert(rows, part, payloads)
            notes.note(first, stop, digest)

    def _writable(self, shape: Shape) -> Collection:
        """Return the collection, made if there is none, without what a failed change left."""
        if self._collection is not None:
            if not self._clean:
                self._collection.delete(rows_from(self.rows))
            return self._collection
        own = {**asdict(self.settings), "kind": shape.kind, "width": shape.width}
        begun = None if self._notes is None else self._notes.begun(own)
        name = begun or f"{self.settings.collection}-{secrets.token_hex(4)}-1"
        collection = _collection(self.settings, name)
        if begun is not None:
            log.info("qdrant: going on with the collection %s of a killed build", name)
        else:
            if self._notes is not None:
                left = self._notes.abandoned()
                if left is not None and left.startswith(f"{self.settings.collection}-"):
                    _collection(self.settings, left).drop()
                self._notes.begin(own, name)
            collection.create(shape)
        self._collection = collection
        return collection

    # Changing.

    def _keep_only(self, allowed: Mask) -> None:
        if self._collection is None or self._shape is None:
            return
        old, new = self._collection, _collection(self.settings, next_name(self._collection.name))
        new.create(self._shape)
        kept = np.flatnonzero(allowed).astype(np.int64)
        for start in range(0, len(kept), CHUNK):
            part = kept[start : start + CHUNK]
            points = old.points(part, vectors=True)
            vectors = self._joined(points, part)
            rows = np.arange(start, start + len(part), dtype=np.int64)
            payloads = [
                {**points[row][1], "row": place}
                for row, place in zip(part.tolist(), rows.tolist(), strict=True)
            ]
            new.upsert(rows, vectors, payloads)
        self._former.append(old)
        self._collection, self._clean = new, True

    def settle(self) -> None:
        """Remove from the database what the committed state deleted, and what it replaced."""
        for former in self._former:
            former.drop()
        if self._notes is not None and self._collection is not None:
            log.info("qdrant: %s", "; ".join(self.differences))
        self._former, self._notes = [], None
        if self._collection is None or self._collection.count({}) == len(self):
            return
        self._collection.delete(rows_from(self.rows))
        deleted = self._live.deleted
        for start in range(0, len(deleted), CHUNK):
            self._collection.delete({"must": [{"has_id": deleted[start : start + CHUNK].tolist()}]})

    # Searching.

    @property
    def _parameters(self) -> SearchParameters:
        names = ("ef", "exact") if self.settings.method == "hnsw" else ()
        return SearchParameters(names, _check_values)

    def _search_where(
        self,
        queries: Any,
        k: int,
        where: Sequence[Condition],
        allowed: Mask | None,
        parameters: dict[str, Any],
    ) -> Hits:
        count = int(queries.shape[0])
        if self._collection is None or self._shape is None:
            return Hits.missing(count, k)
        chosen = filter_of(where)
        keep = self._asked_rows(allowed)
        if keep is not None and len(keep) <= self.rows // 2:
            chosen["must"].append({"has_id": keep.tolist()})
        elif allowed is not None and keep is not None:
            chosen["must_not"].append({"has_id": np.flatnonzero(~allowed).tolist()})
        ef: int | None = None
        if self._walks and not parameters.get("exact"):
            ef = int(parameters.get("ef", EF))
        found = Hits.missing(count, k)
        held = self._collection, self._shape.kind, self.settings.metric
        live = Live(self.rows, allowed)
        for start in range(0, count, TOGETHER):
            part = slice(start, start + TOGETHER)
            hits = nearest(*held, queries[part], k, chosen, live, ef)
            found.rows[part], found.scores[part] = hits
        return found

    def search_exactly(self, vectors: Any, k: int) -> Hits:
        """Return the ``k`` best live documents of each query, without the graph if there is one."""
        exact = {"exact": True} if self.settings.method == "hnsw" else {}
        return self.search(vectors, k, params=exact)

    def _documents(self, rows: Rows) -> Any:
        points = {} if self._collection is None else self._collection.points(rows, vectors=True)
        absent = [row for row in rows.tolist() if row not in points]
        if absent:
            raise DataError(
                f"documents: row {absent[0]} is not in the database; it was deleted, or the "
                "collection was changed by another program: rebuild in that case"
            )
        return self._joined(points, rows)

    def _joined(self, points: Mapping[int, Any], rows: Rows) -> Any:
        shape = self._shape or Shape("dense", 0)
        return joined(shape.kind, [points[row][0] for row in rows.tolist()], shape.width)

    # Saving.

    def verify(self) -> Sequence[str]:
        """Count the points, and look some up and search for them; say what was checked.

        ``IndexFormatError`` for points that are missing, beyond, or of other rows.
        """
        if self._collection is None:
            return ()
        live = np.delete(np.arange(self.rows, dtype=np.int64), self._live.deleted)
        return [
            *check_points(self._collection, live, self.rows),
            *measured(self, live, walks=self._walks),
        ]

    def _write(self, folder: Path) -> dict[str, Any]:
        own = {each.name for each in (self._collection, *self._former) if each is not None}
        former = former_names(folder, self.type_name, self.settings) - own
        self._former += [_collection(self.settings, name) for name in sorted(former)]
        if self._collection is not None:
            self._collection.optimise()
            if self._notes is not None and self._walks:
                self.notes["recall"] = recall(self, np.arange(self.rows, dtype=np.int64))
        shape = {} if self._shape is None else asdict(self._shape)
        name = None if self._collection is None else self._collection.name
        return {
            "settings": asdict(self.settings), "name": name, "described": self._described, **shape,
        }  # fmt: skip

    @classmethod
    def _open(cls, folder: Path, facts: Mapping[str, Any], allow: Words[str] | Allow) -> Self:
        where = folder / MANIFEST
        settings = fact(facts, "settings", dict, where)
        known = {field.name for field in fields(Settings)}
        try:
            index = cls(**{name: value for name, value in settings.items() if name in known})
        except (ConfigError, TypeError) as error:
            raise IndexFormatError(f"{where}: {error}") from None
        refuse_database(index.address, str(where), allow)
        index._described = fact(facts, "described", bool, where)
        name = facts.get("name")
        if name is None:
            return index
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise IndexFormatError(
                f"{where}: name is {name!r:.80}, expected a collection's; rebuild"
            )
        kind, width = fact(facts, "kind", str, where), fact(facts, "width", int, where)
        if kind not in ("dense", "sparse") or not 0 < width <= SPARSE_WIDTH:
            raise IndexFormatError(f"{where}: vectors of {width} as {kind!r:.40}; rebuild")
        index._shape = Shape("dense" if kind == "dense" else "sparse", width)
        index._collection = _collection(index.settings, name)
        index._clean = False  # a killed change may have left rows
        if index._sparse:
            index.metric = None
        return index


def _collection(settings: Settings, name: str) -> Collection:
    from sluice.indexing.databases.qdrant.edge import EdgeCollection
    from sluice.indexing.databases.qdrant.remote import RemoteCollection

    return (EdgeCollection if settings.path else RemoteCollection)(settings, name)


def _check_values(params: Mapping[str, Any]) -> None:
    if "ef" in params:
        whole_number(params["ef"], "params: ef", 1, MOST_EF)
    if not isinstance(params.get("exact", False), bool):
        raise ConfigError(f"params: exact is {params['exact']!r}; expected true or false")
