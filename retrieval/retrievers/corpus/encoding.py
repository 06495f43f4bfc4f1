"""How a corpus is encoded, what it will take, and how much of the texts an encoder reads."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from sluice.encoders.encoder import Encoder, encodes, hooks_of
from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import duration
from sluice.encoders.foundation.processes import peak_memory_bytes
from sluice.encoders.foundation.progress import counted_by
from sluice.encoders.foundation.tokens import (
    TokenCounts,
    TokenSequences,
    TokenVectors,
    counting_tokens,
)
from sluice.encoders.objects import EncoderLike, as_encoder
from sluice.encoders.vectors.forms import EXACT, Store
from sluice.familiar import FamiliarStage
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.documents.readers.source import as_documents, is_source

if TYPE_CHECKING:
    from sluice.encoders.encoder import Vectors
    from sluice.retrieval.documents.readers.documents import Documents
    from sluice.retrieval.retrievers.folder import Head


def encoder_and_corpus(
    encoder: Any, corpus: Any, columns: Mapping[str, Any]
) -> tuple[Encoder, Documents]:
    """Return the encoder and the documents of ``build(encoder, corpus)`` or ``build(corpus)``.

    The documents come first: they are checked before a model is loaded. ``ConfigError`` if one of
    the two is missing, or in the other's place.
    """
    if corpus is None:
        stage = isinstance(encoder, FamiliarStage)  # a retriever is callable, and has documents
        if encoder is None or encodes(encoder) or (callable(encoder) and not stage):
            raise ConfigError(
                "Retriever.build: the corpus is missing; expected Retriever.build(encoder, corpus),"
                " or Retriever.build(corpus) for BM25"
            )
        encoder, corpus = None, encoder
    elif encodes(corpus):
        raise ConfigError(
            "Retriever.build: the encoder comes first; write: retriever = Retriever.build(encoder, "
            "documents)"
        )
    documents = as_documents(corpus.corpus if isinstance(corpus, Dataset) else corpus, **columns)
    return as_encoder("bm25" if encoder is None else encoder), documents


def documents_of_all(encoders: Any, corpus: Any, columns: Mapping[str, Any]) -> Documents:
    """Return the documents that several encoders are built over."""
    like = [isinstance(each, str | Path) or encodes(each) or callable(each) for each in encoders]
    if not all(like) or (isinstance(corpus, str) and not is_source(corpus)):
        raise ConfigError(
            "Retriever.build: the encoder comes first; write: retriever = Retriever.build(encoder, "
            "documents)"
        )
    return as_documents(corpus.corpus if isinstance(corpus, Dataset) else corpus, **columns)


def encoder_for(folder: Path, head: Head, encoder: EncoderLike) -> Encoder:
    """Return the encoder to open a saved retriever with; a function gets the name it had then."""
    from sluice.encoders.dense.objects.function import FunctionEncoder

    given = as_encoder(encoder)
    if isinstance(given, FunctionEncoder) and not given.name and callable(encoder):
        from sluice.encoders.model_files.registry import kind_of

        source = folder / head.encoder
        if kind_of(source) == FunctionEncoder.kind:
            return FunctionEncoder.from_pretrained(source).of(given.embed)
    return given


log = logging.getLogger("sluice")

READING = "reading"  # in a retriever's origin
LENGTH, OVERLAP = 200, 50  # of the passages that are advised


class Reading(NamedTuple):
    """Of ``documents`` whose tokens were counted, how many are ``cut`` at ``limit`` tokens.

    ``unread`` of all their ``tokens`` are not read.
    """

    documents: int
    cut: int
    tokens: int
    unread: int
    limit: int

    @classmethod
    def from_lengths(cls, encoder: Any, tokens: NDArray[Any] | None) -> Self | None:
        """Return the summary for documents of so many ``tokens``, -1 where they are not known.

        None where nothing is known, or the encoder has no limit.
        """
        lengths = hooks_of(encoder).lengths
        if tokens is None or "document" not in lengths:
            return None
        known, limit = tokens[tokens >= 0].astype(np.int64), int(lengths["document"])
        if not len(known):
            return None
        beyond = np.maximum(known - limit, 0)
        return cls(len(known), int((beyond > 0).sum()), int(known.sum()), int(beyond.sum()), limit)

    @classmethod
    def noted(cls, origin: dict[str, Any]) -> Self | None:
        """Return the summary in a retriever's origin, None without a valid one."""
        facts = origin.get(READING)
        if not isinstance(facts, dict) or facts.keys() != set(cls._fields):
            return None
        return cls(**facts) if all(isinstance(value, int) for value in facts.values()) else None

    @property
    def unread_share(self) -> float:
        """The share of the text that is not read, by tokens."""
        return self.unread / max(1, self.tokens)

    @property
    def cure(self) -> str:
        """The passages that read all, in YAML."""
        length = max(1, min(LENGTH, 4 * self.limit // 5))
        return f"passages: {{length: {length}, overlap: {min(OVERLAP, length // 4)}}}"

    def __str__(self) -> str:
        if not self.cut:
            return f"all {self.documents:,} documents are read to the end"
        verb = "is" if self.cut == 1 else "are"
        return (
            f"{self.cut:,} of {self.documents:,} documents {verb} longer than {self.limit:,} "
            f"tokens; {percent(self.unread_share)} of the text is not read"
        )


def warn_of_cuts(name: str, reading: Reading | None, *, cure: bool = True) -> None:
    """Log one warning if documents are cut."""
    if reading is not None and reading.cut:
        advice = f" ({reading.cure} reads everything)" if cure else ""
        log.warning("%s: %s%s", name, reading, advice)


def percent(share: float) -> str:
    """Return a share in per cent; what is above none is never shown as 0."""
    return f"{100 * share:.0f} %" if share >= 0.005 or not share else "less than 1 %"


SHARD = 8_192
SHARD_VALUES = 1 << 25  # of a shard at most, of an encoder that gives each text several vectors
USUAL_TOKENS, USUAL_DIM = 512, 128  # of a text at most, where the encoder does not say


@dataclass(frozen=True, slots=True)
@checked()
class Encoding:
    """The settings of ``Retriever.build(encoding=...)``; none but ``store`` changes what is found.

    ``shard`` is the number of texts encoded and written at a time, and so what a kill can cost; of
    texts with a vector for each token it is at most as many as take 134 MB.
    ``store`` is the form of vectors on disk: float16 halves it, int8 (with a scale for each
    vector) quarters it; the loss is logged. ``cache`` is a folder of vectors to reuse, True for the
    default one, which is shared by all corpora and drops the vectors of the encoders used longest
    ago (20 GB, or ``$SLUICE_CACHE_BYTES``); without it they lie in the retriever's folder until it
    is complete.
    ``workers`` processes encode together, on ``devices`` in turn.
    """

    shard: Annotated[int, Ge(1)] = SHARD
    store: Store = EXACT
    cache: bool | str | Path | None = None
    workers: Annotated[int, Ge(1)] = 1
    devices: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.devices, str):
            raise ConfigError(f"devices: {self.devices!r}; expected a list such as ['cuda:0']")

    @property
    def cache_folder(self) -> Path | None:
        """The folder of cached vectors, None for no cache."""
        if self.cache is True:
            from sluice.encoders.vectors.cache import cache_root

            return cache_root()
        return expanded(self.cache) if self.cache else None


def shard_of(encoder: Any, encoding: Encoding) -> int:
    """Return how many texts are encoded and written at a time.

    A function of settings alone, so that a build that continues after a kill has the same shards.
    With other views of the encoder it is the least of any.
    """
    every = [encoder, *hooks_of(encoder).views]
    return min(_shard_of(each, encoding.shard) for each in every)


def _shard_of(encoder: Any, most: int) -> int:
    hooks = hooks_of(encoder)
    if hooks.similarity not in ("max_sim", "attention"):
        return most
    length = hooks.lengths.get("document", USUAL_TOKENS)
    values = max(1, length) * (hooks.dim or USUAL_DIM)
    return max(1, min(most, SHARD_VALUES // values))


WARM_UP = 8  # texts encoded before any is timed
FIRST = 32  # texts timed to learn how many the trial may have
TRIAL_SECONDS = 2.0
LONGEST_TRIAL = 1_024  # texts
LARGEST_SHARE = 1 / 16  # of all texts that the trial may have: a small job has a short one
HASH_BYTES = 16
DIRECTORY_BYTES = 56  # a text: hashes and places, of the corpus and of the cache
COPIES = 3  # of a shard's vectors in memory while it is written


class EncodingEstimate(NamedTuple):
    """Counts of documents, and for those to encode what it takes; None is not known.

    ``tokens`` are those of a text on average; ``memory_bytes`` is a guess at the peak.
    """

    documents: int
    distinct: int
    missing: int
    tokens: float | None = None
    seconds: float | None = None
    disk_bytes: int | None = None
    memory_bytes: int | None = None
    reading: Reading | None = None  # of the texts of the trial

    def __str__(self) -> str:
        cached = self.distinct - self.missing
        parts = [f"{self.documents:,} documents, {self.missing:,} to encode"]
        if cached:
            parts.append(f"{cached:,} texts cached")
        if self.documents > self.distinct:
            parts.append(f"{self.documents - self.distinct:,} duplicates")
        if self.tokens is not None:
            parts.append(f"about {self.missing * self.tokens:,.0f} tokens")
        if self.seconds is not None:
            parts.append(f"about {duration(self.seconds)}")
        if self.disk_bytes is not None:
            parts.append(f"{self.disk_bytes / 1e6:,.1f} MB on disk")
        if self.memory_bytes is not None:
            parts.append(f"about {self.memory_bytes / 1e9:,.1f} GB of memory")
        if self.reading is not None and self.reading.cut:
            of = self.reading
            parts.append(
                f"about {percent(of.cut / of.documents)} longer than {of.limit:,} tokens, "
                f"{percent(of.unread_share)} of the text not read ({of.cure} reads everything)"
            )
        return ", ".join(parts)


def spread(count: int, most: int) -> NDArray[np.int64]:
    """Return up to ``most`` of ``count`` places, evenly from the first to the last."""
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def estimated(
    counts: EncodingEstimate,
    encoder: Any,
    encode: Callable[[Sequence[Any]], Vectors],
    sample: Sequence[Any],
    encoding: Encoding,
) -> EncodingEstimate:
    """Return the counts with what they take, found by encoding of ``sample`` as much as is needed.

    The sample is from all over the corpus, up to ``LONGEST_TRIAL`` texts. The trial takes at most
    some five seconds; its vectors are thrown away.
    """

    def part(count: int) -> Sequence[Any]:
        return [sample[place] for place in spread(len(sample), count).tolist()]

    with counted_by(lambda amount=1: None):
        encode(part(WARM_UP))
        first = part(FIRST)
        seconds, _ = _timed(encode, first)
        wished = len(first) * TRIAL_SECONDS / max(seconds, 1e-6)
        texts = part(max(len(first), int(min(wished, counts.missing * LARGEST_SHARE))))
        # Twice, because the first pass of its size makes room in memory.
        with counting_tokens() as parts:
            timed = [_timed(encode, texts) for _ in range(2)]
        seconds, vectors = min(timed, key=itemgetter(0))
    counts_twice = TokenCounts.joined(parts, 2 * len(texts))
    full, tokens = None, None
    if counts_twice is not None:
        full, tokens = counts_twice.full[: len(texts)], float(counts_twice.read.mean())
    each = _stored_bytes(vectors, encoding)
    sparse = not isinstance(vectors, np.ndarray | TokenVectors | TokenSequences)
    wide = 2 * each if sparse else _stored_bytes(vectors, replace(encoding, store=EXACT))
    shard = min(shard_of(encoder, encoding), counts.missing)
    return counts._replace(
        tokens=tokens,
        seconds=counts.missing * seconds / len(texts),
        disk_bytes=round(counts.missing * (each + HASH_BYTES)),
        memory_bytes=round(
            peak_memory_bytes() + COPIES * shard * wide + DIRECTORY_BYTES * counts.documents
        ),
        reading=Reading.from_lengths(encoder, full),
    )


def _timed(
    encode: Callable[[Sequence[Any]], Vectors], texts: Sequence[Any]
) -> tuple[float, Vectors]:
    start = time.perf_counter()
    vectors = encode(texts)
    return time.perf_counter() - start, vectors


def _stored_bytes(vectors: Vectors | TokenSequences, encoding: Encoding) -> float:
    """Return the bytes of a vector on disk, on average."""
    size = {"float32": 4, "float16": 2, "int8": 1}[encoding.store]
    scale = 4 if encoding.store == "int8" else 0
    if isinstance(vectors, np.ndarray):
        return vectors.shape[1] * size + scale
    if isinstance(vectors, TokenVectors):
        return len(vectors.values) / max(1, len(vectors)) * (vectors.dim * size + scale) + 8
    if isinstance(vectors, TokenSequences):
        return len(vectors.ids) / max(1, len(vectors)) * 4 + 8
    return vectors.nnz / max(1, vectors.shape[0]) * (size + 4) + 8 + scale
