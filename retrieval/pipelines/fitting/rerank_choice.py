"""Chooses depth and share of the earlier score by judged queries, so that few mislead little.

The share is the one under which the relevant documents are likeliest, not the one of the highest
measure: every candidate's score counts, where nDCG@10 changes only if two documents change places,
so chance has less to say. From 20 queries on this gained more than smoothed bagging of nDCG@10
(docs/decisions/019).
"""

from __future__ import annotations

import numpy as np

from sluice.retrieval.pipelines.fitting.rerank_search import (
    SHARES,
    SHARPNESSES,
    Array,
    RerankSearch,
    settings_up_to,
)
from sluice.retrieval.pipelines.fusion.choice import held_out

LEAST_GAIN = 0.5  # standard errors of the measure, beside one of the likelihood


class RerankChoice:
    """The settings to choose from, and what the queries say of each.

    ``settings`` are (depth, share), the first stage as it is first. ``rows`` ``[n, queries]`` hold
    the measure with each of them, then the likelihoods of ``RerankSearch.likelihoods``; ``choose``
    takes some of its columns.
    """

    def __init__(self, search: RerankSearch, depth: int, *, steps: bool = True) -> None:
        self.settings = settings_up_to(depth, steps=steps)
        self._values = np.array([search.values(*setting) for setting in self.settings])
        likely = search.likelihoods(depth)
        self.rows: Array = np.concatenate([self._values, likely.reshape(-1, search.queries)])

    @property
    def values(self) -> Array:
        """The measure ``[settings, queries]``."""
        return self._values

    def choose(self, rows: Array) -> int:
        """Return the place of the setting that the queries of ``rows`` support.

        The likeliest share at the largest depth, if it makes the relevant documents likelier than
        the first stage does by more than one standard error, and the measure higher by more than
        ``LEAST_GAIN``. A smaller depth is taken where its measure is higher than at the largest by
        more than one standard error. Else 0.
        """
        count = len(self.settings)
        values = rows[:count]
        likely = rows[count:].reshape(len(SHARES) + 1, len(SHARPNESSES), -1)
        means = np.round(likely.mean(axis=2), 9)
        share = int(means[:-1].max(axis=1).argmax())
        reranked, first = (likely[place, means[place].argmax()] for place in (share, -1))
        full = count - len(SHARES) + share
        gain = values[full] - values[0]
        if not (supported(reranked - first) and supported(gain, LEAST_GAIN)):
            return 0
        best = full
        for place in range(1 + share, full, len(SHARES)):
            better = values[place].mean() > values[best].mean()
            if better and supported(values[place] - values[full]):
                best = place
        return best

    def kept(self, rows: Array) -> tuple[int, Array | None]:
        """Return what ``choose`` takes, and the measure of each query by what the others choose.

        The place is 0 where the mean of that is not above the first stage's.
        """
        held = held_out(rows, self.choose)
        if held is None or held.mean() <= rows[0].mean():
            return 0, held
        return self.choose(rows), held


def supported(differences: Array, errors: float = 1.0) -> bool:
    """Return whether the mean difference is more than so many standard errors above 0."""
    count = len(differences)
    if count < 2:
        return False
    mean, error = differences.mean(), differences.std(ddof=1) / np.sqrt(count)
    return bool(mean > 0 and mean > errors * error)
