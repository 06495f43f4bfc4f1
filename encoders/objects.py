"""Takes what a program has as an encoder or a scorer: an object, a function, a model's name."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getattr_static
from pathlib import Path
from typing import Any, TypeAlias

from sluice.encoders.encoder import Encoder, EncoderBase, check_hooks, encodes
from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.table import traits_of
from sluice.familiar import FamiliarStage

# An encoder, a SentenceTransformer, a function of a list of texts, or a model's name.
EncoderLike: TypeAlias = Encoder | Callable[[list[str]], Any] | str | Path | Any

EXPECTED = (
    "expected an encoder, 'bm25', a model's name or folder, a SentenceTransformer, or a function "
    "of a list of texts that returns their vectors"
)


def as_encoder(given: EncoderLike) -> Encoder:
    """Return ``given`` as an encoder.

    An encoder is returned as it is; ``"bm25"`` is ``BM25Encoder()``, any other text a model's
    folder or name on the hub (``"all-MiniLM-L6-v2"``), dense or SPLADE; a ``SentenceTransformer``
    becomes a ``SentenceTransformerEncoder``, a function of texts, or an object with ``encode`` or
    ``embed_documents`` and ``embed_query``, a ``FunctionEncoder``. ``ConfigError`` for anything
    else.
    """
    if isinstance(given, str | Path):
        return _named(str(given))
    if isinstance(given, type):
        raise ConfigError(
            f"encoder: {given.__name__} is a class; expected an object of it, such as "
            f"{given.__name__}()"
        )
    if isinstance(given, EncoderBase):
        if not encodes(given):
            raise ConfigError(
                f"encoder: a {type(given).__name__} ranks texts and encodes none; put it behind a "
                "retriever: retriever >> Rerank(model)"
            )
        check_hooks(given)
        return given  # type: ignore[return-value]
    if encodes(given):
        needed = ("fingerprint", "save_pretrained")  # looked up without computing a hash
        known = object() if hasattr(type(given), "__getattr__") else None  # it may find any name
        missing = [name for name in needed if getattr_static(given, name, known) is None]
        if missing:
            raise ConfigError(
                f"encoder: {type(given).__name__} has no {' and no '.join(missing)}; an encoder "
                "has encode_queries, encode_documents, fingerprint and save_pretrained (a plain "
                "function of a list of texts will do)"
            )
        check_hooks(given)
        encoder: Any = given
        return encoder  # type: ignore[no-any-return]
    owner = getattr(given, "__self__", None)  # of a method, such as model.encode
    for thing in (given, owner):
        kind = _sentence_transformers_class(thing)
        if kind == "SentenceTransformer":
            from sluice.encoders.dense.objects.sentence_transformer import (
                SentenceTransformerEncoder,
            )

            return SentenceTransformerEncoder(thing)
        if kind == "SparseEncoder":
            raise ConfigError(
                "encoder: a SparseEncoder object; save it (model.save_pretrained(folder)) and give "
                "the folder's name"
            )
        if kind == "CrossEncoder":
            raise ConfigError(
                "encoder: a CrossEncoder scores pairs and encodes no text; put it behind a "
                "retriever: retriever >> Rerank(model)"
            )
    return _of_function(given)


def _of_function(given: Any) -> Encoder:
    from sluice.encoders.dense.objects.function import FunctionEncoder

    embed_documents = getattr(given, "embed_documents", None)
    embed_query = getattr(given, "embed_query", None)
    if callable(embed_documents) and callable(embed_query):  # LangChain's Embeddings
        model = getattr(given, "model", None) or getattr(given, "model_name", None) or ""
        return FunctionEncoder(
            embed_documents,
            queries=lambda texts: [embed_query(text) for text in texts],
            name=f"{type(given).__qualname__} {model}" if isinstance(model, str) else "",
        )
    if callable(given) and not isinstance(given, FamiliarStage):
        return FunctionEncoder(given)
    if callable(getattr(given, "encode", None)):
        return FunctionEncoder(given.encode)
    raise ConfigError(f"encoder: {given!r:.60} ({type(given).__name__}); {EXPECTED}")


def as_scorer(given: Any) -> Any:
    """Return ``given`` as a scorer of pairs or lists.

    A scorer, with ``score(pairs)`` or ``score_lists``, is returned as it is; a text is the folder
    or hub id of a cross-encoder, or another saved reranker's folder; a ``CrossEncoder`` of
    sentence-transformers scores by its ``predict``; a function takes a list of (query, document)
    pairs, or a query and a list of texts. ``ConfigError`` for anything else.
    """
    if isinstance(given, str | Path):
        from sluice.encoders.model_files.locate import model_folder
        from sluice.encoders.model_files.registry import kind_of, open_encoder
        from sluice.encoders.rerankers.cross_encoder import CrossEncoder
        from sluice.encoders.table import RERANKERS

        if kind_of(model_folder(str(given))) in RERANKERS:
            return open_encoder(given)
        return CrossEncoder.from_pretrained(given)
    if isinstance(given, type):
        raise ConfigError(
            f"Rerank: {given.__name__} is a class; expected an object of it, such as "
            f"{given.__name__}()"
        )
    if callable(getattr(given, "score", None)) or callable(getattr(given, "score_lists", None)):
        return given
    from sluice.encoders.rerankers.external import FunctionScorer, PredictScorer

    if _sentence_transformers_class(given) == "CrossEncoder":
        return PredictScorer(given)
    if callable(given) and not (
        isinstance(given, FamiliarStage) or _sentence_transformers_class(given)
    ):
        return FunctionScorer(given)
    raise ConfigError(
        f"Rerank: {type(given).__name__} has no score(pairs) method; expected a CrossEncoder, an "
        "object like it, or a function of pairs, or of a query and texts"
    )


def _named(name: str) -> Encoder:
    traits = traits_of(name.lower())
    if traits is not None and traits.fitted:
        encoder: Encoder = resolve(traits.make)()
        return encoder
    from sluice.encoders.model_files.registry import open_encoder

    encoder = open_encoder(name)
    if not encodes(encoder):
        raise ConfigError(
            f"encoder: {name} is a {type(encoder).__name__}, which scores pairs and encodes no "
            "text; put it behind a retriever: retriever >> Rerank(CrossEncoder...)"
        )
    opened: Encoder = encoder
    return opened


def _sentence_transformers_class(thing: Any) -> str:
    """Return which class of sentence-transformers an object is of, without importing any."""
    known = ("SentenceTransformer", "SparseEncoder", "CrossEncoder")
    for kind in type(thing).__mro__:
        if kind.__module__.partition(".")[0] == "sentence_transformers" and kind.__name__ in known:
            return kind.__name__
    return ""
