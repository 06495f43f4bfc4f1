"""Queries for indexes that need some: to be chosen, to link documents, or to be measured by."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError

if TYPE_CHECKING:
    from sluice.indexing import Index

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
    from sluice.indexing import GraphIndex, TokenIndex

    if isinstance(index, GraphIndex):
        return index.mode == "graph"
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

    Without any, one of token vectors does so by its documents, when it is saved.
    """
    from sluice.indexing import GraphIndex, TokenIndex
    from sluice.indexing.wrappers.sharded import ShardedIndex

    for part in index.parts if isinstance(index, ShardedIndex) else [index]:
        if queries and isinstance(part, TokenIndex | GraphIndex) and measures(part):
            most = GRAPH_QUERIES if isinstance(part, GraphIndex) else QUERIES
            part.measure_recall(_asked(encoder, queries, most))


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
