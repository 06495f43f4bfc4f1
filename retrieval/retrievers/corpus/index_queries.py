"""Queries encoded for an index; those that one needs to be chosen, linked or measured by."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import plural
from sluice.encoders.table import TYPES
from sluice.indexing import FmIndex, TrieIndex
from sluice.indexing.table import KNOWN as INDEX_TYPES
from sluice.retrieval.documents.document import document_input
from sluice.retrieval.documents.store import DocumentStore

if TYPE_CHECKING:
    from sluice.indexing import Index


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
    for own, holds in (FmIndex, "sequences of tokens"), (TrieIndex, "identifiers"):
        if expected is None and isinstance(index, own):
            forms = INDEX_TYPES[own.type_name].holds
            name = next(name for name, each in TYPES.items() if each.form in forms)
            raise ConfigError(
                f"index: {own.__name__} holds {holds}, and {type(encoder).__name__} makes "
                f"vectors; it is for an encoder of type {name}"
            )


def sequences(encoder: Any, documents: DocumentStore) -> Iterator[Any]:
    """Yield the documents' token ids in chunks, which are made anew after a kill.

    ``DataError`` for an encoder that learns identifiers, and has learnt that of no document here.
    """
    stream, learnt, read = iter(documents), 0, 0
    identifiers = hooks_of(encoder).identifiers
    parts = []
    while chunk := [document_input(encoder, each) for each in islice(stream, CHUNK)]:
        read += len(chunk)
        learnt += len(chunk) if identifiers is None else identifiers.known_ids(chunk)
        parts.append(chunk)
        if learnt:  # else nothing is worth encoding yet
            yield from map(encoder.encode_documents, parts)
            parts = []
    if read and not learnt:
        if identifiers is not None and not identifiers.open_to_all:
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


SEED = 13
QUERIES = 400  # that an index may be chosen by
LEARNT = 20_000  # that an index is linked by
HELD_OUT = 5  # of so many queries one measures what the others link
GRAPH_QUERIES = 100  # that a walk is measured by: those of a Hypencoder are large


def chooses(index: Any) -> bool:
    """Return whether this is a recipe that measures and is replaced by the index it chooses."""
    from sluice.indexing.index import Recipe

    return isinstance(index, Recipe)


def measures(index: Any) -> bool:
    """Return whether an index, or a recipe for one, measures itself with queries."""
    from sluice.indexing import GraphIndex, InvertedIndex, TokenIndex

    if isinstance(index, GraphIndex):
        return index.mode == "graph"
    if isinstance(index, InvertedIndex):
        return bool(index.settings.loss)
    return chooses(index) or (isinstance(index, TokenIndex) and index.mode != "exact")


def chosen_index(
    encoder: Any, recipe: Any, vectors: Any, queries: Mapping[str, str] | None, work: Path
) -> Index:
    """Return the index the recipe chooses, filled; it measures with at most ``QUERIES`` queries.

    The others link the documents of a ``query_graph``, which is tried where there are enough.
    """
    from sluice.indexing import AutoIndex
    from sluice.indexing.auto.index import FEWEST_QUERIES

    asked = _asked(encoder, queries) if queries else None
    if hooks_of(encoder).one_way:
        _check_measured(recipe, 0 if asked is None else len(asked), vectors)
    others = _not_asked(queries or {})
    if isinstance(recipe, AutoIndex) and len(others) >= FEWEST_QUERIES:
        training = partial(_asked, encoder, others, LEARNT)
        return recipe.choose(vectors, asked, work=work, training=training).index
    chosen: Index = recipe.choose(vectors, asked, work=work).index
    return chosen


def _check_measured(recipe: Any, queries: int, vectors: Any) -> None:
    """Raise ``ConfigError`` where documents would stand in for queries, which they cannot."""
    from sluice.indexing import AutoIndex
    from sluice.indexing.auto.index import FEWEST_QUERIES

    if not isinstance(recipe, AutoIndex) or queries >= FEWEST_QUERIES:
        return
    if len(vectors) >= recipe.exact_below:
        raise ConfigError(
            f"index: auto measures with queries, and there are {queries}; documents cannot stand "
            f"in for them with this encoder: give {FEWEST_QUERIES} or more, or an index by its name"
        )


def learnt_queries(index: Index, encoder: Any, queries: Mapping[str, str]) -> Mapping[str, str]:
    """Give queries to an index that learns from them; return those that it may be measured by.

    ``ConfigError`` where there are too few to do both.
    """
    from sluice.indexing import QueryGraphIndex
    from sluice.retrieval.retrievers.corpus.vectors.corpus_vectors import sampled_rows

    if not isinstance(index, QueryGraphIndex):
        return queries
    names = list(queries)
    held_out = min(GRAPH_QUERIES, len(names) // HELD_OUT)
    if not held_out:
        raise ConfigError(
            f"index: query_graph links documents by training queries, and there are {len(names)}: "
            f"give {HELD_OUT} or more, those of a dataset's train or dev split, or queries= in "
            "Python; or take {type: graph}"
        )
    measured = {names[row] for row in sampled_rows(len(names), held_out, SEED).tolist()}
    texts = {name: text for name, text in queries.items() if name not in measured}
    index.learn(_asked(encoder, texts, LEARNT))
    return {name: queries[name] for name in names if name in measured}


def measure_by_queries(index: Index, encoder: Any, queries: Mapping[str, str] | None) -> None:
    """Let an index that scores some of its documents measure itself by real queries.

    Without any, one of token vectors or terms does so by its documents, when it is saved.
    """
    from sluice.indexing import GraphIndex, InvertedIndex, TokenIndex
    from sluice.indexing.wrappers.sharded import ShardedIndex

    for part in index.parts if isinstance(index, ShardedIndex) else [index]:
        inner = part.innermost  # of passages, for which a loss is measured without the documents
        own = inner if isinstance(inner, InvertedIndex) else part
        if queries and isinstance(own, TokenIndex | GraphIndex | InvertedIndex) and measures(own):
            most = GRAPH_QUERIES if isinstance(own, GraphIndex) else QUERIES
            own.measure_recall(_asked(encoder, queries, most))


def _asked(encoder: Any, queries: Mapping[str, str], most: int = QUERIES) -> Any:
    from sluice.retrieval.retrievers.corpus.vectors.corpus_vectors import sampled_rows

    texts = list(queries.values())
    rows = sampled_rows(len(texts), most, SEED)
    return encoder.encode_queries([texts[row] for row in rows.tolist()])


def _not_asked(queries: Mapping[str, str]) -> dict[str, str]:
    """Return the queries that ``_asked`` leaves out, by their texts too."""
    from sluice.retrieval.retrievers.corpus.vectors.corpus_vectors import sampled_rows

    names = list(queries)
    asked = {queries[names[row]] for row in sampled_rows(len(names), QUERIES, SEED).tolist()}
    return {name: text for name, text in queries.items() if text not in asked}
