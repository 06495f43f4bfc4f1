"""Dense search by FAISS: any factory string, behind the class that every index shares."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import faiss
import numpy as np
from numpy.typing import NDArray

from encoders.errors import ConfigError, DataError, IndexFormatError
from indexing.arrays import fact
from indexing.exact import Metric, checked_metric, norms_of
from indexing.faiss_file import copied, open_file, reason, refuse_unknown, written_bytes
from indexing.faiss_mask import masked_search
from indexing.faiss_structure import (
    ALL_PARAMETERS,
    POINTS_PER_CENTROID,
    centroids,
    parameter_names,
    search_parameters,
)
from indexing.hits import LARGEST_SCORE, MISSING_SCORE, Hits
from indexing.index import Index
from indexing.live import Mask
from indexing.vectors import Dense, checked_dense
from indexing.whole import whole_number

log = logging.getLogger("sluice")

FILE = "index.faiss"
NORM_TOLERANCE = 1e-3
BLAS_QUERIES = 16  # batches from this size on go through BLAS; below, one scan a query is faster
COPY_BLOCK = 65_536  # vectors read back at a time by compact
LARGEST_PARAMETER = 2**31 - 1  # FAISS keeps some in an int


class FaissIndex(Index):
    """Approximate or exact dense search by the FAISS index that ``factory`` describes.

    ``factory`` is a string of FAISS's index factory (``"Flat"``, ``"HNSW32"``, ``"IVF1024,SQ8"``,
    ``"OPQ48,IVF256,PQ48,RFlat"``). ``metric`` is ``ip``, ``l2`` (scores are negative squared
    distances) or ``cosine``: the inner product of vectors that must come normalised (within 1e-3;
    all-zero vectors pass). Hits are ordered by score, then row, inside what FAISS returned; which
    of equal documents it returns at the boundary of ``k`` is its own choice.

    Indexes that need training take ``train(sample)``, or train on the first vectors added and log
    it; at most ``train_size`` of them, drawn by ``seed``. ``params`` of a search are ``nprobe``,
    ``max_codes``, ``efSearch``, ``k_factor`` and ``quantizer_efSearch``, where the type has them:
    whole numbers above 0.

    Deleted and kept-out rows are masked inside FAISS where the type takes selectors. Elsewhere
    (product quantisers without inverted file, NSG, LSH) more hits are fetched and filtered, in
    rounds until enough remain: slow when ``keep`` leaves few rows. A query that the graph or the
    probed lists then give fewer than ``k`` hits, though so many rows are allowed, is scored with
    all allowed rows as they are stored (in an inverted file by probing every list); its line stays
    short only if the type cannot give vectors back. Without deletions and ``keep`` a line is as
    short as FAISS leaves it. ``compact`` builds the index again from the vectors it can read back,
    which for quantised types are the decoded ones.
    """

    type_name = "faiss"

    def __init__(
        self,
        factory: str,
        *,
        metric: Metric = "ip",
        train_size: int | None = None,
        seed: int = 13,
    ) -> None:
        super().__init__()
        self.factory = factory
        self.metric: Metric = checked_metric(metric)
        self.train_size = None if train_size is None else whole_number(train_size, "train_size", 1)
        self.seed = whole_number(seed, "seed", 0)
        self._index: Any = None  # made when the width is known
        self._mapped = False  # opened from a file: read-only until copied
        refuse_unknown(factory)

    @property
    def width(self) -> int | None:
        """Dimensions of the vectors; None before the first ``train`` or ``add``."""
        return None if self._index is None else int(self._index.d)

    @property
    def size_bytes(self) -> int:
        """Bytes of the FAISS index as it is written to a file."""
        return 0 if self._index is None else written_bytes(self._index)

    def train(self, sample: Any) -> None:
        """Train on vectors ``[n, dim]`` that are like those to be added.

        ``DataError`` when they are fewer than the centroids to be placed; fewer than 39 for each
        is said in the log. An index that needs no training takes only the width from them. After an
        error the index is trained as before.
        """
        vectors = self._checked(sample, "training sample")
        if self.rows:
            raise DataError("train: the index already holds documents; make a new one")
        self._index, self._mapped = self._trained(vectors), False

    def _trained(self, vectors: Dense) -> Any:
        index = self._made(vectors.shape[1])
        if not index.is_trained:
            if self.train_size is not None and len(vectors) > self.train_size:
                chosen = np.random.default_rng(self.seed).choice(
                    len(vectors), self.train_size, replace=False
                )
                vectors = vectors[np.sort(chosen)]
            self._check_training_size(index, len(vectors))
            try:
                index.train(vectors)
            except RuntimeError as error:
                raise DataError(
                    f"faiss {self.factory!r}: training on {len(vectors):,} vectors failed: "
                    f"{reason(error)}"
                ) from None
        return index

    def _check_training_size(self, index: Any, count: int) -> None:
        wanted = centroids(index)
        if count < max(wanted, 1):
            raise DataError(
                f"faiss {self.factory!r}: {count:,} training vectors for {wanted:,} centroids; "
                f"give train() at least {wanted:,}, better {wanted * POINTS_PER_CENTROID:,}, or "
                "choose a factory with fewer"
            )
        if count < wanted * POINTS_PER_CENTROID:
            log.warning(
                "faiss %r: %s training vectors for %s centroids; %s would be sane",
                self.factory,
                f"{count:,}",
                f"{wanted:,}",
                f"{wanted * POINTS_PER_CENTROID:,}",
            )

    def _made(self, width: int) -> Any:
        kind = faiss.METRIC_L2 if self.metric == "l2" else faiss.METRIC_INNER_PRODUCT
        try:
            return faiss.index_factory(width, self.factory, kind)
        except RuntimeError as error:
            raise ConfigError(
                f"factory: faiss cannot make {self.factory!r} for {width} dimensions and metric "
                f"{self.metric!r}: {reason(error)}"
            ) from None

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
        if self._index is None:
            self._index = self._trained(documents)
            if centroids(self._index):
                log.info(
                    "faiss %r: not trained before the first add; trained on its %s vectors",
                    self.factory,
                    f"{len(documents):,}",
                )
        if self._mapped:  # FAISS aborts the process when a mapped index grows
            self._index = copied(self._index)
            self._mapped = False
        try:
            self._index.add(documents)
        except RuntimeError as error:
            raise DataError(f"faiss {self.factory!r}: add failed: {reason(error)}") from None

    def _search(
        self, queries: Dense, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        # FAISS 1.15 goes through BLAS only when batch x width reaches 128,000; its older bound
        # of a few queries is several times faster on flat and IVF training.
        faiss.cvar.distance_compute_blas_threshold = BLAS_QUERIES * self._index.d
        if allowed is None:
            asked = search_parameters(self._index, parameters, None)
            scores, rows = self._index.search(queries, k, params=asked)
        else:
            scores, rows = masked_search(self._index, queries, k, allowed, parameters)
        return _hits(rows, -scores if self.metric == "l2" else scores)

    def _keep_only(self, allowed: Mask) -> None:
        compacted = copied(self._index)
        compacted.reset()
        try:
            for start in range(0, self.rows, COPY_BLOCK):
                mask = allowed[start : start + COPY_BLOCK]
                if mask.any():
                    compacted.add(self._index.reconstruct_n(start, len(mask))[mask])
        except RuntimeError as error:
            raise ConfigError(
                f"compact: faiss {self.factory!r} cannot give its vectors back "
                f"({reason(error)}); build the index again from the corpus"
            ) from None
        self._index, self._mapped = compacted, False

    def _search_parameters(self) -> tuple[str, ...]:
        return ALL_PARAMETERS if self._index is None else parameter_names(self._index)

    def _check_parameters(self, given: Mapping[str, Any]) -> None:
        super()._check_parameters(given)
        for name, value in given.items():
            whole_number(value, f"params: {name}", 1, LARGEST_PARAMETER)

    def _write(self, folder: Path) -> dict[str, Any]:
        if self._index is not None:
            faiss.write_index(self._index, str(folder / FILE))
        return {
            "factory": self.factory,
            "metric": self.metric,
            "dim": self.width or 0,
            "rows": self.rows,
            "train_size": self.train_size,
            "seed": self.seed,
        }

    @classmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        try:
            index = cls(
                fact(facts, "factory", str, folder),
                metric=fact(facts, "metric", str, folder),
                train_size=facts.get("train_size"),
                seed=fact(facts, "seed", int, folder),
            )
        except ConfigError as error:
            raise IndexFormatError(f"{folder}: {error}") from None
        width, rows = fact(facts, "dim", int, folder), fact(facts, "rows", int, folder)
        if width:
            index._index = open_file(folder / FILE, width, rows)
            index._mapped = True
        return index


def _hits(rows: NDArray[np.int64], scores: Dense) -> Hits:
    finite = np.clip(scores, -LARGEST_SCORE, LARGEST_SCORE)
    better = np.where(rows >= 0, finite, np.float32(MISSING_SCORE))
    order = np.lexsort((rows, -better), axis=-1)
    return Hits(
        np.take_along_axis(rows, order, axis=-1), np.take_along_axis(better, order, axis=-1)
    )
