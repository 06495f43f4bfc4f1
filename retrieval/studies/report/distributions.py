"""Computes the report's recall curves and histograms of scores and document lengths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.retrieval.studies.report.evaluated import EvaluatedSet
from sluice.retrieval.studies.report.failures import judged

DEPTHS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000)
SCORED = 100  # ranks whose scores are in the histogram
BINS = 30
MEASURED = 20_000  # documents whose length is measured


def recall_curves(evaluated: EvaluatedSet) -> dict[str, Any]:
    """Return each system's mean recall at ``DEPTHS``, as deep as its run."""
    scores = evaluated.scores(f"R@{depth}" for depth in DEPTHS)
    curves = {}
    for name, run in evaluated.runs.items():
        deepest = max((len(ranking) for ranking in run.values()), default=0)
        within = [depth for depth in DEPTHS if depth <= deepest] or [DEPTHS[0]]
        curves[name] = [round(scores[name].mean[f"R@{depth}"], 4) for depth in within]
    return {"depths": DEPTHS, "systems": curves}


def score_histograms(evaluated: EvaluatedSet) -> dict[str, Any]:
    """Return by system a histogram of the scores of the first 100 hits, by judgement.

    The classes are relevant, judged not relevant, and unjudged; each has its count, mean and shares
    per bin. All share the same bins, which span the scores but for 0.2% at either end; these fall
    into the outermost bins.
    """
    histograms = {}
    for name, run in evaluated.runs.items():
        grades, scores = [], []
        for query in evaluated.queries:
            if query in run:
                grades.append(judged(run, evaluated.dataset.qrels, query).grades[:SCORED])
                scores.append(run[query].scores[:SCORED])
        if scores:
            histograms[name] = _by_class(np.concatenate(grades), np.concatenate(scores))
    return histograms


def _by_class(grades: NDArray[np.int64], scores: NDArray[np.float32]) -> dict[str, Any]:
    low, high = (float(edge) for edge in np.percentile(scores, [0.2, 99.8]))
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    classes = []
    for inside in (grades > 0, grades == 0, grades < 0):
        part = scores[inside]
        counts = np.histogram(np.clip(part, edges[0], edges[-1]), edges)[0]
        share = counts / max(1, len(part))
        classes.append(
            {
                "count": len(part),
                "mean": figures([part.mean()])[0] if len(part) else None,
                "share": figures(share),
            }
        )
    return {"edges": figures(edges), "classes": classes}


def document_lengths(evaluated: EvaluatedSet) -> dict[str, Any] | None:
    """Return histograms of document lengths: of the corpus, and of the relevant documents.

    At most 20,000 documents of the corpus are read, evenly spread if there is a store. Lengths are
    in words separated by white space, or in characters for scripts without it.
    """
    qrels = evaluated.dataset.qrels
    relevant = {doc for grades in qrels.values() for doc, grade in grades.items() if grade > 0}
    texts, total = _sampled(evaluated)
    if not texts:
        return None
    documents = evaluated.documents(sorted(relevant)[:MEASURED])
    relevant_texts = [document.full_text for document in documents.values()]
    words = sum(len(text.split()) for text in texts)
    in_words = sum(map(len, texts)) < 15 * max(1, words)
    groups = [
        np.array([len(text.split()) if in_words else len(text) for text in group])
        for group in (texts, relevant_texts)
    ]
    unit = "words" if in_words else "characters"
    return {"unit": unit, "read": len(texts), "total": total, **histogram(groups)}


def _sampled(evaluated: EvaluatedSet) -> tuple[list[str], int]:
    stores = [retriever.store for retriever in evaluated.retrievers.values()]
    store = max(stores, key=len, default=None)
    if store is not None:
        live = np.setdiff1d(np.arange(store.rows_total), store.deleted)
        rows = live[:: max(1, -(-len(live) // MEASURED))]
        return [each.full_text for each in store.documents(rows)], len(live)
    texts = []
    count = 0
    for count, document in enumerate(evaluated.dataset.corpus, 1):
        if count <= MEASURED:
            texts.append(document.full_text)
    return texts, count


def histogram(groups: Sequence[ArrayLike], bins: int = BINS) -> dict[str, Any]:
    """Return shares per bin of several groups of lengths, with their counts, medians and means.

    All groups share integer bin edges up to the 99th percentile of the first group; larger values
    fall into the last bin, and ``beyond`` is the largest.
    """
    arrays = [np.asarray(group, dtype=np.int64) for group in groups]
    top = int(np.percentile(arrays[0], 99)) + 1 if len(arrays[0]) else 1
    step = max(1, -(-top // bins))
    edges = np.arange(0, step * -(-top // step) + 1, step)
    return {
        "edges": edges.tolist(),
        "beyond": int(max(array.max(initial=0) for array in arrays)),
        "groups": [
            {
                "count": len(array),
                "median": float(np.median(array)) if len(array) else None,
                "mean": figures([array.mean()])[0] if len(array) else None,
                "share": figures(
                    np.histogram(np.minimum(array, edges[-1] - 1), edges)[0] / max(1, len(array))
                ),
            }
            for array in arrays
        ],
    }


def figures(values: ArrayLike | Iterable[float], digits: int = 4) -> list[float]:
    """Round numbers to ``digits`` significant digits, to keep the page small."""
    return [float(f"{value:.{digits}g}") for value in np.asarray(values, dtype=np.float64)]
