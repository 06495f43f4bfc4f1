"""Fits the adapter that finds a bi-encoder's errors, by a retriever's hits and judgements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.rerankers.rrra import AdaptedScorer, check_dense
from sluice.retrieval.retrievers.candidate_lists import run_on
from sluice.retrieval.retrievers.retriever import Retriever

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.training.rankers.error_adapter import Decisions

MOST = 20_000  # queries that an adapter learns from
DRAWN = 20  # random documents for each query, which are true negatives


def fit_adapter(
    retriever: Retriever,
    dataset: Dataset,
    *,
    top: Annotated[int, Ge(1), "Hits of a query that count as what the encoder finds."] = 10,
    depth: Annotated[int, Ge(1), "Hits of a query that are learnt from."] = 100,
    seed: Annotated[int, "Random seed."] = 13,
    **options: Any,
) -> AdaptedScorer:
    """Fit an adapter on the judgements of a dataset's queries and the vectors in the index.

    A document among a query's first ``top`` hits is what the bi-encoder finds; with the judgements
    that makes true and false positives and negatives. Pairs are the relevant documents, the first
    ``depth`` hits and 20 random documents of each query, of 20,000 queries at most. ``options`` are
    those of ``sluice.training.rankers.error_adapter.fit_error_adapter``. Nothing but the queries is
    encoded.
    """
    from sluice.training.rankers.error_adapter import fit_error_adapter

    whole_number(top, "top", 1)
    whole_number(depth, "depth", top)
    check_dense(retriever.encoder, str(retriever.path))
    if retriever.head.passages is not None:
        raise ConfigError(
            f"{retriever.path}: its vectors are of passages, and judgements are of documents; use "
            "a retriever without passages"
        )
    judged = {
        query: {doc for doc, grade in grades.items() if grade > 0}
        for query, grades in dataset.qrels.items()
        if query in dataset.queries and dataset.queries[query].strip()
    }
    names = sorted(query for query, docs in judged.items() if docs)
    if len(names) > MOST:
        chosen = np.random.default_rng(seed).permutation(len(names))[:MOST]
        names = [names[place] for place in sorted(chosen.tolist())]
    part = dataset.from_memory(
        dataset.corpus, {n: dataset.queries[n] for n in names}, {n: dataset.qrels[n] for n in names}
    )
    run = run_on(retriever, part, depth)
    decisions = _decisions(retriever, run, {name: judged[name] for name in names}, top, seed)
    rows, places = np.unique(decisions.documents, return_inverse=True)
    documents = retriever.index.documents(rows)
    if not isinstance(documents, np.ndarray):
        raise ConfigError(f"{retriever.path}: its vectors are not dense; use a dense encoder")
    queries = retriever.encoder.encode_queries([dataset.queries[name] for name in names])
    adapter = fit_error_adapter(
        queries, documents, decisions._replace(documents=places.reshape(-1)), seed=seed, **options
    )
    return AdaptedScorer(retriever.encoder, adapter)


def _decisions(
    retriever: Retriever, run: Any, judged: dict[str, set[str]], top: int, seed: int
) -> Decisions:
    """Return the pairs of each query, whose documents are rows of the retriever."""
    from sluice.training.rankers.error_adapter import Decisions

    draw = np.random.default_rng(seed)
    store = retriever.store
    live = np.setdiff1d(np.arange(store.rows_total), store.deleted, assume_unique=True)
    queries: list[NDArray[np.int64]] = []
    documents: list[NDArray[np.int64]] = []
    relevant: list[NDArray[np.bool_]] = []
    retrieved: list[NDArray[np.bool_]] = []
    known = 0
    for number, (query, positives) in enumerate(judged.items()):
        own = store.rows(sorted(positives))
        own = own[own >= 0]
        known += len(own)
        hits = store.rows(list(run[query].doc_ids)) if query in run else np.zeros(0, np.int64)
        drawn = draw.choice(live, min(DRAWN, len(live)), replace=False)
        rows = np.unique(np.concatenate([own, hits, drawn]).astype(np.int64))
        queries.append(np.full(len(rows), number, np.int64))
        documents.append(rows)
        relevant.append(np.isin(rows, own))
        retrieved.append(np.isin(rows, hits[:top]))
    if not known:
        raise DataError(
            f"{retriever.path}: none of the documents that are relevant to the {len(judged):,} "
            "queries is in it; do the judgements belong to this corpus?"
        )
    return Decisions(*map(np.concatenate, (queries, documents, relevant, retrieved)))  # type: ignore[arg-type]
