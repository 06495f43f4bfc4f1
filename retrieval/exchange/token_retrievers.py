"""Exports retrievers of token vectors as files, and makes retrievers of such files."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.retrieval.documents.document import Document
from sluice.retrieval.exchange.dense_retrievers import (
    DenseImport,
    corpus_of,
    described,
    index_of,
    live_documents,
    texts_beside,
)
from sluice.retrieval.exchange.tokens.vectors import (
    CHUNK,
    TokenFile,
    read_token_vectors,
    write_token_vectors,
)
from sluice.retrieval.retrievers.retriever import Retriever

if TYPE_CHECKING:
    from sluice.encoders.encoder import Encoder
    from sluice.indexing import Index

log = logging.getLogger("sluice")

LOOKED_AT = 8  # documents encoded to see whether the encoder is the one
ALIKE = 0.99  # mean cosine of tokens above which two vectors are of one model


@dataclass(frozen=True, slots=True)
class TokenExport:
    """What was written; ``decoded`` says that the index keeps less than the full vectors."""

    documents: int
    tokens: int
    dim: int
    decoded: bool

    def __str__(self) -> str:
        parts = [f"{self.documents:,} documents, {self.tokens:,} vectors of {self.dim} dimensions"]
        if self.decoded:
            parts.append("decoded from the index's codes, which are lossy")
        return "; ".join(parts)


def export_tokens(
    retriever: Retriever, output: str | Path, form: str, *, texts: bool = False
) -> TokenExport:
    """Write the token vectors of a retriever's live documents, with ids, in row order.

    ``form`` is ``npz`` or ``parquet``; see ``read_token_vectors``. With ``texts`` (parquet only)
    titles and texts go with them. From ``store: float32`` they are bit for bit those that were
    added.
    """
    if texts and form != "parquet":
        raise ConfigError(f"texts: {form} holds ids and vectors only; choose parquet")
    from sluice.indexing.wrappers.sharded import ShardedIndex

    index: Any = retriever.index
    inner = index.innermost
    if index.by_passages:
        raise ConfigError(
            f"{retriever.path}: its documents are indexed in passages, and files hold vectors by "
            "document; export an index of whole documents"
        )
    parts, entries = live_documents(retriever, CHUNK, texts=texts)
    tokens = 0

    def chunks() -> Iterator[TokenVectors]:
        nonlocal tokens
        for part in parts:
            vectors: TokenVectors = index.documents(part)
            tokens += len(vectors.values)
            yield vectors

    dim = int(index.width or 0)
    count = write_token_vectors(output, entries, chunks(), form, dim=dim)
    one: Any = index.first if isinstance(index, ShardedIndex) else inner
    return TokenExport(count, tokens, dim, one.store != "float32")


def import_tokens(
    path: str | Path,
    output: str | Path,
    form: str,
    *,
    encoder: Encoder,
    documents: Iterable[Document] | None = None,
    index: Index | None = None,
) -> Retriever:
    """Make a retriever folder of precomputed token vectors; see ``read_token_vectors``.

    Titles and texts are those of ``documents``, in any order: as many as the file has texts, with
    the same ids. Without them they come from the file, or are empty. ``encoder`` is the model that
    made the vectors; it encodes the queries, and if its vectors of the first documents differ from
    those in the file, one warning says so. ``index`` is empty and defaults to ``TokenIndex()``.
    """
    vectors = read_token_vectors(path, form)
    _check_encoder(encoder, vectors)
    with texts_beside(Path(output), documents) as stored:
        _compare(encoder, vectors, described(vectors, stored))
        return Retriever.build(
            encoder,
            described(vectors, stored),
            vectors=vectors.chunks(),
            index=index,
            path=Path(output),
            config={"imported": [str(path)], "format": form},
        )


def import_token_job(path: Path, output: Path, form: str, options: DenseImport) -> Retriever:
    """Make a retriever folder as the command line asks; see ``import_tokens``."""
    from sluice.encoders.model_files.registry import open_encoder

    single = {
        "metric": options.metric,
        "query-vectors": options.query_vectors,
        "queries": options.queries,
    }
    for name, value in single.items():
        if value is not None:
            raise ConfigError(f"--{name}: is for one vector a text, and {path} holds token vectors")
    read_token_vectors(path, form)  # a file that cannot be read needs no model
    if options.encoder is None:
        raise ConfigError(f"--encoder: missing; {path} holds token vectors: name their model")
    return import_tokens(
        path,
        output,
        form,
        encoder=open_encoder(options.encoder),
        documents=None if options.documents is None else corpus_of(options.documents),
        index=index_of(options.index or "tokens", None),
    )


def _check_encoder(encoder: Encoder, vectors: TokenFile) -> None:
    """Raise ``ConfigError`` unless an encoder makes token vectors as wide as those given."""
    empty: Any = encoder.encode_documents([])
    kind = type(encoder).__name__
    if not isinstance(empty, TokenVectors):
        raise ConfigError(
            f"encoder: a {kind} makes one vector a text; expected the model of token vectors that "
            f"made {vectors.path}"
        )
    if empty.dim != vectors.dim and len(vectors):
        raise ConfigError(
            f"encoder: this {kind} makes vectors of {empty.dim} dimensions, but {vectors.path} "
            f"holds {vectors.dim}; name the model that made them"
        )


def _compare(encoder: Encoder, vectors: TokenFile, documents: Iterator[Document]) -> None:
    """Warn if the encoder's own vectors of the first documents differ from those in the file."""
    texts = [document.full_text for document in islice(documents, LOOKED_AT)]
    chosen = [place for place, text in enumerate(texts) if text]
    if not chosen:
        return
    own: Any = encoder.encode_documents([texts[place] for place in chosen])
    imported = next(vectors.chunks()).rows(chosen)
    cosine = None
    if (own.lengths == imported.lengths).all():
        one, other = own.values.astype(np.float64), imported.values.astype(np.float64)
        lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        cosine = float(np.mean((one * other).sum(axis=1) / np.where(lengths > 0, lengths, 1)))
    if cosine is None or cosine < ALIKE:
        found = "other numbers of tokens" if cosine is None else f"a mean cosine of {cosine:.4f}"
        log.warning(
            "%s: its vectors of the first documents have %s beside the encoder's; was another "
            "model, prompt or length used? Then queries do not fit",
            vectors.path,
            found,
        )
