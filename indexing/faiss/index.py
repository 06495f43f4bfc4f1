"""Dense search by FAISS, from any factory string, which is checked before anything is built."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, cast

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.numbers import whole_number
from sluice.indexing.checks import Dense, checked_dense
from sluice.indexing.faiss.engine import Engine, Neighbours
from sluice.indexing.faiss.engines import BinaryEngine, FloatEngine
from sluice.indexing.faiss.filtered_search import exact_pays, masked_search, whole_search
from sluice.indexing.faiss.structure import (
    ALL_PARAMETERS,
    POINTS_PER_CENTROID,
    compacted,
    decoded_documents,
)
from sluice.indexing.flat.index import FlatIndex
from sluice.indexing.hits import LARGEST_SCORE, MISSING_SCORE, Hits, Mask, Rows
from sluice.indexing.index import Index, SearchParameters
from sluice.indexing.storage.exact_scores import Metric, checked_metric, norms_of
from sluice.indexing.storage.rows import fact

PROBE_WIDTHS = (64, 120, 768, 1680)  # most sub-quantisers divide one of them


def family(factory: str) -> type[Engine]:
    """Return the engine of a factory string: FAISS's binary ones begin with B, no others do."""
    return BinaryEngine if factory.startswith("B") else FloatEngine


def checked_factory(factory: str, metric: Metric) -> str:
    """Return ``factory`` if FAISS can make it for this metric, whatever the width."""
    if not isinstance(factory, str):
        raise ConfigError(f"factory is {factory!r}, expected a string such as 'Flat' or 'HNSW32'")
    family(factory).refuse(factory, metric)
    return factory


def probe(factory: str, metric: Metric) -> Engine | None:
    """Return an empty index of some width; None when FAISS makes none of those tried."""
    for width in PROBE_WIDTHS:
        try:
            return family(factory).make(factory, metric, width)
        except ConfigError:
            continue
    return None


RESCORE = "rescore"
LARGEST_PARAMETER = 2**31 - 1  # FAISS keeps some in an int


@dataclass(frozen=True, slots=True)
class FaissParameters(SearchParameters):
    """Those of an index with this engine; all of them while its type is not known."""

    engine: Engine | None = None

    @classmethod
    def of_engine(cls, engine: Engine | None, rescores: bool = False) -> Self:
        """Return what a search takes, ``rescore`` too where the index has the full vectors."""
        names = ALL_PARAMETERS if engine is None else engine.traits.parameters
        return cls((*names, RESCORE) if rescores else names, _check_values, engine=engine)

    def check(self, params: Mapping[str, Any]) -> None:
        """Raise ``ConfigError`` for a name the type does not take and for a wrong value."""
        if not isinstance(params, Mapping):
            raise ConfigError(
                f"params is {params!r}, expected search parameters by name, "
                "such as {efSearch: 64}"
            )
        SearchParameters.check(self, params)

    def _taken(self, unknown: str) -> str:
        names = ", ".join(self.names)
        if self.engine is not None and not self.engine.traits.parameters:
            kind = self.engine.traits.kind
            names = f"{names or 'none'} (faiss has no search parameters for {kind})"
        if unknown != RESCORE:
            return names
        return f"{names}; rescore needs the full vectors: make the index with rescore=... itself"


def _check_values(params: Mapping[str, Any]) -> None:
    for name, value in params.items():
        whole_number(value, f"params: {name}", 0 if name == RESCORE else 1, LARGEST_PARAMETER)


log = logging.getLogger("sluice")

NORM_TOLERANCE = 1e-3
UNKNOWN_SAMPLE = 65_536  # training vectors for a type that is known only with the width


class FaissIndex(Index):
    """Approximate or exact dense search by the FAISS index that ``factory`` describes.

    ``factory`` is a string of FAISS's index factory (``"Flat"``, ``"HNSW32"``, ``"IVF1024,SQ8"``,
    ``"OPQ48,IVF256,PQ48,RFlat"``). ``metric`` is ``ip``, ``l2`` (scores are negative squared
    distances) or ``cosine``: the inner product of vectors that must come normalised (within 1e-3;
    all-zero vectors pass). Hits are ordered by score, then row, inside what FAISS returned; which
    of equal documents it returns at the boundary of ``k`` is its own choice.

    ``BFlat``, ``BHNSW32`` and ``BIVF256`` keep one bit a dimension, its sign (1 above 0), of
    documents and queries: 32 times less than float32. The score is the inner product of the +-1
    codes: dimensions less twice the Hamming distance.

    With ``rescore=R`` the float32 vectors are kept too (mapped, once opened), the best ``R * k``
    candidates of FAISS are scored with them, and the best ``k`` returned with true scores, ties by
    row, and true cosines. Where ``R * k`` reaches the corpus, a type that scans all of it gives
    what ``FlatIndex`` gives. ``params`` are search parameters that every search has unless its own
    name them.

    Indexes that need training take ``train(sample)``, or train on the first vectors added and log
    it; at most ``train_size`` of them, drawn by ``seed``. ``params`` of a search are ``nprobe``,
    ``max_codes``, ``efSearch``, ``k_factor`` and ``quantizer_efSearch``, where the type has them:
    whole numbers above 0; and ``rescore``, where full vectors are kept (0 switches it off). Fast
    scan and product quantisers without inverted lists, LSH and NSG take none.

    Deleted and excluded rows are masked inside FAISS where the type takes selectors; elsewhere
    longer lists are fetched and filtered. If few rows are allowed, all of them are scored, with
    the full vectors or else as stored; if more are, ``efSearch`` and ``nprobe`` are raised with the
    selectivity (``filtered_search.py`` has the rule and its measurements). A query that still gets
    fewer than ``k`` hits, though so many rows are allowed, is scored with all of them; its line
    stays short only if the type cannot give vectors back and none are kept. Without deletions and
    ``keep`` the same holds for graphs, whose walk with ``efSearch`` below ``k`` may meet fewer;
    lines of inverted files are as short as the ``nprobe`` lists leave them.

    ``compact`` rebuilds the index, with the quantisers it has, from the full vectors, or else from
    those it can read back, which for quantised types are the decoded ones. FAISS uses as many
    threads as OpenMP allows.
    """

    type_name = "faiss"

    def __init__(
        self,
        factory: str,
        *,
        metric: Metric = "ip",
        train_size: Annotated[int | None, "Vectors that FAISS's training sees, at most."] = None,
        seed: int = 13,
        rescore: Annotated[
            int | None, "Candidates scored again with full vectors, where they are kept; 0: none."
        ] = None,
        params: Annotated[
            Mapping[str, Any] | None,
            "Search parameters that every search has, such as {nprobe: 16}.",
        ] = None,
    ) -> None:
        super().__init__()
        self.metric: Metric = checked_metric(metric)
        self.factory = checked_factory(factory, self.metric)
        self.train_size = None if train_size is None else whole_number(train_size, "train_size", 1)
        self.seed = whole_number(seed, "seed", 0)
        self.rescore = (
            None if rescore is None else whole_number(rescore, "rescore", 1, LARGEST_PARAMETER)
        )
        self._engine: Engine | None = None  # created when the width is known
        self._probe = probe(self.factory, self.metric)
        self._full = None if self.rescore is None else FlatIndex(self.metric)
        FaissParameters.of_engine(self._probe).check(params or {})
        self.params = {name: int(value) for name, value in (params or {}).items()}

    @property
    def width(self) -> int | None:
        """Dimensions of the vectors; None before the first ``train`` or ``add``."""
        return None if self._engine is None else self._engine.width

    @property
    def size_bytes(self) -> int:
        """Bytes of the FAISS index as it is written to a file, and of the full vectors kept."""
        stored = 0 if self._engine is None else self._engine.size_bytes
        return stored + (0 if self._full is None else self._full.size_bytes)

    @property
    def resident_bytes(self) -> int:
        """Bytes of the FAISS index; of the full vectors, a search reads the candidates."""
        return 0 if self._engine is None else self._engine.size_bytes

    def empty(self) -> Self:
        """Return an index without documents that has the settings of this one, to be trained."""
        return type(self)(
            self.factory, metric=self.metric, train_size=self.train_size, seed=self.seed,
            rescore=self.rescore, params=self.params,
        )  # fmt: skip

    def training_rows(self, documents: int) -> int:
        """Return how many sample vectors ``train`` would like for so many documents; 0 for none."""
        engine = self._engine or self._probe
        if engine is not None and not engine.untrained:
            return 0
        rows = UNKNOWN_SAMPLE if engine is None else engine.training_rows
        return min(documents, self.train_size or rows)

    def train(self, sample: Any) -> None:
        """Train on vectors ``[n, dim]`` that are like those to be added.

        ``DataError`` when they are fewer than the centroids to be placed; fewer than 39 for each
        are logged as a warning. An index that needs no training takes only the width from them.
        After an error the index is trained as before.
        """
        vectors = self._checked(sample, "training sample")
        if self.rows:
            raise DataError("train: the index already holds documents; make a new one")
        self._engine = self._trained(vectors)

    def _trained(self, vectors: Dense) -> Engine:
        engine = family(self.factory).make(self.factory, self.metric, vectors.shape[1])
        FaissParameters.of_engine(engine).check(self.params)
        if engine.untrained:
            if self.train_size is not None and len(vectors) > self.train_size:
                chosen = np.random.default_rng(self.seed).choice(
                    len(vectors), self.train_size, replace=False
                )
                vectors = vectors[np.sort(chosen)]
            self._check_training_size(engine.traits.centroids, len(vectors))
            engine.train(vectors)
        return engine

    def check_fit(self, width: int, documents: int) -> None:
        """Raise if FAISS cannot make this factory, or not train it on so many documents."""
        if self._engine is None and documents:
            engine = family(self.factory).make(self.factory, self.metric, width)
            if engine.untrained:
                self._refuse_few(
                    engine.traits.centroids, min(documents, self.train_size or documents)
                )

    def _check_training_size(self, centroids: int, count: int) -> None:
        self._refuse_few(centroids, count)
        if count < centroids * POINTS_PER_CENTROID:
            log.warning(
                "faiss %r: %s training vectors for %s centroids; at least %s are recommended",
                self.factory,
                f"{count:,}",
                f"{centroids:,}",
                f"{centroids * POINTS_PER_CENTROID:,}",
            )

    def _refuse_few(self, centroids: int, count: int) -> None:
        if count < max(centroids, 1):
            raise DataError(
                f"faiss {self.factory!r}: {count:,} training vectors for {centroids:,} centroids; "
                f"give train() at least {centroids:,}, better {centroids * POINTS_PER_CENTROID:,}, "
                "or choose a factory with fewer centroids"
            )

    def _checked(self, vectors: Any, what: str) -> Dense:
        dense = checked_dense(vectors, self.width, what)
        if self.metric == "cosine":
            norms = norms_of(dense)
            wrong = np.flatnonzero((np.abs(norms - 1) > NORM_TOLERANCE) & (norms > 0))
            if len(wrong):
                raise DataError(
                    f"{what}: row {wrong[0]} has norm {norms[wrong[0]]:.4g}, and metric 'cosine' "
                    "expects normalised vectors; divide each by its norm (an encoder with "
                    "normalize=True does), or choose metric='ip'"
                )
        return dense

    def _append(self, documents: Dense) -> None:
        engine = self._engine
        if engine is None:
            engine = self._trained(documents)
            if engine.traits.centroids:
                log.info(
                    "faiss %r: not trained before the first add; trained on its %s vectors",
                    self.factory,
                    f"{len(documents):,}",
                )
        engine.add(documents)
        self._engine = engine
        if self._full is not None:
            self._full.add(documents)

    def _search(
        self, queries: Dense, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        engine = cast(Engine, self._engine)  # there are rows
        params = {**self.params, **parameters}
        depth = params.pop(RESCORE, self.rescore) or 0
        full = self._full if depth else None
        live = self.rows if allowed is None else int(np.count_nonzero(allowed))
        places = min(max(depth, 1) * k, live)
        if allowed is None:
            nearest = whole_search(engine, queries, places, params)
        elif full is not None and exact_pays(engine, places, live, len(queries), params, full=True):
            return full.search(queries, k, keep=allowed)
        else:
            nearest = masked_search(engine, queries, places, allowed, params)
        if full is not None:
            return self._rescored(full, queries, nearest, k, allowed)
        return _hits(nearest)

    def _rescored(
        self, full: FlatIndex, queries: Dense, nearest: Neighbours, k: int, allowed: Mask | None
    ) -> Hits:
        hits = full._vectors.rescored(queries, nearest.rows, k, self.metric)
        if allowed is not None:  # lines that a type without stored vectors has left short
            short = np.flatnonzero((hits.rows < 0).any(axis=1))
            if len(short):
                hits.rows[short], hits.scores[short] = full.search(queries[short], k, keep=allowed)
        return hits

    def _documents(self, rows: Rows) -> Dense:
        if self._full is not None:
            return self._full._vectors.gather(rows)[0]
        engine = self._engine
        return np.zeros((0, 0), np.float32) if engine is None else decoded_documents(engine, rows)

    def _keep_only(self, allowed: Mask) -> None:
        engine = cast(Engine, self._engine)
        full = self._full
        self._engine = compacted(engine, allowed, None if full is None else full._vectors)
        if full is not None:
            full.delete(np.flatnonzero(~allowed))
            full.compact()

    @property
    def _parameters(self) -> FaissParameters:
        return FaissParameters.of_engine(self._engine or self._probe, self._full is not None)

    def _write(self, folder: Path) -> dict[str, Any]:
        if self._engine is not None:
            self._engine.write(folder / self._engine.file)
        return {
            "factory": self.factory,
            "metric": self.metric,
            "dim": self.width or 0,
            "rows": self.rows,
            "train_size": self.train_size,
            "seed": self.seed,
            "rescore": self.rescore,
            "params": self.params,
            "full": None if self._full is None else self._full._write(folder),
        }

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        try:
            index = cls(
                fact(facts, "factory", str, folder),
                metric=fact(facts, "metric", str, folder),
                train_size=facts.get("train_size"),
                seed=fact(facts, "seed", int, folder),
                rescore=facts.get("rescore"),
                params=facts.get("params"),
            )
        except ConfigError as error:
            raise IndexFormatError(f"{folder}: {error}") from None
        width, rows = fact(facts, "dim", int, folder), fact(facts, "rows", int, folder)
        if width:
            engine = family(index.factory)
            path = folder / engine.file
            index._engine = engine.open(index.factory, index.metric, path, width, rows)
        if index._full is not None:
            index._full = FlatIndex._read(folder, fact(facts, "full", dict, folder))
            index._full._live.extend(rows)
        return index


def _hits(nearest: Neighbours) -> Hits:
    rows = nearest.rows
    finite = np.clip(nearest.scores, -LARGEST_SCORE, LARGEST_SCORE)
    return Hits(rows, np.where(rows >= 0, finite, np.float32(MISSING_SCORE))).sorted()
