"""A collection, wherever it is: settings, filters, payloads, points by row, ties by row."""

from __future__ import annotations

import ipaddress
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args
from urllib.parse import urlsplit

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.indexing.databases.index import Condition, refuse_secrets
from sluice.indexing.hits import Hits, Mask, Rows
from sluice.indexing.storage.exact_scores import Metric, checked_metric

Method: TypeAlias = Literal["exact", "hnsw"]
Kind: TypeAlias = Literal["dense", "sparse"]

KEY = "QDRANT_API_KEY"
REMEDY = f"put the key in the environment variable {KEY}, and leave it out here"
PREFIX_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
MOST_DIMENSIONS = 65_536


@dataclass(frozen=True)
@checked()
class Settings:
    """What ``QdrantIndex`` was given; ``path`` or ``url``, and the other is empty."""

    path: str = ""
    url: str = ""
    collection: str = "sluice"
    metric: Metric = "ip"
    method: Method = "exact"
    m: Annotated[int, Interval(ge=4, le=512)] = 16
    ef_construct: Annotated[int, Interval(ge=4, le=10000)] = 100

    def __post_init__(self) -> None:
        _check_place(self.path, self.url)
        if not isinstance(self.collection, str) or not PREFIX_NAME.fullmatch(self.collection):
            raise ConfigError(
                f"collection: {self.collection!r:.80}; expected 1 to 60 of a-z, A-Z, 0-9, _ and -, "
                "which the collections' names begin with"
            )
        checked_metric(self.metric)
        known = get_args(Method)
        if self.method not in known:
            raise ConfigError(
                f"method: {self.method!r}; expected one of {', '.join(known)}"
                f"{suggest(str(self.method), known)}"
            )
        if self.method == "exact" and (self.m, self.ef_construct) != (16, 100):
            raise ConfigError("m, ef_construct: are those of method: hnsw; leave them out")

    def check_sparse(self) -> None:
        """Raise ``ConfigError`` for what sparse vectors do not have."""
        if self.metric != "ip":
            raise ConfigError(
                f"metric: {self.metric}; sparse vectors have inner products alone: leave it out"
            )
        if self.method == "hnsw":
            raise ConfigError(
                "method: hnsw; Qdrant searches sparse vectors exactly, without a graph: leave it "
                "out"
            )

    @property
    def address(self) -> str:
        """The folder or the URL."""
        return self.path or self.url


def _check_place(path: Any, url: Any) -> None:
    if not isinstance(path, str) or not isinstance(url, str) or bool(path) == bool(url):
        raise ConfigError(
            "path, url: expected one of them: the folder of an engine in this process, or the "
            "address of a server, as https://host:6333"
        )
    if not url:
        return
    refuse_secrets(url, "url", REMEDY)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host, parts = "", urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError("url: expected https://host:6333, or http:// for this machine")
    if parts.scheme == "http" and not _is_here(host):
        raise ConfigError(
            f"url: {host} is another machine, and http sends texts and keys in the clear; use "
            "https, or a tunnel to localhost"
        )


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


Filter = Mapping[str, Any]
NOTHING: Mapping[str, Any] = MappingProxyType({})


def payload_of(
    row: int, doc_id: str | None = None, metadata: Mapping[str, Any] = NOTHING
) -> dict[str, Any]:
    """Return the payload of a point; without an id it has its row alone."""
    if doc_id is None:
        return {"row": row}
    known = {key: value for key, value in metadata.items() if value is not None}
    payload: dict[str, Any] = {"row": row, "id": doc_id}
    if known:
        payload["metadata"] = {key: _plain(value) for key, value in known.items()}
        payload["equals"] = sorted(set(words_of(known)))
        numbers = {_name(key): value for key, value in known.items() if _is_number(value)}
        if numbers:
            payload["numbers"] = numbers
    return payload


def words_of(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield a word for each key that has a value, and one for each of its values."""
    for key, value in metadata.items():
        yield _has(key)
        values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        for each in values:
            yield _word(key, each)


def filter_of(where: Sequence[Condition]) -> dict[str, list[Any]]:
    """Return conditions as a filter; ``ConfigError`` for what Qdrant cannot compare."""
    made: dict[str, list[Any]] = {"must": [], "must_not": []}
    for key, operator, values in where:
        if operator in ("any", "not"):
            made["must" if operator == "any" else "must_not"].append(_either(key, values))
            continue
        value = values[0]
        if not _is_number(value):
            raise ConfigError(
                f"where.{key}: {operator} {value!r:.60}; Qdrant orders numbers and no texts: "
                "filter by equality, or by a number"
            )
        made["must"].append({"key": f'numbers."{_name(key)}"', "range": {operator: float(value)}})
    return made


def rows_from(row: int) -> dict[str, list[Any]]:
    """Return the filter of the rows from ``row`` on."""
    return {"must": [{"key": "row", "range": {"gte": float(row)}}]}


def _either(key: str, values: Sequence[Any]) -> dict[str, Any]:
    words = [_word(key, value) for value in values if value is not None]
    equal = {"key": "equals", "match": {"any": words}}
    if None not in values:
        return equal
    absent = {"must_not": [{"key": "equals", "match": {"any": [_has(key)]}}]}
    return {"should": [equal, absent]} if words else absent


def _word(key: str, value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps([key, value], ensure_ascii=False)


def _has(key: str) -> str:
    return json.dumps([key], ensure_ascii=False)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _name(key: str) -> str:
    """Return a key as a path inside quotes may have it."""
    return re.sub("[^A-Za-z0-9_]", lambda found: f"%{ord(found[0]):X};", key)


BATCH = 512  # points of one request
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*-[0-9]+")  # of a collection that we made


@dataclass(frozen=True)
class Shape:
    """What the points of a collection have: a vector named ``dense`` or ``sparse``."""

    kind: Kind
    width: int


class Answer(NamedTuple):
    """The best points of one query: their rows, and Qdrant's scores."""

    rows: list[int]
    scores: list[float]


class Collection(ABC):
    """One collection; an ``IndexFormatError`` where it is gone."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.settings, self.name = settings, name

    def __getstate__(self) -> dict[str, Any]:
        """Return what opens it again: a copy, or another process, has a connection of its own."""
        return {"settings": self.settings, "name": self.name}

    @abstractmethod
    def create(self, shape: Shape) -> None:
        """Make it, empty; what a killed creation left is removed."""

    @abstractmethod
    def drop(self) -> None:
        """Remove it, if it is there."""

    @abstractmethod
    def upsert(self, rows: Rows, vectors: Any, payloads: Sequence[Mapping[str, Any]]) -> None:
        """Store points, safe from a kill when it returns; the same rows are replaced."""

    @abstractmethod
    def delete(self, chosen: Filter) -> None:
        """Delete the points of a filter."""

    @abstractmethod
    def count(self, chosen: Filter) -> int:
        """Return how many points of a filter there are; an empty one has all."""

    @abstractmethod
    def points(self, rows: Rows, *, vectors: bool) -> dict[int, tuple[Any, Mapping[str, Any]]]:
        """Return (vector, payload) of the rows that there are; without vectors they are None."""

    @abstractmethod
    def nearest(
        self, kind: Kind, queries: Any, limit: int, chosen: Filter, ef: int | None
    ) -> list[Answer]:
        """Return the best points of each query, exactly where ``ef`` is None."""

    @abstractmethod
    def optimise(self) -> None:
        """Build what searches need, wait for it, and have all on the disk."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes on the disk, or those of its vectors where the disk is out of reach."""


def kind_of(vectors: Any) -> Kind:
    """Return what kind of vectors these are."""
    return "sparse" if sparse.issparse(vectors) else "dense"


def query_values(kind: Kind, queries: Any) -> list[Any]:
    """Return dense queries as lists, sparse ones as (indices, values)."""
    if kind == "dense":
        return list(queries.tolist())
    ends = queries.indptr.tolist()
    return [
        (queries.indices[first:stop].tolist(), queries.data[first:stop].tolist())
        for first, stop in pairwise(ends)
    ]


def joined(kind: Kind, vectors: Sequence[Any], width: int) -> Any:
    """Return dense lists as an array, and (indices, values) as a matrix, ``[n, width]``."""
    if kind == "dense":
        return np.array(vectors, dtype=np.float32).reshape(len(vectors), width)
    ends = np.cumsum([0, *(len(indices) for indices, _ in vectors)])
    indices = np.array([each for found, _ in vectors for each in found], np.int64)
    data: NDArray[np.float32] = np.array(
        [each for _, found in vectors for each in found], np.float32
    )
    made: Any = sparse.csr_array((data, indices, ends), shape=(len(vectors), width))
    made.sort_indices()
    return made


def next_name(name: str) -> str:
    """Return the name of the collection that replaces one: the same after a kill as before."""
    begin, _, number = name.rpartition("-")
    return f"{begin}-{int(number) + 1}"


SPARE = 1  # points asked for beyond k: enough where no ties are cut; each costs the engine
FACTOR = 4  # by which more are asked for where some are


class Live(NamedTuple):
    """The rows of a state that may be hits: those below ``rows``, and of ``allowed`` if given."""

    rows: int
    allowed: Mask | None

    def holds(self, rows: Rows) -> Mask:
        """Return which of the rows may be hits."""
        known: Mask = rows < self.rows
        if self.allowed is not None:
            known[known] = self.allowed[rows[known]]
        return known


def nearest(
    collection: Collection,
    kind: Kind,
    metric: Metric,
    queries: Any,
    k: int,
    chosen: Filter,
    live: Live,
    ef: int | None,
) -> Hits:
    """Return the ``k`` best ``live`` rows of each query: score descending, then row ascending.

    Points of rows that are not live, as a change under way has, are passed over. ``ef`` None is
    exact. Sparse hits share a term with the query.
    """
    hits = Hits.missing(int(queries.shape[0]), k)
    waiting = np.arange(len(hits.rows))
    limit = k + SPARE
    while len(waiting):
        walk = None if ef is None else max(ef, limit)
        answers = collection.nearest(kind, queries[waiting], limit, chosen, walk)
        cut = []
        for place, answer in zip(waiting.tolist(), answers, strict=True):
            rows, scores = _kept(answer, live, kind, metric)
            if len(answer.rows) == limit and not _is_whole(answer, rows, scores, k, metric):
                cut.append(place)
                continue
            order = np.lexsort((rows, -scores))[:k]
            hits.rows[place, : len(order)] = rows[order]
            hits.scores[place, : len(order)] = scores[order]
        waiting = np.array(cut, dtype=np.int64)
        limit *= FACTOR
    return hits


def _kept(answer: Answer, live: Live, kind: Kind, metric: Metric) -> tuple[Any, Any]:
    rows = np.array(answer.rows, dtype=np.int64)
    scores = _scores(answer.scores, metric)
    kept = live.holds(rows)
    if kind == "sparse":
        kept &= scores > 0
    return rows[kept], scores[kept]


def _scores(values: Any, metric: Metric) -> Any:
    scores = np.array(values, dtype=np.float64)
    return (-(scores**2) if metric == "l2" else scores).astype(np.float32)


def _is_whole(answer: Answer, rows: Any, scores: Any, k: int, metric: Metric) -> bool:
    """Return whether the k-th kept row is better than the last point that was fetched."""
    if len(rows) < k:
        return False
    last = _scores(answer.scores[-1:], metric)[0]
    return bool(np.partition(scores, len(scores) - k)[len(scores) - k] > last)


def vector_of(named: Any) -> Any:
    """Return the vector of a point as its engine has it: dense, or terms and weights."""
    if not named:
        return None
    if "dense" in named:
        return named["dense"]
    return named["sparse"].indices, named["sparse"].values
