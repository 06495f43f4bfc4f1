"""Indexes inside indexes, and the funnel: first dimensions first, then the best with all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.numbers import whole_number
from sluice.indexing.checks import Dense, checked_dense
from sluice.indexing.flat.index import FlatIndex
from sluice.indexing.folder import index_class, set_facts
from sluice.indexing.hits import LARGEST_SCORE, Hits, LiveRows, Mask, Rows
from sluice.indexing.index import Index, SearchParameters, saved_type
from sluice.indexing.storage.exact_scores import Metric, checked_metric, norms_of
from sluice.indexing.storage.rows import DenseRows, fact
from sluice.indexing.table import INDEXES, KNOWN

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

    def _inner_names(self, prefix: str, *own: str) -> dict[str, str]:
        """Return the inner index's parameters by their names here: ``prefix_name`` beside ours."""
        return {
            f"{prefix}_{name}" if name.startswith((*own, f"{prefix}_")) else name: name
            for name in self.inner._parameters.names
        }

    def _drop_inner_rows(self, allowed: Mask) -> None:
        """Drop the inner rows that ``allowed`` excludes; the inner index has no tombstones."""
        self.inner.delete(np.flatnonzero(~allowed))
        self.inner.compact()


def inner_index(index: Index | Spec, where: str) -> Index:
    """Return the empty index that is given or described.

    ``ConfigError`` for one that holds rows already or has no metric, as inverted indexes have none,
    and for a description of one that would need training queries.
    """
    kind = str(index.get("type")) if isinstance(index, Mapping) else ""
    if kind in KNOWN and KNOWN[kind].learns:
        raise ConfigError(
            f"{where}: {kind} learns from training queries, which are not passed on to an "
            f"index inside another; take another type here, or {kind} by itself"
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


FIRST = "first"  # folder of the first pass, and prefix of its parameters that are named as ours
PLACES = 1 << 21  # candidates of the queries searched together: 24 MiB
SCALED = 1 << 21  # float64 values of one step of scaling


class FunnelIndex(WrappingIndex):
    """Search on the first ``dimensions``, then the best ``depth`` documents scored exactly.

    For Matryoshka models, whose vectors work cut to any prefix (Kusupati et al., 2022); of other
    models the prefix says less, and the depth must be larger. A depth of the whole corpus gives
    the hits of ``FlatIndex`` with the same ``metric``, ties included, whatever ``first`` is, so
    long as ``first`` returns that many. ``dimensions=None`` takes all: rescoring alone.

    ``first`` is the index of the first pass (or its spec, ``{type: faiss, factory: HNSW32}``);
    ``FlatIndex(metric)`` by default. A prefix is scaled to the length of its whole vector. Of unit
    vectors that is the prefix normalised again, as Matryoshka losses train it; of others it keeps
    the length, which counts in inner products and distances and which a cut prefix would lose.
    For several steps, make ``first`` a ``FunnelIndex`` of fewer dimensions.

    ``params`` of a search are ``depth`` and those of ``first``; one that has the name of ours
    is called ``first_depth``. Every result is as long as ``k`` asks: the depth is at least that.
    """

    type_name = "funnel"

    def __init__(
        self,
        dimensions: Annotated[int | None, "Dimensions of the first pass; left out, all."] = None,
        depth: Annotated[int, "Candidates of the first pass that are scored exactly."] = 100,
        first: Annotated[
            Index | dict[str, Any] | None,
            "The index of the first pass, {type: ...}; left out, flat.",
        ] = None,
        *,
        metric: Metric = "ip",
    ) -> None:
        metric = checked_metric(metric)
        super().__init__(FlatIndex(metric) if first is None else inner_index(first, FIRST), metric)
        self.metric: Metric = metric
        self.depth = whole_number(depth, "depth", 1)
        self.dimensions = None if dimensions is None else whole_number(dimensions, "dimensions", 1)
        if self.inner.metric != metric:
            raise ConfigError(
                f"first: metric {self.inner.metric!r}, the funnel has {metric!r}; give both the "
                "same"
            )
        self._vectors = DenseRows()

    @property
    def first(self) -> Index:
        """The index of the first pass; of the whole vectors a search reads ``depth``."""
        return self.inner

    @property
    def width(self) -> int | None:
        """Dimensions of the whole vectors; None before the first ``add``."""
        return self._vectors.width

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole vectors, their norms, and the first pass."""
        return self._vectors.nbytes + self.first.size_bytes

    def train(self, sample: Any) -> None:
        """Train the first pass on the prefixes of vectors ``[n, dim]``."""
        self.first.train(self._prefixes(self._checked(sample, "training sample")))

    def spool(self, folder: Path) -> None:
        """Keep what is added from now on in files of ``folder``, the first pass's in one below."""
        self._vectors.spool(folder)
        self.first.spool(folder / FIRST)

    def check_fit(self, width: int, documents: int) -> None:
        """Raise if the vectors are narrower than the funnel, or its first index refuses."""
        self._refuse_narrow(width, "documents")
        self.first.check_fit(self.dimensions or width, documents)

    def _refuse_narrow(self, width: int, what: str) -> None:
        if self.dimensions is not None and width < self.dimensions:
            raise DataError(
                f"{what}: {width} dimensions, the funnel searches the first "
                f"{self.dimensions}; give it fewer dimensions, or vectors of a wider model"
            )

    def _checked(self, vectors: Any, what: str) -> Dense:
        dense = checked_dense(vectors, self.width, what)
        self._refuse_narrow(dense.shape[1], what)
        return dense

    def _prefixes(self, vectors: Dense) -> Dense:
        """Return the prefixes ``[n, dimensions]``, each as long as its whole vector."""
        if self.dimensions in (None, vectors.shape[1]):
            return vectors
        prefixes = np.empty((len(vectors), self.dimensions or 0), np.float32)
        step = max(1, SCALED // vectors.shape[1])
        for start in range(0, len(vectors), step):
            whole = vectors[start : start + step]
            cut = whole[:, : self.dimensions].astype(np.float64)
            lengths = np.sqrt(np.einsum("ij,ij->i", cut, cut))
            scale = norms_of(whole) / np.where(lengths > 0, lengths, 1.0)
            prefixes[start : start + step] = np.clip(
                cut * scale[:, None], -LARGEST_SCORE, LARGEST_SCORE
            )
        return prefixes

    def _append(self, documents: Dense) -> None:
        self.first.add(self._prefixes(documents))
        self._vectors.append(documents)

    def _search(
        self, queries: Dense, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        depth = max(k, min(parameters.pop("depth", self.depth), self.rows))
        names = self._inner_names(FIRST, "depth")
        params = {names[name]: value for name, value in parameters.items()}
        step = max(1, PLACES // depth)
        batches = []
        for start in range(0, len(queries), step):
            part = queries[start : start + step]
            candidates = self.first.search(self._prefixes(part), depth, keep=allowed, params=params)
            batches.append(self._vectors.rescored(part, candidates.rows, k, self.metric))
        rows, scores = zip(*batches, strict=True)
        return Hits(np.concatenate(rows), np.concatenate(scores))

    @property
    def _parameters(self) -> SearchParameters:
        return SearchParameters(
            ("depth", *self._inner_names(FIRST, "depth")),
            lambda params: whole_number(params.get("depth", 1), "params: depth", 1),
        )

    def _documents(self, rows: Rows) -> Dense:
        return self._vectors.gather(rows)[0]

    def _keep_only(self, allowed: Mask) -> None:
        self._drop_inner_rows(allowed)
        self._vectors.keep_only(allowed)

    def _stored_rows(self) -> int:
        return len(self._vectors)

    def _write(self, folder: Path) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "dimensions": self.dimensions,
            "depth": self.depth,
            FIRST: write_inner(self.first, folder / FIRST),
            **self._vectors.write(folder),
        }

    @classmethod
    def _open(cls, folder: Path, facts: Mapping[str, Any], allow: Collection[str]) -> Self:
        first = open_inner(folder / FIRST, fact(facts, FIRST, dict, folder), allow)
        try:
            index = cls(
                facts.get("dimensions"),
                fact(facts, "depth", int, folder),
                metric=fact(facts, "metric", str, folder),
            )
        except ConfigError as error:
            raise IndexFormatError(f"{folder}: {error}") from None
        index._vectors = DenseRows.read(folder, facts)
        if first.rows != len(index._vectors):
            raise IndexFormatError(
                f"{folder}: the first pass has {first.rows:,} rows, the funnel "
                f"{len(index._vectors):,}; rebuild the folder"
            )
        index.inner = first
        return index
