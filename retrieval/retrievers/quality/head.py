"""Fits a passage-quality head on a retriever's vectors and scores its documents with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.retrievers.quality.scores import QualityScores

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.retriever import Retriever
    from sluice.training.rankers.quality_head import Loss, QualityHead

Labels = Literal["share", "any"]
MOST = 50_000  # documents that a head learns from
CHUNK = 16_384  # vectors scored at a time


def train_quality_head(
    retriever: Retriever,
    qrels: Qrels,
    *,
    labels: Labels = "share",
    loss: Loss = "bce",
    l2: float = 1.0,
    seed: int = 13,
) -> QualityHead:
    """Learn from judgements which documents are relevant to anything, by their vectors.

    ``qrels`` are those of train queries, never of the test. With the labels ``share`` each
    query shares one unit among its relevant documents, and a document's target is the sum of what
    it gets (for ``bce`` divided by the largest). ``any`` is 1 for a document relevant to some
    query, 0 for the others: not for collections where next to all are (NFCorpus), and where what
    is relevant to no train query is so to another. Counting queries instead would prefer what a few
    broad queries with hundreds of relevant documents find.

    At most 50,000 documents are used, half of them relevant if there are enough.
    The vectors are those in the retriever's index.
    """
    from sluice.training.rankers.quality_head import fit_quality_head

    if labels not in get_args(Labels):
        near = suggest(str(labels), get_args(Labels))
        raise ConfigError(f"labels: {labels!r}; expected share or any{near}")
    _check_retriever(retriever)
    shares = query_shares(qrels)
    places = retriever.store.rows(list(shares))
    targets = np.zeros(retriever.store.rows_total)
    known = places >= 0
    targets[places[known]] = np.array(list(shares.values()))[known]
    if not known.any():
        raise DataError(
            f"{retriever.path}: none of the {len(shares):,} relevant documents of the qrels is in "
            "it; do they belong to this corpus?"
        )
    rows = _chosen(_rows(retriever), targets, seed)
    wanted = targets[rows]
    if labels == "any":
        wanted = (wanted > 0).astype(np.float64)
    elif wanted.any():
        wanted = wanted / wanted.max()
    facts = {
        "fingerprint": retriever.head.encoder_fingerprint,
        "labels": labels,
        "documents": len(rows),
        "relevant": int((targets[rows] > 0).sum()),
    }
    vectors = _vectors(retriever, rows)
    return fit_quality_head(vectors, wanted, loss=loss, l2=l2, seed=seed, facts=facts)


def query_shares(qrels: Qrels) -> dict[str, float]:
    """Return what each relevant document gets when every query shares one unit among its own."""
    shares: dict[str, float] = defaultdict(float)
    for grades in qrels.values():
        relevant = [doc for doc, grade in grades.items() if grade > 0]
        for doc in relevant:
            shares[doc] += 1 / len(relevant)
    return dict(shares)


def score_retriever(retriever: Retriever, head: QualityHead) -> QualityScores:
    """Score a retriever's documents from the vectors in its index; nothing is encoded.

    In the order of its documents, which is that of the corpus it was built of.
    """
    _check_retriever(retriever)
    known = head.facts.get("fingerprint")
    if known not in (None, retriever.head.encoder_fingerprint):
        raise ConfigError(
            f"{retriever.path}: the head was fitted on vectors of the encoder {known}, and these "
            f"are of {retriever.head.encoder_fingerprint}; fit a head for them"
        )
    ids: list[str] = []
    found: list[NDArray[np.float32]] = []
    for rows in _parted(_rows(retriever)):
        ids += retriever.store.ids(rows)
        found.append(head.quality(_vectors(retriever, rows)))
    scores = np.concatenate(found) if found else np.zeros(0, np.float32)
    return QualityScores(ids, scores, by="head", facts=head.facts)


def _check_retriever(retriever: Retriever) -> None:
    if retriever.head.passages is not None:
        raise ConfigError(
            f"{retriever.path}: its vectors are of passages, and quality is scored by document; "
            "use a retriever without passages"
        )


def _rows(retriever: Retriever) -> NDArray[np.int64]:
    """Return the rows of the documents that are not deleted."""
    store = retriever.store
    return np.setdiff1d(np.arange(store.rows_total), store.deleted, assume_unique=True)


def _chosen(rows: NDArray[np.int64], targets: NDArray[np.float64], seed: int) -> NDArray[np.int64]:
    """Return at most ``MOST`` rows, relevant ones first, in ascending order."""
    if len(rows) <= MOST:
        return rows
    draw = np.random.default_rng(seed)
    relevant, others = (rows[targets[rows] > 0], rows[targets[rows] <= 0])
    first = draw.permutation(relevant)[: max(MOST // 2, MOST - len(others))]
    return np.sort(np.append(first, draw.permutation(others)[: MOST - len(first)]))


def _vectors(retriever: Retriever, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    vectors = retriever.index.documents(rows)
    if not isinstance(vectors, np.ndarray):
        kind = "of tokens" if isinstance(vectors, TokenVectors) else "sparse"
        raise ConfigError(
            f"{retriever.path}: its vectors are {kind}, and a quality head reads dense ones; use a "
            "retriever with a dense encoder"
        )
    return vectors


def _parted(rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK]
