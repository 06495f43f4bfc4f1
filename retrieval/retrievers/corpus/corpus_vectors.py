"""The vectors that go into a retriever's index: encoded, cached, or given by the caller."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.vectors.cache import VectorCache, cache_bound, keep_within
from sluice.encoders.vectors.forms import checked_vectors
from sluice.retrieval.documents.document import document_input
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.retrievers.corpus.corpus_encoding import CorpusEncoder, EncodedCorpus
from sluice.retrieval.retrievers.corpus.encoding import Encoding

if TYPE_CHECKING:
    from sluice.retrieval.documents.document import Document
    from sluice.retrieval.retrievers.corpus.encoding_estimate import EncodingEstimate

log = logging.getLogger("sluice")

FITTED = 100_000  # documents whose vectors a quantile is read off: 8 bytes a posting in memory
FIT_SEED = 13
SMALL = 2_000  # texts that take no longer than a trial would


@contextmanager
def encoded_corpus(
    encoder: Any, documents: DocumentStore, work: Path, encoding: Encoding
) -> Iterator[EncodedCorpus]:
    """Yield the vectors of the store's documents, in row order; encodes what is not cached.

    They are in ``encoding.cache``, else in ``work``, and are safe from eviction inside the block.
    Those of an encoder that prunes by quantile are stored whole, and pruned as they are read: the
    quantiles are of these very vectors, and another quantile finds them there.
    """

    def inputs_of(rows: NDArray[np.int64]) -> list[Any]:
        return [document_input(encoder, each) for each in documents.documents(rows)]

    cache, whole = encoding.cache_folder, _without_quantile(encoder)
    with CorpusEncoder(whole, cache or work, encoding) as corpus:
        hashes, rows = corpus.plan(document_input(encoder, each) for each in documents)
        tokens = None
        if len(rows):
            estimate = corpus.estimate(hashes, rows, inputs_of, small=SMALL)
            tokens = estimate.tokens
            if estimate.seconds is not None or estimate.missing < estimate.documents:
                log.info("encode: %s", estimate)
        elif len(documents) and cache is not None:
            log.info("encode: all %s documents are cached", f"{len(documents):,}")
        found = corpus.encode(hashes, rows, inputs_of, tokens=tokens)
        corpus.end_workers()
        yield found if whole is encoder else _pruned(encoder, found)
        if cache is not None:  # in here, where these vectors are in use and stay
            keep_within(cache, cache_bound())


@contextmanager
def kept_vectors(vectors: Iterable[Any], work: Path) -> Iterator[EncodedCorpus]:
    """Put vectors that can be read once into files, and yield them to be read again and again."""
    identity = {"encoder": "given", "store": "float32", "run": f"{os.getpid()}-{uuid.uuid4().hex}"}
    with VectorCache(work, identity) as cache:
        count = 0
        for chunk in vectors:
            size = int(chunk.shape[0])
            cache.put(_numbers(count, size), checked_vectors(chunk, size, "vectors"))
            count += size
        yield EncodedCorpus(cache, cache.locate(_numbers(0, count)))


def corpus_estimate(
    encoder: Any, documents: Callable[[], Iterable[Document]], encoding: Encoding
) -> EncodingEstimate | None:
    """Say what encoding documents will take, and do nothing; None for an encoder that counts.

    ``documents`` is asked for the stream twice: to know its texts, and for some of them.
    """
    if hasattr(encoder, "fit_documents"):
        return None

    def inputs_of(rows: NDArray[np.int64]) -> list[Any]:
        wanted = set(rows.tolist())
        return [
            document_input(encoder, document)
            for row, document in enumerate(documents())
            if row in wanted
        ]

    whole = _without_quantile(encoder)
    corpus = CorpusEncoder(whole, encoding.cache_folder or Path(os.devnull), encoding).look()
    try:
        hashes, rows = corpus.plan(document_input(encoder, each) for each in documents())
        return corpus.estimate(hashes, rows, inputs_of)
    finally:
        corpus.end_workers()


def _without_quantile(encoder: Any) -> Any:
    """Return an encoder as it is before it prunes by quantile; itself where it does not."""
    prunes = getattr(encoder, "prune_quantile", None) is not None
    return encoder.without_quantile() if prunes else encoder


def _pruned(encoder: Any, corpus: EncodedCorpus) -> EncodedCorpus:
    """Return a corpus's vectors pruned by an encoder's quantile, which is fitted to them first."""
    from sluice.encoders.splade.corpus_statistics import set_term_floors
    from sluice.encoders.splade.term_selection import prune_terms

    if encoder.needs_term_floors:
        set_term_floors(encoder, corpus.sample(FITTED, FIT_SEED))
        log.info(
            "encode: prune_quantile %s fitted to %s documents",
            encoder.prune_quantile, f"{min(FITTED, len(corpus)):,}",
        )  # fmt: skip
    return corpus.pruned(lambda vectors: prune_terms(vectors, encoder.term_floors))


def _numbers(start: int, count: int) -> NDArray[np.bytes_]:
    """Return keys for vectors without texts: their numbers."""
    return np.array([b"%016d" % number for number in range(start, start + count)], "S16")
