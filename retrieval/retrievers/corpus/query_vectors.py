"""Encodes queries: by the encoder alone, or with the index that they search; and what goes there.

An encoder writes queries where a language model does: n-grams (SEAL), or identifiers (DSI).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import plural
from sluice.indexing import FmIndex, TrieIndex
from sluice.retrieval.documents.document import document_input
from sluice.retrieval.documents.store import DocumentStore

log = logging.getLogger("sluice")

CHUNK = 16_384  # documents tokenised together


def query_vectors(encoder: Any, texts: Sequence[str], index: Any) -> Any:
    """Return what ``index`` searches with for queries; some are written under it."""
    decode = hooks_of(encoder).decode_queries
    return encoder.encode_queries(texts) if decode is None else decode(texts, index)


def written_index(encoder: Any) -> type[FmIndex] | type[TrieIndex] | None:
    """Return the index of an encoder that writes its queries; None for one of vectors."""
    similarity = hooks_of(encoder).similarity
    if similarity == "ngrams":
        return FmIndex
    return TrieIndex if similarity == "identifiers" else None


def check_written(encoder: Any, index: Any) -> None:
    """Raise ``ConfigError`` where encoder and index are not of the same kind of token sequences."""
    expected = written_index(encoder)
    kind = hooks_of(encoder).kind
    if expected is not None and not isinstance(index, expected):
        holds = "n-grams of tokens" if expected is FmIndex else "identifiers"
        article = "an" if expected is FmIndex else "a"
        raise ConfigError(
            f"index: {type(index).__name__} holds others, and a {kind} encoder has {holds}; "
            f"expected {article} {expected.__name__} ({{type: {expected.type_name}}}), or leave "
            "index out"
        )
    for own, holds, name in (
        (FmIndex, "sequences of tokens", "seal"), (TrieIndex, "identifiers", "dsi")
    ):  # fmt: skip
        if expected is None and isinstance(index, own):
            raise ConfigError(
                f"index: {own.__name__} holds {holds}, and {type(encoder).__name__} makes "
                f"vectors; it is for an encoder of type {name}"
            )


def sequences(encoder: Any, documents: DocumentStore) -> Iterator[Any]:
    """Yield the documents' token ids in chunks, which are made anew after a kill.

    ``DataError`` for an encoder that learns identifiers, and has learnt that of no document here.
    """
    stream, learnt, read = iter(documents), 0, 0
    known = hooks_of(encoder).known_ids
    parts = []
    while chunk := [document_input(encoder, each) for each in islice(stream, CHUNK)]:
        read += len(chunk)
        learnt += len(chunk) if known is None else known(chunk)
        parts.append(chunk)
        if learnt:  # else nothing is worth encoding yet
            yield from map(encoder.encode_documents, parts)
            parts = []
    if read and not learnt:
        if not hooks_of(encoder).open_to_all:
            raise DataError(
                f"encoder: it has learnt identifiers of none of these {read:,} documents; train it "
                "on this corpus (loss: identifiers)"
            )
        yield from map(encoder.encode_documents, parts)
    elif learnt < read:
        log.warning(
            "%s of %s are new to the model: they are found by what it knows of others, if at all; "
            "train it again to have them learnt", plural(read - learnt, "document"), f"{read:,}",
        )  # fmt: skip
