"""The protocol of judges, which score whether a document answers a query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError


class JudgedPair(NamedTuple):
    """A query and a document, each by id and text."""

    query_id: str
    query: str
    document_id: str
    document: str


class Judge(Protocol):
    """A cross-encoder, an ensemble, a run of scores, a table of labels: higher is more relevant.

    ``name`` is what reports call it. With ``needs_texts`` False the pairs' texts may be empty.
    """

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    @property
    def needs_texts(self) -> bool:
        """Whether it reads the texts; otherwise ids are enough."""
        ...

    def scores(self, pairs: Sequence[JudgedPair]) -> Sequence[float] | NDArray[np.floating]:
        """Return one number for each pair, NaN for a pair that it cannot judge."""
        ...


def judged(judge: Judge, pairs: Sequence[JudgedPair]) -> NDArray[np.float64]:
    """Return a judge's scores ``[n]``, checked: one for each pair, NaN where it has none.

    Raises ``DataError`` for another number of scores, or an infinite one.
    """
    scores = np.asarray(judge.scores(pairs) if pairs else [], np.float64)
    if scores.shape != (len(pairs),):
        raise DataError(
            f"judge {judge.name}: scores of shape {scores.shape} for {len(pairs)} pairs; expected "
            "one for each"
        )
    infinite = np.flatnonzero(np.isinf(scores))
    if len(infinite):
        pair = pairs[int(infinite[0])]
        raise DataError(
            f"judge {judge.name}: score {scores[infinite[0]]} for query {pair.query_id!r} and "
            f"document {pair.document_id!r}; expected finite numbers, or NaN for no judgement"
        )
    return scores
