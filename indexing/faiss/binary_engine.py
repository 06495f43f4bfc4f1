"""FAISS indexes of sign bits: those that ``faiss.index_binary_factory`` makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import faiss
import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, IndexFormatError
from sluice.indexing.checks import Dense
from sluice.indexing.faiss.engine import Engine, Found, Given, Reach, reason
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

    def __init__(
        self, factory: str, metric: Metric, index: Any, *, mapped: bool = False, width: int = 0
    ) -> None:
        super().__init__(factory, metric, index, mapped=mapped)
        self._width = width

    @classmethod
    def make(cls, factory: str, metric: Metric, width: int) -> Self:
        """Make an empty index of codes that hold ``width`` bits."""
        try:
            index = faiss.index_binary_factory(-(-width // BYTE) * BYTE, factory)
        except RuntimeError as error:
            raise ConfigError(
                f"factory: faiss cannot make {factory!r} for {width} bits: {reason(error)}"
            ) from None
        return cls(factory, metric, index, width=width)

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

    @classmethod
    def open(cls, factory: str, metric: Metric, path: Path, width: int, rows: int) -> Self:
        """Open a file that ``write`` wrote; ``IndexFormatError`` for another."""
        flags = getattr(faiss, "IO_FLAG_MMAP_IFC", 0)
        try:
            index = faiss.read_index_binary(str(path), flags)
        except RuntimeError as error:
            raise IndexFormatError(
                f"{path}: faiss cannot read it ({reason(error)}); rebuild the index"
            ) from None
        if (index.d, index.ntotal) != (-(-width // BYTE) * BYTE, rows):
            raise IndexFormatError(
                f"{path}: {index.ntotal:,} codes of {index.d} bits, the manifest says {rows:,} "
                f"of {width}; rebuild the index"
            )
        return cls(factory, metric, index, mapped=True, width=width)

    def write(self, path: Path) -> None:
        """Write the index in FAISS's own format."""
        faiss.write_index_binary(self.index, str(path))

    @property
    def width(self) -> int:
        """Dimensions of the vectors: bits of a code without those that fill the last byte."""
        return self._width

    @property
    def size_bytes(self) -> int:
        """Bytes of the file that ``write`` writes."""
        return int(faiss.serialize_index_binary(self.index).nbytes)

    @property
    def centroids(self) -> int:
        """The number of lists of an inverted file; 0 without one."""
        return self.lists[0]

    @property
    def reach(self) -> Reach:
        """What a search walks through."""
        if isinstance(self.index, faiss.IndexBinaryIVF):
            return "lists"
        return "graph" if isinstance(self.index, faiss.IndexBinaryHNSW) else "codes"

    @property
    def lists(self) -> tuple[int, int]:
        """Inverted lists, and how many of them a search probes by default."""
        index = self.index
        return (
            (int(index.nlist), int(index.nprobe))
            if isinstance(index, faiss.IndexBinaryIVF)
            else (0, 0)
        )

    @property
    def beam(self) -> int:
        """Candidates that a search of a graph holds by default."""
        return int(self.index.hnsw.efSearch) if self.reach == "graph" else 0

    @property
    def scores_stored(self) -> bool:
        """Whether codes can be read back and that pays: a flat scan with a selector is as good."""
        return self.reach != "codes"

    @property
    def grows(self) -> bool:
        """Whether vectors can be added to those that are there: always."""
        return True

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the search parameters that the type takes."""
        return {"lists": ("nprobe", "max_codes"), "graph": ("efSearch",)}.get(self.reach, ())

    def search(self, queries: Dense, k: int, given: Given) -> Found:
        """Search among all rows."""
        return self._ask(queries, k, self._asked(given, None) if given else None)

    def selected(self, queries: Dense, k: int, allowed: Mask, given: Given) -> Found | None:
        """Search among the allowed rows inside FAISS; None for a type that takes no selector."""
        if self.reach == "lists":
            return None
        bits = np.packbits(allowed, bitorder="little")
        try:
            return self._ask(queries, k, self._asked(given, faiss.IDSelectorBitmap(bits)))
        except RuntimeError:
            return None

    def _ask(self, queries: Dense, k: int, asked: Any) -> Found:
        distances, rows = self.index.search(sign_bits(queries), k, params=asked)
        return self._found(distances, rows)

    def _asked(self, given: Given, selector: Any) -> Any:
        """Return FAISS's parameter object; what ``given`` leaves out comes from the index."""
        chosen = {} if selector is None else {"sel": selector}
        if self.reach == "graph":
            ef = int(given.get("efSearch", self.index.hnsw.efSearch))
            return faiss.SearchParametersHNSW(efSearch=ef, **chosen)
        if self.reach == "lists":
            return faiss.SearchParametersIVF(
                nprobe=int(given.get("nprobe", self.index.nprobe)),
                max_codes=int(given.get("max_codes", self.index.max_codes)),
            )
        return faiss.SearchParameters(**chosen)

    def stored_best(self, queries: Dense, k: int, allowed: Mask) -> Found:
        """Compare with the codes of the allowed rows, one and all."""
        rows = np.flatnonzero(allowed)
        codes = self._codes(0, self.rows)[rows]
        distances, places = faiss.knn_hamming(sign_bits(queries), codes, k)
        return self._found(distances, np.where(places < 0, -1, rows[places]))

    def _found(self, distances: NDArray[np.int32], rows: NDArray[np.int64]) -> Found:
        # An empty place holds the largest int32: the score is wrong there, and finite.
        scores = self._width - 2.0 * distances.astype(np.float64)
        return Found(scores.astype(np.float32), rows)

    def decoded(self, first: int, count: int) -> Dense:
        """Return a range of the +-1 codes."""
        bits = np.unpackbits(
            self._codes(first, count), axis=1, count=self._width, bitorder="little"
        )
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

    def emptied(self) -> Self:
        """Return a copy without vectors, trained like this one."""
        copy = self._copied()
        copy.reset()
        return type(self)(self.factory, self.metric, copy, width=self._width)
