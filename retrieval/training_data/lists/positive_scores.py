"""Scores the positives that a retriever's lists lack, as its index would have scored them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.q_net import q_net_scores
from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.retrieval.pipelines.stage import Cut, Stage
from sluice.retrieval.retrievers.corpus.token_scores import stored_scores
from sluice.retrieval.retrievers.retriever import Retriever, retriever_of
from sluice.retrieval.retrievers.state import queries_at_a_time
from sluice.retrieval.runs.run import Run

PAIRS = 16_384  # (query, document) pairs scored at a time
BLOCK = 256  # queries whose networks are made together


def scoring_retriever(source: Stage | Run) -> Retriever | None:
    """Return the retriever whose scores the lists have; with a filter it may lack positives."""
    inner = source.stage if isinstance(source, Cut) else source
    if isinstance(inner, Stage) and inner.base_where is None:
        return retriever_of(inner)
    return None


def missed_scores(
    retriever: Retriever,
    run: Run,
    queries: Mapping[str, str],
    positives: Mapping[str, Collection[str]],
) -> dict[str, dict[str, float]]:
    """Score the positives that a retriever's lists lack, as its index would."""
    pairs = []
    for query in queries:
        hits = set(run[query].doc_ids) if query in run else set()
        pairs += [(query, doc) for doc in positives.get(query, ()) if doc not in hits]
    documents = list(dict.fromkeys(doc for _, doc in pairs))
    known = retriever.store.rows(documents) >= 0
    documents = [doc for doc, stored in zip(documents, known, strict=True) if stored]
    if not documents:
        return {}
    place = {doc: number for number, doc in enumerate(documents)}
    pairs = [pair for pair in pairs if pair[1] in place]
    asked = list(dict.fromkeys(query for query, _ in pairs))
    of = {query: number for number, query in enumerate(asked)}
    scores: dict[str, dict[str, float]] = {}
    if hooks_of(retriever.encoder).similarity == "q_net":
        vectors = dict(zip(documents, _vectors_of(retriever, documents), strict=True))
        return _net_scores(retriever, queries, pairs, vectors)
    left = retriever.encoder.encode_queries([queries[query] for query in asked])
    if hooks_of(retriever.encoder).similarity == "attention":
        return _attended(retriever, dict(zip(asked, left, strict=True)), pairs)
    if isinstance(left, TokenVectors):
        rows = retriever.store.rows(documents)
        for query, doc in pairs:
            one, row = left[[of[query]]], rows[[place[doc]]]
            score = float(stored_scores(retriever.index, one, row)[0])
            scores.setdefault(query, {})[doc] = score
        return scores
    right = _vectors_of(retriever, documents)
    metric = retriever.index.metric or "ip"
    for start in range(0, len(pairs), PAIRS):
        part = pairs[start : start + PAIRS]
        one = left[np.array([of[query] for query, _ in part])]
        other = right[np.array([place[doc] for _, doc in part])]
        similarities = _similarities(one, other, metric).tolist()
        for (query, doc), score in zip(part, similarities, strict=True):
            scores.setdefault(query, {})[doc] = score
    return scores


def _net_scores(
    retriever: Retriever,
    texts: Mapping[str, str],
    pairs: Sequence[tuple[str, str]],
    vectors: Mapping[str, Any],
) -> dict[str, dict[str, float]]:
    """Score pairs of queries that become networks and documents, by these vectors."""
    missed = _by_query(pairs)
    queries, most = list(missed), min(BLOCK, queries_at_a_time(retriever.encoder))
    scores: dict[str, dict[str, float]] = {}
    for start in range(0, len(queries), most):
        block = queries[start : start + most]
        nets = retriever.encoder.encode_queries([texts[query] for query in block])
        for query, net in zip(block, nets, strict=True):
            docs = missed[query]
            values = q_net_scores(net[None], np.stack([vectors[doc] for doc in docs]))[0].tolist()
            scores[query] = dict(zip(docs, values, strict=True))
    return scores


def _by_query(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the documents of each query's pairs."""
    found: dict[str, list[str]] = {}
    for query, doc in pairs:
        found.setdefault(query, []).append(doc)
    return found


def _attended(
    retriever: Retriever, vectors: Mapping[str, Any], pairs: Sequence[tuple[str, str]]
) -> dict[str, dict[str, float]]:
    """Score pairs of queries, with their vectors, and documents of several vectors each."""
    scores: dict[str, dict[str, float]] = {}
    for query, docs in _by_query(pairs).items():
        rows = retriever.store.rows(docs)
        hits = retriever.index.search(vectors[query][None], len(docs), keep=rows)
        found = dict(zip(hits.rows[0].tolist(), hits.scores[0].tolist(), strict=True))
        # a document without vectors is not found
        scores[query] = {doc: found.get(row, 0.0) for doc, row in zip(docs, rows, strict=True)}
    return scores


def _vectors_of(retriever: Retriever, documents: list[str]) -> Any:
    """Return the vectors of documents: those of the index, else encoded (whole, for passages)."""
    try:
        return retriever.index.documents(retriever.store.rows(documents))
    except ConfigError:  # it gives none back
        return retriever.encoder.encode_documents(retriever.store.texts(documents))


def _similarities(one: Any, other: Any, metric: str) -> np.ndarray:
    """Score vectors row by row as an index of that metric would (l2: the negative square)."""
    if metric == "l2":
        return np.asarray(-np.square(one - other).sum(axis=1))
    products = np.asarray((one * other).sum(axis=1)).ravel()
    if metric == "cosine":
        lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        products = products / lengths.clip(1e-30)
    return products
