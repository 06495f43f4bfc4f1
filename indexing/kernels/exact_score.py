"""The exact score of one query and one document, compiled; its order of summing is fixed."""

# mypy: disable-error-code="assignment, arg-type, call-overload, operator, return-value"
# numba types these functions; numpy's scalars are not Python's numbers to mypy.

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sluice.indexing.hits import LARGEST_SCORE
from sluice.indexing.kernels.float64_sum import STEP, whole_sum

INNER, COSINE, DISTANCE = 0, 1, 2  # the metrics ip, cosine and l2 by number
_LARGEST = float(LARGEST_SCORE)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def exact_score(
    kind: int,
    queries: NDArray[np.float64],
    query: int,
    documents: Any,
    document: int,
    query_norm: float,
    norm: float,
) -> Any:
    """Return one score, float32: of ``queries[query]`` and ``documents[document]``."""
    width = documents.shape[1]
    total = whole_sum(kind == DISTANCE, queries, query, documents, document)
    for i in range(width - width % STEP, width):
        value = np.float64(documents[document, i])
        if kind == DISTANCE:
            gap = value - queries[query, i]
            total += gap * gap
        else:
            total += value * queries[query, i]
    if kind == DISTANCE:
        total = -total
    elif kind == COSINE:
        length = query_norm * norm
        total = total / length if length > 0 else 0.0
    return np.float32(min(max(total, -_LARGEST), _LARGEST))


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def score_documents(
    kind: int,
    queries: NDArray[np.float64],
    documents: Any,
    query_norm: float,
    norms: NDArray[np.float64],
    scores: NDArray[np.float32],
) -> None:
    """Write the score of one query ``[1, width]`` with each document."""
    for place in range(len(documents)):
        scores[place] = exact_score(kind, queries, 0, documents, place, query_norm, norms[place])
