"""Which tokens met: what each token of a query adds to a MaxSim score, and by which other token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
    known = document_names if document_names and len(document_names) == len(document) else None
    return named_matches(best, similarities.max(axis=1), query_names, known)


def named_matches(
    places: NDArray[np.int64],
    products: NDArray[Any],
    query_names: Sequence[str] | None,
    document_names: Sequence[str] | None,
) -> list[TokenMatch]:
    """Return the matches of a query's tokens with those at ``places`` of a document, -1 for none.

    ``products`` are the similarities, ``[query tokens]``.
    """
    asked = query_names if query_names and len(query_names) == len(places) else None
    return [
        TokenMatch(
            f"[{i}]" if asked is None else asked[i],
            f"[{j}]" if document_names is None else document_names[j],
            product, i, j,
        )
        for i, (j, product) in enumerate(zip(places.tolist(), products.tolist(), strict=True))
        if j >= 0
    ]  # fmt: skip
