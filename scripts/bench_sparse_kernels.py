"""Compiled loops of the sparse benchmark: the made-up documents, and exhaustive scoring."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

MOST_TRIES = 2000  # draws for one document, most of them of terms it has already
HEAVIEST, LIGHTEST = 3.6, 0.01  # weights


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def draw_documents(
    lengths: Any, home: Any, theme: Any, topic_terms: Any, topic_weights: Any, theme_terms: Any,
    theme_weights: Any, common: Any, common_weights: Any, seed: int,
) -> Any:  # fmt: skip
    """Return documents as starts, ascending terms and weights.

    A term comes from the document's topic (34 %), its theme (22 %), another topic (14 %: three
    times of four one nearby) or the common words; the front of each list is drawn most.
    """
    np.random.seed(seed)
    topics, topic_size = topic_terms.shape
    theme_size = theme_terms.shape[1]
    starts = np.zeros(len(lengths) + 1, np.int64)
    terms = np.empty(lengths.sum(), np.int32)
    weights = np.empty(lengths.sum(), np.float32)
    last_with = np.full(len(common), -1, np.int64)  # [terms] the last document that has the term
    end = 0
    for document in range(len(lengths)):
        topic = home[document]
        other = topic + np.random.randint(-12, 13)
        if other < 0 or other >= topics or np.random.random() < 0.25:
            other = np.random.randint(0, topics)
        begin = end
        for _ in range(MOST_TRIES):
            if end - begin == lengths[document]:
                break
            source, depth = np.random.random(), np.random.random()
            if source < 0.34:
                place = int(topic_size * depth**2.2)
                term, level = topic_terms[topic, place], topic_weights[topic, place]
            elif source < 0.56:
                place = int(theme_size * depth**2.0)
                term = theme_terms[theme[topic], place]
                level = theme_weights[theme[topic], place]
            elif source < 0.70:
                place = int(topic_size * depth**2.2)
                term, level = topic_terms[other, place], 0.8 * topic_weights[other, place]
            else:
                place = int(len(common) * depth**4.2)
                term, level = common[place], common_weights[place]
            if last_with[term] == document:
                continue
            last_with[term] = document
            noise = np.exp(0.8 * np.random.standard_normal())
            terms[end] = term
            weights[end] = min(max(np.log1p(level * noise), LIGHTEST), HEAVIEST)
            end += 1
        order = np.argsort(terms[begin:end])
        terms[begin:end] = terms[begin:end][order]
        weights[begin:end] = weights[begin:end][order]
        starts[document + 1] = end
    return starts, terms[:end].copy(), weights[:end].copy()


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def positive_scores(
    starts: Any, rows: Any, impacts: Any, terms: Any, weights: Any, documents: int
) -> Any:
    """Score every document, term after term, in float32; return rows above zero and scores."""
    scores = np.zeros(documents, np.float32)
    for place in range(len(terms)):
        weight = weights[place]
        begin, end = starts[terms[place]], starts[terms[place] + 1]
        for posting in range(begin, end):
            scores[rows[posting]] += weight * impacts[posting]
    found = np.flatnonzero(scores > 0)
    return found, scores[found]


@njit(cache=True)  # type: ignore[untyped-decorator]
def doubled(number: int) -> int:
    """Return twice the number: the least that numba must start up for."""
    return 2 * number
