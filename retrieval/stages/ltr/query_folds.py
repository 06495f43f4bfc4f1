"""Splits queries into folds that share neither texts nor relevant documents."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.input.same_text import same_text_key
from sluice.retrieval.datasets.source import Qrels


class QueryFolds(NamedTuple):
    """The fold of each query, from 0.

    ``apart`` says whether no document is relevant to queries of two folds; else ``largest`` is the
    share of the queries that relevant documents chain together, too many to be kept in one fold.
    """

    fold: Mapping[str, int]
    apart: bool
    largest: float


def query_folds(queries: Mapping[str, str], qrels: Qrels, folds: int, seed: int) -> QueryFolds:
    """Part queries into ``folds`` of about one size, by texts, judgements and the seed.

    Queries of one text share a fold, and so do queries with a relevant document in common: a model
    of (query, document) features can recognise a document by its lengths, and so use in a test fold
    what it learnt in the others. On SciFact, whose claims come in twos and threes from one
    abstract, folds at random promise 7 points of nDCG@10 too much. Where chains of such queries are
    longer than a fold (NFCorpus), only texts are kept together.
    """
    if not 2 <= folds <= max(len(queries), 2):
        raise ConfigError(f"folds: {folds} of {len(queries)} queries; expected from 2 to as many")
    keys = {query: _key(text, seed) for query, text in queries.items()}
    linked = _groups(queries, keys, qrels)
    largest = max(map(len, linked), default=0) / max(len(queries), 1)
    apart = largest <= 1 / folds
    groups = linked if apart else _groups(queries, keys, {})
    groups.sort(key=lambda group: (-len(group), min(keys[query] for query in group)))
    sizes, fold = [0] * folds, dict[str, int]()
    for group in groups:
        least = sizes.index(min(sizes))
        sizes[least] += len(group)
        fold.update(dict.fromkeys(group, least))
    return QueryFolds({query: fold[query] for query in queries}, apart, largest)


def _key(text: str, seed: int) -> bytes:
    seeded = f"{seed}\0{same_text_key(text)}"
    return hashlib.blake2b(seeded.encode("utf-8", "surrogatepass")).digest()


def _groups(queries: Mapping[str, str], keys: Mapping[str, bytes], qrels: Qrels) -> list[list[str]]:
    """Return the queries that texts and relevant documents chain together."""
    above = {query: query for query in queries}

    def root(query: str) -> str:
        while above[query] != query:
            above[query] = query = above[above[query]]
        return query

    holder: dict[object, str] = {}
    for query in queries:
        relevant = [doc for doc, grade in qrels.get(query, {}).items() if grade > 0]
        for what in (keys[query], *relevant):
            above[root(query)] = root(holder.setdefault(what, query))
    groups: dict[str, list[str]] = {}
    for query in queries:
        groups.setdefault(root(query), []).append(query)
    return list(groups.values())
