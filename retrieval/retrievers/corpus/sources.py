"""The encoder and the corpus of a build, in whatever form the caller has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.encoder import Encoder, encodes
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.given import EncoderLike, as_encoder
from sluice.familiar import FamiliarStage
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.documents.readers.source import as_documents, is_source

if TYPE_CHECKING:
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
    from sluice.encoders.dense.given.function import FunctionEncoder

    given = as_encoder(encoder)
    if isinstance(given, FunctionEncoder) and not given.name and callable(encoder):
        from sluice.encoders.model_files.registry import kind_of

        source = folder / head.encoder
        if kind_of(source) == FunctionEncoder.kind:
            return FunctionEncoder.from_pretrained(source).of(given.embed)
    return given
