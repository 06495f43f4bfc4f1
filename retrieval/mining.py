"""Hard negatives from any retriever, folder, pipeline or TREC run, as training wants them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from encoders.errors import DataError
from retrieval.asking import run_on
from retrieval.ranking import Run
from retrieval.retriever import Retriever
from retrieval.stage import Cut, Stage
from retrieval.training_checks import mining_of

if TYPE_CHECKING:
    from retrieval.dataset import Dataset
    from training import MinedNegatives

PAIRS = 16_384  # (query, document) pairs scored at a time
DEPTH = 100  # candidates looked at for each query


def mine_negatives(
    source: Stage | Run, dataset: Dataset, spec: Mapping[str, Any], *, seed: int
) -> MinedNegatives:
    """Mine negatives for a dataset's queries from the lists of ``source``.

    ``spec`` is the YAML section ``negatives``. A retriever also scores the positives that its list
    missed, so that every query has the limit that TopK-PercPos needs; a run cannot, which the
    report counts. Where a hit with the query's id is the query itself, it is no candidate.
    """
    from training import mine

    mining = mining_of(spec, "negatives")
    depth = spec.get("depth", max(DEPTH, mining.range_max or 0))
    run = run_on(source, dataset, depth).top(depth)
    if not any(query in run for query in dataset.queries):
        raise DataError(
            f"negatives.retriever: {run.name!r} answers none of the {len(dataset.queries):,} "
            f"training queries of {dataset.name}; is it a run on another split?"
        )
    ranked = {query: list(ranking) for query, ranking in run.items()}
    scores = None
    retriever = _retriever(source)
    if retriever is not None and mining.needs_positive_score:
        scores = _missed_scores(retriever, run, dataset)
    return mine(ranked, dataset.qrels, mining, positive_scores=scores, seed=seed)


def _retriever(source: Stage | Run) -> Retriever | None:
    inner = source.stage if isinstance(source, Cut) else source
    return inner if isinstance(inner, Retriever) else None


def _missed_scores(retriever: Retriever, run: Run, dataset: Dataset) -> dict[str, dict[str, float]]:
    """Score the positives that a retriever's lists lack, by its own encoder."""
    pairs = []
    for query, grades in dataset.qrels.items():
        found = set(run[query].doc_ids) if query in run else set()
        if query in dataset.queries:
            pairs += [
                (query, doc) for doc, grade in grades.items() if grade > 0 and doc not in found
            ]
    documents = list(dict.fromkeys(doc for _, doc in pairs))
    known = retriever.store.rows(documents) >= 0
    documents = [doc for doc, there in zip(documents, known, strict=True) if there]
    if not documents:
        return {}
    place = {doc: number for number, doc in enumerate(documents)}
    pairs = [pair for pair in pairs if pair[1] in place]
    queries = list(dict.fromkeys(query for query, _ in pairs))
    of = {query: number for number, query in enumerate(queries)}
    left = retriever.encoder.encode_queries([dataset.queries[query] for query in queries])
    right = retriever.encoder.encode_documents(retriever.store.texts(documents))
    metric = str(getattr(retriever.index, "metric", "ip"))
    scores: dict[str, dict[str, float]] = {}
    for start in range(0, len(pairs), PAIRS):
        part = pairs[start : start + PAIRS]
        one = left[np.array([of[query] for query, _ in part])]
        other = right[np.array([place[doc] for _, doc in part])]
        found = _similarities(one, other, metric).tolist()
        for (query, doc), score in zip(part, found, strict=True):
            scores.setdefault(query, {})[doc] = score
    return scores


def _similarities(one: Any, other: Any, metric: str) -> np.ndarray:
    """Score vectors row by row as an index of that metric would (l2: the negative square)."""
    if metric == "l2":
        return np.asarray(-np.square(one - other).sum(axis=1))
    products = np.asarray((one * other).sum(axis=1)).ravel()
    if metric == "cosine":
        lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        products = products / lengths.clip(1e-30)
    return products
