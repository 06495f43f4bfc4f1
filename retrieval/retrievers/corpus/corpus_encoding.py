"""A corpus as vectors: encoded shard by shard, resumed, cached, and read again in row order."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.foundation.progress import Rate, counted_by, progress
from sluice.encoders.vectors.cache import VectorCache, vector_identity
from sluice.encoders.vectors.directory import Hashes, Places, text_hashes
from sluice.encoders.vectors.forms import checked_vectors, mean_cosine
from sluice.encoders.vectors.pool import EncodingPool
from sluice.retrieval.retrievers.corpus.encoding import Encoding
from sluice.retrieval.retrievers.corpus.encoding_estimate import (
    LONGEST_TRIAL,
    EncodingEstimate,
    estimated,
    spread,
)

if TYPE_CHECKING:
    from sluice.encoders.encoder import Vectors

log = logging.getLogger("sluice")

CHUNK = 8_192  # vectors read at a time
SHOWN = 2_000  # texts; encoding fewer stays silent
ROUNDS = 3  # of encoding: shards that are damaged as soon as they are written are a broken disk

Inputs = Sequence[Any]  # what an encoder reads: texts
Encode = Callable[[Inputs], "Vectors"]


class EncodedCorpus:
    """The vectors of a corpus on disk, in row order; iterated in chunks as often as one likes.

    ``len`` is the number of documents. In memory are 8 bytes a document.
    """

    def __init__(
        self, cache: VectorCache, places: Places, prune: Callable[[Any], Vectors] | None = None
    ) -> None:
        self._cache, self._places, self._prune = cache, places, prune

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Vectors]:
        for start in range(0, len(self), CHUNK):
            yield self._read(self._places[start : start + CHUNK])

    def sample(self, n: int, seed: int) -> Vectors:
        """Return the vectors of ``n`` documents (or all) drawn by ``seed``, in row order."""
        rows = sampled_rows(len(self), n, seed)
        return self._read(self._places[rows])

    def pruned(self, prune: Callable[[Any], Vectors]) -> EncodedCorpus:
        """Return these vectors as ``prune`` leaves them; it is applied whenever they are read."""
        return EncodedCorpus(self._cache, self._places, prune)

    def _read(self, places: Places) -> Vectors:
        vectors = self._cache.gather(places)
        return vectors if self._prune is None else self._prune(vectors)


def sampled_rows(count: int, n: int, seed: int) -> NDArray[np.int64]:
    """Return ``n`` of ``count`` rows (or all) drawn by ``seed``, ascending."""
    if n >= count:
        return np.arange(count, dtype=np.int64)
    return np.sort(np.random.default_rng(seed).choice(count, n, replace=False))


class CorpusEncoder:
    """Encodes the texts of a corpus that the cache does not have, each once, shard by shard.

    The shards are the missing texts in the order of the corpus, cut every ``encoding.shard``. A
    shard is written whole, so after a kill the same shards remain to be made, and come out the same
    bit by bit. The encoder's fingerprint is checked before each is written.
    """

    def __init__(self, encoder: Any, root: Path, encoding: Encoding) -> None:
        self._encoder, self._encoding = encoder, encoding
        self._who = type(encoder).__name__
        self._cache = VectorCache(root, vector_identity(encoder, encoding.store))
        self._open = contextlib.ExitStack()
        self._pool: EncodingPool | None = None

    def __enter__(self) -> Self:
        self._open.enter_context(self._cache)
        return self

    def __exit__(self, *_: object) -> None:
        self.end_workers()
        self._open.close()

    def look(self) -> Self:
        """Read what the cache holds without taking part in it: for an estimate alone."""
        self._cache.read()
        return self

    def end_workers(self) -> None:
        """End the processes that encode; what is encoded stays."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def plan(self, inputs: Iterable[Any]) -> tuple[Hashes, NDArray[np.int64]]:
        """Return the hash of each text, and the rows to encode: the first of each missing text."""
        hashes = _hashed(inputs)
        return hashes, self._missing(hashes)

    def _missing(self, hashes: Hashes) -> NDArray[np.int64]:
        absent = np.flatnonzero(self._cache.locate(hashes) < 0)
        _, first = np.unique(hashes[absent], return_index=True)
        return np.sort(absent[first])

    def estimate(
        self,
        hashes: Hashes,
        rows: NDArray[np.int64],
        inputs_of: Callable[[NDArray[np.int64]], Inputs],
        *,
        small: int = 0,
    ) -> EncodingEstimate:
        """Say what encoding ``rows`` will take; up to ``small`` texts are not worth a trial."""
        counts = EncodingEstimate(len(hashes), len(np.unique(hashes)), len(rows))
        if len(rows) <= small:
            return counts
        sample = inputs_of(rows[spread(len(rows), LONGEST_TRIAL)])
        return estimated(counts, self._encoder, self._encode, sample, self._encoding)

    def encode(
        self,
        hashes: Hashes,
        rows: NDArray[np.int64],
        inputs_of: Callable[[NDArray[np.int64]], Inputs],
        *,
        tokens: float | None = None,
    ) -> EncodedCorpus:
        """Encode ``rows`` and return the vectors of all; ``tokens`` a text are for the progress."""
        also = Rate("tokens", tokens) if tokens else None
        for _ in range(ROUNDS):
            show = len(rows) >= SHOWN
            with progress("encode", len(rows), "documents", show=show, also=also) as advance:
                for start in range(0, len(rows), self._encoding.shard):
                    part = rows[start : start + self._encoding.shard]
                    self._add(hashes[part], inputs_of(part), advance, first=not start)
            places = self._cache.locate(hashes)
            rows = self._missing(hashes)
            if not len(rows):
                return EncodedCorpus(self._cache, places)
        raise ModelError(
            f"{self._cache.folder}: vectors are damaged as soon as they are written; is the disk "
            "full or broken?"
        )

    def _add(self, hashes: Hashes, inputs: Inputs, advance: Any, *, first: bool) -> None:
        done = 0

        def counted(amount: int = 1) -> None:
            nonlocal done
            done += amount
            advance(amount)

        with counted_by(counted):
            vectors = checked_vectors(self._encode(inputs), len(inputs), self._who)
        advance(len(inputs) - done)
        found = str(self._encoder.fingerprint)
        if found != self._cache.identity["fingerprint"]:
            raise ModelError(
                f"{self._who}: changed while it encoded the corpus (fingerprint {found[:12]}, at "
                f"the start {self._cache.identity['fingerprint'][:12]}); do not train an encoder "
                "that is encoding: build again"
            )
        self._cache.put(hashes, vectors)
        if first and self._encoding.store != "float32":
            stored = self._cache.gather(self._cache.locate(hashes))
            log.info(
                "vectors stored as %s: mean cosine to the computed ones %.6f over %s documents",
                self._encoding.store, mean_cosine(vectors, stored), f"{len(inputs):,}",
            )  # fmt: skip

    def _encode(self, inputs: Inputs) -> Vectors:
        if self._encoding.workers == 1 and not self._encoding.devices:
            made: Vectors = self._encoder.encode_documents(inputs)
            return made
        if self._pool is None:
            pool = EncodingPool(self._encoder, self._encoding.workers, self._encoding.devices)
            self._pool = pool.__enter__()
        return self._pool.encode_documents(inputs)


def _hashed(inputs: Iterable[Any]) -> Hashes:
    parts, held = [np.empty(0, "S16")], list[Any]()
    for each in inputs:
        held.append(each)
        if len(held) == CHUNK:
            parts.append(text_hashes(held))
            held = []
    return np.concatenate([*parts, text_hashes(held)])
