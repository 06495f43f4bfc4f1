"""FAISS indexes of float vectors and of sign bits: those that its two factories make."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.indexing.checks import Dense
from sluice.indexing.faiss.engine import Engine, Neighbours, Traits
from sluice.indexing.faiss.structure import (
    centroids,
    hush_clustering,
    parameter_names,
    parts,
    rotation_width,
    search_parameters,
    spare_polysemous,
)
from sluice.indexing.hits import Mask
from sluice.indexing.index import Parameters
from sluice.indexing.storage.exact_scores import Metric, norms_of

BYTE = 8
Codes = NDArray[np.uint8]


def sign_bits(vectors: Dense) -> Codes:
    """Return one bit per dimension, 1 where the value is above 0, packed into bytes.

    The bits that fill the last byte are 0 in every vector and add nothing to a Hamming distance.
    """
    return np.packbits(vectors > 0, axis=1, bitorder="little")


class BinaryEngine(Engine):
    """A ``faiss.IndexBinary`` of the sign bits; scores are inner products of the +-1 codes."""

    file = "index.faiss_binary"

    @classmethod
    def _parsed(cls, factory: str, metric: Metric, width: int) -> Any:
        return faiss.index_binary_factory(cls._stored_width(width), factory)

    @classmethod
    def _read_file(cls, path: str, flags: int) -> Any:
        return faiss.read_index_binary(path, flags)

    @classmethod
    def _stored_width(cls, width: int) -> int:
        return -(-width // BYTE) * BYTE

    @classmethod
    def refuse(cls, factory: str, metric: Metric) -> None:
        """Raise ``ConfigError`` for a string that no width makes valid, and for ``l2``."""
        if metric == "l2":
            raise ConfigError(
                f"metric is 'l2' with the binary index {factory!r}, expected ip or cosine: sign "
                "bits keep directions, not distances"
            )
        try:
            faiss.index_binary_factory(64, factory)
        except RuntimeError:
            raise ConfigError(
                f"factory: faiss cannot parse {factory!r} as a binary index; examples: BFlat, "
                "BHNSW32, BIVF1024"
            ) from None

    def write(self, path: Path) -> None:
        """Write the index in FAISS's own format."""
        faiss.write_index_binary(self.index, str(path))

    @property
    def size_bytes(self) -> int:
        """Bytes of the file that ``write`` writes."""
        return int(faiss.serialize_index_binary(self.index).nbytes)

    @property
    def traits(self) -> Traits:
        """What the index is; a flat scan with a selector is as good as scoring the stored codes."""
        index = self.index
        kind = type(index).__name__
        if isinstance(index, faiss.IndexBinaryIVF):
            lists = int(index.nlist)
            names = ("nprobe", "max_codes")
            return Traits(kind, "lists", names, True, lists, int(index.nprobe), centroids=lists)
        if isinstance(index, faiss.IndexBinaryHNSW):
            return Traits(kind, "graph", ("efSearch",), True, beam=int(index.hnsw.efSearch))
        return Traits(kind, "codes", (), False)

    def search(self, queries: Dense, k: int, params: Parameters) -> Neighbours:
        """Search among all rows."""
        return self._nearest(queries, k, self._settings(params, None) if params else None)

    def selected(
        self, queries: Dense, k: int, allowed: Mask, params: Parameters
    ) -> Neighbours | None:
        """Search among the allowed rows inside FAISS; None for a type that takes no selector."""
        if self.traits.reach == "lists":
            return None
        bits = np.packbits(allowed, bitorder="little")
        try:
            settings = self._settings(params, faiss.IDSelectorBitmap(bits))
            return self._nearest(queries, k, settings)
        except RuntimeError:
            return None

    def _nearest(self, queries: Dense, k: int, settings: Any) -> Neighbours:
        distances, rows = self.index.search(sign_bits(queries), k, params=settings)
        return self._scored(distances, rows)

    def _settings(self, params: Parameters, selector: Any) -> Any:
        """Return FAISS's parameter object; what ``params`` leaves out comes from the index."""
        chosen = {} if selector is None else {"sel": selector}
        traits = self.traits
        if traits.reach == "graph":
            ef = int(params.get("efSearch", traits.beam))
            return faiss.SearchParametersHNSW(efSearch=ef, **chosen)
        if traits.reach == "lists":
            return faiss.SearchParametersIVF(
                nprobe=int(params.get("nprobe", traits.probes)),
                max_codes=int(params.get("max_codes", self.index.max_codes)),
            )
        return faiss.SearchParameters(**chosen)

    def stored_best(self, queries: Dense, k: int, allowed: Mask) -> Neighbours:
        """Compare with the codes of every allowed row."""
        rows = np.flatnonzero(allowed)
        codes = self._codes(0, self.rows)[rows]
        distances, places = faiss.knn_hamming(sign_bits(queries), codes, k)
        return self._scored(distances, np.where(places < 0, -1, rows[places]))

    def _scored(self, distances: NDArray[np.int32], rows: NDArray[np.int64]) -> Neighbours:
        # An empty place holds the largest int32: the score is wrong there, and finite.
        scores = self.width - 2.0 * distances.astype(np.float64)
        return Neighbours(scores.astype(np.float32), rows)

    def decoded(self, first: int, count: int) -> Dense:
        """Return a range of the +-1 codes."""
        bits = np.unpackbits(self._codes(first, count), axis=1, count=self.width, bitorder="little")
        return 2 * bits.astype(np.float32) - 1

    def _codes(self, first: int, count: int) -> Codes:
        codes: Codes = self.index.reconstruct_n(first, count)
        return codes

    def _train(self, vectors: Dense) -> None:
        self.index.train(sign_bits(vectors))

    def _add(self, vectors: Dense) -> None:
        self.index.add(sign_bits(vectors))

    def _copied(self) -> Any:
        return faiss.deserialize_index_binary(faiss.serialize_index_binary(self.index))


STORED_BLOCK = 65_536  # vectors read back at a time
BLAS_QUERIES = 16  # batches from this size on go through BLAS; below, one scan a query is faster
LARGEST_NORM = 1e18  # of vectors whose squared distances float32 holds
PROBE_WIDTH = 64  # dimensions for trying whether a factory string can be parsed
SCANNED = (faiss.IndexFlat, faiss.IndexScalarQuantizer)


class FloatEngine(Engine):
    """A ``faiss.Index``."""

    file = "index.faiss"

    @classmethod
    def _parsed(cls, factory: str, metric: Metric, width: int) -> Any:
        index = faiss.index_factory(width, factory, faiss_metric(metric))
        spare_polysemous(index)
        hush_clustering(index)
        return index

    @classmethod
    def _read_file(cls, path: str, flags: int) -> Any:
        return _mended(faiss.read_index(path, flags))

    @classmethod
    def refuse(cls, factory: str, metric: Metric) -> None:
        """Raise ``ConfigError`` for a string FAISS cannot use, before any vector is encoded.

        What depends on the width (sub-quantisers that must divide it) shows once that is known.
        """
        if "IDMap" in factory:
            raise ConfigError(
                f"factory: {factory!r} maps ids, and this index numbers its rows itself; drop IDMap"
            )
        try:
            faiss.index_factory(PROBE_WIDTH, factory, faiss_metric(metric))
        except RuntimeError as error:
            if "could not parse" in str(error):
                raise ConfigError(
                    f"factory: faiss cannot parse {factory!r}; examples: Flat, HNSW32, "
                    "IVF1024,SQ8, 'OPQ48,IVF256,PQ48,RFlat', BFlat"
                ) from None
            if "METRIC_L2" in str(error):
                raise ConfigError(
                    f"factory: faiss makes {factory!r} for metric 'l2' only, not for {metric!r}"
                ) from None

    def write(self, path: Path) -> None:
        """Write the index in FAISS's own format."""
        faiss.write_index(self.index, str(path))

    @property
    def size_bytes(self) -> int:
        """Bytes of the file that ``write`` writes, counted without making them all at once."""
        total = 0

        def count(data: bytes) -> int:
            nonlocal total
            total += len(data)
            return len(data)

        faiss.write_index(self.index, faiss.PyCallbackIOWriter(count, 1 << 20))
        return total

    @property
    def traits(self) -> Traits:
        """What the index is; the innermost part decides how it is searched.

        Rows are not decoded one by one from lists, nor from bits, which have no scale.
        """
        every = list(parts(self.index))
        inner = every[-1]
        inverted = isinstance(inner, faiss.IndexIVF)
        # RaBitQ is younger than the oldest FAISS.
        bits = isinstance(inner, faiss.IndexLSH) or type(inner).__name__ == "IndexRaBitQ"
        refined = any(isinstance(part, faiss.IndexRefine) for part in every)
        return Traits(
            kind=type(inner).__name__,
            reach=_reach(inner),
            parameters=parameter_names(self.index),
            scores_stored=refined or not (inverted or bits),
            lists=int(inner.nlist) if inverted else 0,
            probes=int(inner.nprobe) if inverted else 0,
            beam=int(inner.hnsw.efSearch) if isinstance(inner, faiss.IndexHNSW) else 0,
            centroids=centroids(self.index),
            grows=not any(isinstance(part, faiss.IndexNSG) for part in every),
        )

    def search(self, queries: Dense, k: int, params: Parameters) -> Neighbours:
        """Search among all rows."""
        return self._nearest(queries, k, search_parameters(self.index, params, None))

    def selected(
        self, queries: Dense, k: int, allowed: Mask, params: Parameters
    ) -> Neighbours | None:
        """Search among the allowed rows inside FAISS; None for a type that takes no selector."""
        bits = np.packbits(allowed, bitorder="little")
        settings = search_parameters(self.index, params, faiss.IDSelectorBitmap(bits))
        try:
            nearest = self._nearest(queries, k, settings)
        except RuntimeError:  # "search params not supported for this index"
            return None
        # Some types ignore selectors without an error.
        return nearest if allowed[nearest.rows[nearest.rows >= 0]].all() else None

    def _nearest(self, queries: Dense, k: int, settings: Any) -> Neighbours:
        through_blas(self.width)
        scores, rows = self.index.search(queries, k, params=settings)
        return Neighbours(-scores if self.metric == "l2" else scores, rows)

    def stored_best(self, queries: Dense, k: int, allowed: Mask) -> Neighbours:
        """Score every allowed row as it is stored; the innermost part has them."""
        part = faiss.downcast_index(self.index)
        while isinstance(part, faiss.IndexPreTransform):  # scores are those of transformed vectors
            for place in range(part.chain.size()):
                queries = part.chain.at(place).apply(queries)
            part = faiss.downcast_index(part.index)
        if isinstance(part, faiss.IndexLSH):
            raise RuntimeError("the bits of an LSH index have no scale")
        through_blas(part.d)
        best = faiss.ResultHeap(len(queries), k, part.metric_type == faiss.METRIC_INNER_PRODUCT)
        candidates = np.flatnonzero(allowed)
        for start in range(0, len(candidates), STORED_BLOCK):
            rows = candidates[start : start + STORED_BLOCK]
            scores, places = faiss.knn(queries, _stored(part, rows), k, part.metric_type)
            best.add_result(scores, np.where(places < 0, -1, rows[places]))
        best.finalize()
        return Neighbours(-best.D if self.metric == "l2" else best.D, best.I)

    def decoded(self, first: int, count: int) -> Dense:
        """Return a range of vectors as they are stored."""
        vectors: Dense = self.index.reconstruct_n(first, count)
        return vectors

    def _train(self, vectors: Dense) -> None:
        self._check_norms(vectors, "training sample")
        least = rotation_width(self.index)
        if len(vectors) < least:  # FAISS would write beyond its memory
            raise DataError(
                f"faiss {self.factory!r}: {len(vectors):,} training vectors for an OPQ of "
                f"{least:,} dimensions; give train() at least so many, or drop OPQ"
            )
        through_blas(self.width)
        self.index.train(vectors)

    def _add(self, vectors: Dense) -> None:
        self._check_norms(vectors, "documents")
        through_blas(self.width)
        self.index.add(vectors)

    def _check_norms(self, vectors: Dense, what: str) -> None:
        """Refuse what overflows in k-means: FAISS then aborts the process."""
        if not self.traits.centroids:
            return
        norms = norms_of(vectors)
        if len(norms) and norms.max() > LARGEST_NORM:
            row = int(np.argmax(norms))
            raise DataError(
                f"{what}: row {row} has norm {norms[row]:.4g}; faiss {self.factory!r} places "
                f"centroids by distances that overflow above {LARGEST_NORM:.0e}; scale the "
                "vectors down"
            )

    def _copied(self) -> Any:
        # By way of its bytes: clone_index refuses some transforms.
        return _mended(faiss.deserialize_index(faiss.serialize_index(self.index)))


def _reach(inner: Any) -> Literal["scan", "codes", "lists", "graph"]:
    if isinstance(inner, faiss.IndexIVF | faiss.IndexIVFFastScan):
        return "lists"
    if isinstance(inner, faiss.IndexHNSW | faiss.IndexNSG):
        return "graph"
    return "scan" if isinstance(inner, SCANNED) else "codes"


def faiss_metric(metric: Metric) -> int:
    """Return FAISS's number of a metric; cosine is the inner product of normalised vectors."""
    return int(faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT)


def through_blas(width: int) -> None:
    """Have FAISS use matrix products from ``BLAS_QUERIES`` vectors on.

    FAISS 1.15 does so only from batch x width = 128,000 on; its older bound of a few queries is
    several times faster, also when vectors are given to the lists of an inverted file.
    """
    faiss.cvar.distance_compute_blas_threshold = BLAS_QUERIES * width


def _stored(index: Any, rows: NDArray[np.int64]) -> Dense:
    """Return the vectors of ascending ``rows``, decoded."""
    try:
        vectors: Dense = index.reconstruct_batch(rows)
    except RuntimeError:  # an inverted file finds single rows no faster than all of a range
        first, count = int(rows[0]), int(rows[-1] - rows[0]) + 1
        vectors = index.reconstruct_n(first, count)[rows - first]
    return vectors


def _mended(index: Any) -> Any:
    """Return a read index that can give its vectors back.

    FAISS 1.15 reads inverted files of the fast scan without the pointer to their quantiser, and
    crashes when it decodes.
    """
    for part in parts(index):
        if isinstance(part, faiss.IndexIVFFastScan) and part.fine_quantizer is None:
            part.fine_quantizer = getattr(part, "pq", None) or part.aq
    return index
