"""Variants of BM25: what a term's count is worth in a document, and its rarity in a query.

With norm = 1 - b + b * dl / avgdl, of N documents df with the term, and tf of at least 1:

    lucene   tf / (tf + k1 * norm)                        ln(1 + (N - df + 0.5) / (df + 0.5))
    plus     tf / (tf + k1 * norm) + 1 / (k1 + 1)         ln((N + 1) / df)
    l        (tf / norm + 0.5) / (tf / norm + 0.5 + k1)   ln((N + 1) / (df + 0.5))

Times k1 + 1, which changes no ranking, the last two are BM25+ with a delta of 1 and BM25L with one
of 0.5. A term that a document lacks adds nothing in any of them. (Lv and Zhai, 2011: Lower-Bounding
Term Frequency Normalization, CIKM; When Documents Are Very Long, BM25 Fails!, SIGIR.)
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

Variant: TypeAlias = Literal["lucene", "plus", "l"]
Weights: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.float64]]"

PLUS, SHIFT = 1.0, 0.5  # delta of BM25+ and of BM25L
LEAST = 2.0**-24  # what float32 can tell an impact from 1 by: a BM25 of k1 = 0 has impacts of 1


def impacts(variant: Variant, counts: Weights, norms: Weights, k1: float) -> Weights:
    """Return what terms weigh in documents of length factor ``norms``; all arrays ``[n]``."""
    if variant == "l":
        shifted = counts / norms + SHIFT
        return shifted / (shifted + k1)
    saturated: Weights = counts / (counts + k1 * norms)
    return saturated + PLUS / (k1 + 1.0) if variant == "plus" else saturated


def relative_counts(variant: Variant, weights: Weights, k1: float) -> Weights:
    """Return impacts as ``tf`` times one number a document (of a field, where there are fields).

    Exact but for the impacts' rounding to float32. Impacts of 1, as ``k1 = 0`` makes, count alike.
    """
    if variant == "plus":
        weights = np.maximum(weights - PLUS / (k1 + 1.0), 0.0)
    odds: Weights = weights / np.maximum(1.0 - weights, LEAST)
    return np.maximum(odds * k1 - SHIFT, 0.0) if variant == "l" and k1 else odds


def idf(variant: Variant, documents: Weights, frequencies: Weights) -> Weights:
    """Return terms' weights in a query; ``documents`` and ``frequencies`` (at least 1) ``[n]``."""
    if variant == "lucene":
        return np.log1p((documents - frequencies + 0.5) / (frequencies + 0.5))
    return np.log((documents + 1.0) / (frequencies + (0.5 if variant == "l" else 0.0)))
