"""FAISS indexes of sign bits: those that ``faiss.index_binary_factory`` makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing.checks import Dense
from sluice.indexing.faiss.engine import Engine, Neighbours, Traits
from sluice.indexing.index import Parameters
from sluice.indexing.live_rows import Mask
from sluice.indexing.storage.exact_scores import Metric

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
