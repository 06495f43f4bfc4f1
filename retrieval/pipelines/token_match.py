"""Which tokens met: what each token of a query adds to a MaxSim score, and by which other token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class TokenMatch(NamedTuple):
    """One token of a query, and the document's token that is most similar to it.

    ``similarity`` is what the pair adds to the score: the score is the sum over the query's tokens.
    ``query_place`` and ``document_place`` count from 0. Tokens of an encoder that does not name
    them are called ``[0]``, ``[1]`` ...
    """

    query_token: str
    document_token: str
    similarity: float
    query_place: int
    document_place: int


def token_matches(
    query: NDArray[np.float32],
    document: NDArray[np.float32],
    query_names: Sequence[str] | None,
    document_names: Sequence[str] | None,
) -> list[TokenMatch]:
    """Return each query token's best match, in the query's order; of equal ones the first.

    ``query`` is ``[query tokens, dim]``, ``document`` ``[tokens, dim]``. Names that are missing, or
    are not as many as the vectors, become numbers. A document without tokens has no matches.
    (Khattab and Zaharia, 2020, ColBERT, eq. 3.)
    """
    if not len(query) or not len(document):
        return []
    similarities = query.astype(np.float64) @ document.astype(np.float64).T
    best = similarities.argmax(axis=1)
    asked, answering = _names(query_names, len(query)), _names(document_names, len(document))
    return [
        TokenMatch(asked[i], answering[j], float(similarities[i, j]), i, j)
        for i, j in enumerate(best.tolist())
    ]


def _names(names: Sequence[str] | None, count: int) -> Sequence[str]:
    if names is None or len(names) != count:
        return [f"[{place}]" for place in range(count)]
    return names
