"""The vectors of a corpus: encoded shard by shard, cached, resumed, and read back in row order."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ModelError, SluiceError
from sluice.encoders.foundation.progress import Advance, Rate
from sluice.encoders.model_files.registry import REMOTE
from sluice.encoders.vectors.cache import VectorCache, cache_bound, keep_within, vector_identity
from sluice.encoders.vectors.forms import Hashes, Places, checked_vectors, text_hashes
from sluice.encoders.vectors.pool import EncodingPool
from sluice.retrieval.documents.document import document_input
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.execution.executor import LOCAL, Executor, Facts, Plan, Task, run_plan
from sluice.retrieval.retrievers.corpus.encoding import (
    LONGEST_TRIAL,
    Encoding,
    EncodingEstimate,
    Reading,
    estimated,
    shard_of,
    spread,
)
from sluice.retrieval.retrievers.corpus.vectors.encoding_tasks import (
    SentEncoder,
    add_vectors,
    check_one_way_to_share,
)

if TYPE_CHECKING:
    from sluice.encoders.encoder import Vectors
    from sluice.retrieval.documents.document import Document

log = logging.getLogger("sluice")

TASKS = "tasks"  # a folder for what other processes read
CHUNK = 8_192  # documents read at a time
CHUNK_VECTORS = 131_072  # read at a time, of documents that have one for each token
SHOWN = 2_000  # texts; encoding fewer stays silent
FITTED = 100_000  # documents whose vectors a quantile is read off: 8 bytes a posting in memory
FIT_SEED = 13
SMALL = 2_000  # texts that take no longer than a trial would
ROUNDS = 3  # of encoding: shards that are damaged as soon as they are written are a broken disk

Inputs = Sequence[Any]  # what an encoder reads: texts
Encode = Callable[[Inputs], "Vectors"]


class EncodedCorpus:
    """The vectors of a corpus on disk, in row order; iterated in chunks as often as one likes.

    ``len`` is the number of documents. In memory are 8 bytes a document.
    """

    def __init__(
        self,
        cache: VectorCache,
        places: Places,
        prune: Callable[[Any], Vectors] | None = None,
        hashes: Hashes | None = None,
    ) -> None:
        self.cache, self._places, self._prune = cache, places, prune
        self.hashes = hashes  # of the texts in row order; None where vectors are not as stored

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Vectors]:
        for start, stop in pairwise(self.bounds()):
            yield self._read(self._places[start:stop])

    def bounds(self) -> list[int]:
        """Return where the chunks begin, and the end of the last."""
        held = np.concatenate(([0], np.cumsum(self.cache.lengths(self._places))))
        bounds = [0]
        while bounds[-1] < len(self):
            start = bounds[-1]
            full = int(np.searchsorted(held, held[start] + CHUNK_VECTORS, "right")) - 1
            bounds.append(max(start + 1, min(start + CHUNK, full)))
        return bounds

    @property
    def tokens(self) -> NDArray[np.int32]:
        """How many tokens each document has ``[documents]``, -1 where it was not counted."""
        return self.cache.tokens(self._places)

    def sample(self, n: int, seed: int) -> Vectors:
        """Return the vectors of ``n`` documents (or all) drawn by ``seed``, in row order."""
        rows = sampled_rows(len(self), n, seed)
        return self._read(self._places[rows])

    def pruned(self, prune: Callable[[Any], Vectors]) -> EncodedCorpus:
        """Return these vectors as ``prune`` leaves them; it is applied whenever they are read."""
        return EncodedCorpus(self.cache, self._places, prune)

    def _read(self, places: Places) -> Vectors:
        vectors = self.cache.gather(places)
        return vectors if self._prune is None else self._prune(vectors)


def sampled_rows(count: int, n: int, seed: int) -> NDArray[np.int64]:
    """Return ``n`` of ``count`` rows (or all) drawn by ``seed``, ascending."""
    if n >= count:
        return np.arange(count, dtype=np.int64)
    return np.sort(np.random.default_rng(seed).choice(count, n, replace=False))


class CorpusEncoder:
    """Encodes the texts of a corpus that are not in the cache, each once, shard by shard.

    The shards are the missing texts in the order of the corpus, cut every ``shard_of`` texts. A
    shard is written as a whole, so after a kill the same shards remain, and their vectors come out
    bit-identical. The encoder's fingerprint is checked before each is written.
    """

    def __init__(
        self,
        encoder: Any,
        root: Path,
        encoding: Encoding,
        executor: Executor = LOCAL,
        work: Path | None = None,
    ) -> None:
        self._encoder, self._encoding, self._executor = encoder, encoding, executor
        self._sent: SentEncoder | None = None
        if executor.remote:
            folder = (work or root) / TASKS
            self._sent = SentEncoder(encoder, folder, own_devices=executor.gives_devices)
        self._cache = VectorCache(root, vector_identity(encoder, encoding.store))
        # What other views of the encoder will want is kept where they can find it.
        shared = (
            encoding.cache_folder is not None and encoding.workers == 1 and not encoding.devices
        ) and not executor.remote
        views = hooks_of(encoder).views if shared else ()
        self._views = [
            (view, VectorCache(root, vector_identity(view, encoding.store))) for view in views
        ]
        self._open = contextlib.ExitStack()
        self._pool: EncodingPool | None = None

    def __enter__(self) -> Self:
        self._open.enter_context(self._cache)
        for _, cache in self._views:
            self._open.enter_context(cache)
        return self

    def __exit__(self, *_: object) -> None:
        self.end_workers()
        self._open.close()

    def look(self) -> Self:
        """Read the cache without locking it, for an estimate."""
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
        """Estimate what encoding ``rows`` will take; ``small`` texts need no trial."""
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
            size = shard_of(self._encoder, self._encoding)
            parts = [rows[start : start + size] for start in range(0, len(rows), size)]
            tasks = [
                self._task(
                    f"encode {number} of {len(parts)}",
                    hashes[part],
                    partial(inputs_of, part),
                    first=number == 1,
                )
                for number, part in enumerate(parts, 1)
            ]
            show = len(rows) >= SHOWN
            plan = Plan("encode", tasks, "documents", also=also, show=show)
            found = run_plan(plan, self._executor)
            self._take_in([hashes[part] for part in parts])
            for facts in found.values():
                if "cosine" in facts:
                    log.info(
                        "vectors stored as %s: mean cosine to the computed ones %.6f over %s "
                        "documents", self._encoding.store, facts["cosine"], f"{len(parts[0]):,}",
                    )  # fmt: skip
            places = self._cache.locate(hashes)
            rows = self._missing(hashes)
            if not len(rows):
                return EncodedCorpus(self._cache, places, hashes=hashes)
        raise ModelError(
            f"{self._cache.folder}: vectors are damaged as soon as they are written; is the disk "
            "full or broken?"
        )

    def _task(
        self, name: str, hashes: Hashes, inputs_of: Callable[[], Inputs], *, first: bool
    ) -> Task:
        """Return the task of encoding texts into a file of their own."""
        output = self._cache.path_of(hashes)

        def here(advance: Advance) -> Facts:
            inputs = inputs_of()
            facts, counts = add_vectors(
                self._encoder, self._encode, self._cache, hashes, inputs, advance, compare=first
            )
            self._keep_views(hashes, inputs, None if counts is None else counts.full)
            return facts

        sent = self._sent
        if sent is None:
            return Task("encode", name, {}, output, here, len(hashes))
        arguments = sent.arguments(output.stem, self._cache, compare=first)
        return Task(
            "encode", name, arguments, output, here, len(hashes),
            prepare=lambda: sent.write(output.stem, inputs_of()),
            finish=lambda: sent.remove(output.stem),
        )  # fmt: skip

    def _take_in(self, files: Iterable[Hashes]) -> None:
        """Find what other processes have encoded; a file that is damaged is encoded once more."""
        for hashes in files:
            if (self._cache.locate(hashes) >= 0).all():
                continue
            try:
                self._cache.take_in(hashes)
            except (SluiceError, OSError) as error:
                log.warning("%s; its texts will be encoded again", error)
                self._cache.path_of(hashes).unlink(missing_ok=True)

    def _keep_views(self, hashes: Hashes, inputs: Inputs, tokens: NDArray[np.int32] | None) -> None:
        """Keep the vectors of the encoder's other views, which the same passes made."""
        for view, cache in self._views:
            missing = np.flatnonzero(cache.locate(hashes) < 0)
            if len(missing):
                chosen = [inputs[place] for place in missing.tolist()]
                vectors = checked_vectors(
                    view.encode_documents(chosen), len(chosen), type(view).__name__
                )
                cache.put(hashes[missing], vectors, None if tokens is None else tokens[missing])

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


@contextmanager
def encoded_corpus(
    encoder: Any,
    documents: DocumentStore,
    work: Path,
    encoding: Encoding,
    readings: list[Reading] | None = None,
    executor: Executor = LOCAL,
) -> Iterator[EncodedCorpus]:
    """Yield the vectors of the store's documents, in row order; encodes what is not cached.

    They are in ``encoding.cache``, else in ``work``, and are safe from eviction inside the block.
    Those of an encoder that cuts, pools or prunes by quantile are stored whole, and derived as they
    are read: quantiles are of these very vectors, and another form finds them there. How much of
    the documents was read is appended to ``readings``, if it is known.
    """

    def inputs_of(rows: NDArray[np.int64]) -> list[Any]:
        return [document_input(encoder, each) for each in documents.documents(rows)]

    cache, whole = encoding.cache_folder, _whole(encoder)
    check_one_way_to_share(encoding, executor)
    with CorpusEncoder(whole, cache or work, encoding, executor, work) as corpus:
        hashes, rows = corpus.plan(document_input(encoder, each) for each in documents)
        tokens = None
        if len(rows):
            untried = len(rows) if executor.remote else SMALL  # the first task is the trial
            estimate = corpus.estimate(hashes, rows, inputs_of, small=untried)
            tokens = estimate.tokens
            if estimate.seconds is not None or estimate.missing < estimate.documents:
                log.info("encode: %s", estimate)
        elif len(documents) and cache is not None:
            log.info("encode: all %s documents are cached", f"{len(documents):,}")
        found = corpus.encode(hashes, rows, inputs_of, tokens=tokens)
        corpus.end_workers()
        reading = Reading.from_lengths(encoder, found.tokens)
        if readings is not None and reading is not None:
            readings.append(reading)
        yield _derived(encoder, found)
        if cache is not None:  # in here, where these vectors are in use and stay
            keep_within(cache, cache_bound())


def corpus_estimate(
    encoder: Any, documents: Callable[[], Iterable[Document]], encoding: Encoding
) -> EncodingEstimate | None:
    """Estimate what encoding documents will take; None for an encoder that counts (BM25).

    ``documents`` is called twice: to hash all texts, and to encode a sample of them. A server is
    asked for no sample, which would be paid for: of an encoder behind HTTP texts are counted.
    """
    if hooks_of(encoder).learner is not None:
        return None

    def inputs_of(rows: NDArray[np.int64]) -> list[Any]:
        wanted = set(rows.tolist())
        return [
            document_input(encoder, document)
            for row, document in enumerate(documents())
            if row in wanted
        ]

    whole = _whole(encoder)
    corpus = CorpusEncoder(whole, encoding.cache_folder or Path(os.devnull), encoding).look()
    try:
        hashes, rows = corpus.plan(document_input(encoder, each) for each in documents())
        untried = len(rows) if hooks_of(encoder).kind == REMOTE else 0
        return corpus.estimate(hashes, rows, inputs_of, small=untried)
    finally:
        corpus.end_workers()


def _whole(encoder: Any) -> Any:
    """Return the encoder whose vectors are stored: itself, or what its own are derived from."""
    derived = hooks_of(encoder).derived
    return encoder if derived is None else derived[0]


def _derived(encoder: Any, corpus: EncodedCorpus) -> EncodedCorpus:
    """Return an encoder's vectors, made of those stored; a quantile is fitted to them first."""
    fitted = hooks_of(encoder).fitted_terms
    if fitted is not None and fitted.needs_floors:
        from sluice.encoders.splade.start import set_term_floors

        sample: Any = corpus.sample(FITTED, FIT_SEED)  # sparse: no other encoder prunes
        set_term_floors(encoder, sample)
        log.info(
            "encode: prune_quantile %s fitted to %s documents",
            encoder.prune_quantile, f"{min(FITTED, len(corpus)):,}",
        )  # fmt: skip
    derived = hooks_of(encoder).derived
    return corpus if derived is None else corpus.pruned(derived[1])
