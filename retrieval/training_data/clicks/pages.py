"""What users looked at on their pages of results, who go down from the top."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sluice.retrieval.training_data.clicks.log import Counts, Shown

STEPS: Final = 5_000  # of expectation maximisation, at most
SETTLED: Final = 1e-7  # the largest change of a probability in the last step

Below: TypeAlias = tuple[tuple[int, int], ...]  # pairs and positions


class Looks(NamedTuple):
    """Pages of results by what a user certainly looked at, and may have looked at after it.

    ``seen`` counts by pair, ``by_position`` by position, what stands above the deciding click, that
    click, and pages without any. Pages with the same deciding click and the same documents below
    are one group: ``last`` ``[G]`` is the pair clicked and ``often`` ``[G]`` their number; below it
    stand, group by group, the pairs ``below`` ``[C]`` at ``below_positions``.
    """

    seen: Counter[int]
    by_position: Counter[int]
    last: NDArray[np.int64]
    often: NDArray[np.float64]
    below: NDArray[np.int64]
    below_positions: NDArray[np.int64]
    groups: NDArray[np.int64]

    def seen_by_pair(self, pairs: int) -> NDArray[np.float64]:
        """Return ``seen`` as an array ``[pairs]``."""
        return np.array([self.seen[pair] for pair in range(pairs)], np.float64)

    def stayed(self, clicks: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
        """Return by group the chance that a user continued after the click, and the steps taken.

        By expectation maximisation over attraction a and satisfaction s: after the last click on u
        a user continued with ``(1 - s_u) A / (s_u + (1 - s_u) A)``, A the product of ``1 - a_v``
        over the documents v below. ``clicks`` ``[P]`` are those of each pair.
        """
        pairs = len(clicks)
        seen, some = self.seen_by_pair(pairs), np.maximum(clicks, 1.0)
        attraction = clicks / np.maximum(seen, 1.0)
        stayed = np.zeros(len(self.last))
        step = 0
        while step < STEPS:
            step += 1
            credited = np.bincount(self.last, self.often * (1.0 - stayed), pairs)
            satisfied = (credited / some)[self.last]
            silent = np.log1p(-np.minimum(attraction, 1.0 - 1e-12))[self.below]
            ignored = np.exp(np.bincount(self.groups, silent, len(self.last)))
            going = (1.0 - satisfied) * ignored
            before, stayed = stayed, going / np.maximum(satisfied + going, 1e-300)
            looked = np.bincount(self.below, (self.often * stayed)[self.groups], pairs)
            attraction = clicks / np.maximum(seen + looked, 1.0)
            if not len(stayed) or np.abs(stayed - before).max() < SETTLED:
                break
        return stayed, step


def looks_of(sessions: Iterable[Sequence[Shown]], counts: Counts, *, first: bool) -> Looks:
    """Count what users looked at; the deciding click is the first of a page, or its last."""
    seen: Counter[int] = Counter()
    by_position: Counter[int] = Counter()
    groups: Counter[tuple[int, Below]] = Counter()
    for session in sessions:
        pairs = [counts.add(row) for row in session]
        clicked = [place for place, row in enumerate(session) if row.clicks]
        deciding = len(session) - 1 if not clicked else clicked[0] if first else clicked[-1]
        seen.update(pairs[: deciding + 1])
        by_position.update(row.position for row in session[: deciding + 1])
        if clicked:
            places = () if first else range(deciding + 1, len(session))
            below = tuple((pairs[place], session[place].position) for place in places)
            groups[pairs[deciding], below] += 1
    cells = [(number, *one) for number, (_, below) in enumerate(groups) for one in below]
    columns = np.array(cells, np.int64).reshape(-1, 3)
    return Looks(
        seen, by_position, np.array([last for last, _ in groups], np.int64),
        np.array(list(groups.values()), np.float64),
        below=columns[:, 1], below_positions=columns[:, 2], groups=columns[:, 0],
    )  # fmt: skip
