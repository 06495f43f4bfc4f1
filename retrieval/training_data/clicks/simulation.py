"""Users who click as a click model says: logs whose truth is known, for tests and studies."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from sluice.encoders.foundation.errors import ConfigError

Chance = Callable[[str, str], float]  # of a query and a document


def simulated_log(
    lists: Mapping[str, Sequence[str]],
    relevance: Chance,
    *,
    pages: int,
    model: Literal["pbm", "cascade", "dbn"] = "pbm",
    examination: Sequence[float] = (),
    satisfaction: Chance | None = None,
    shuffle: float = 1.0,
    seed: int = 13,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``pages`` pages of results for each query, clicked as the model says.

    ``lists`` are the documents that a page of each query shows, best first; on each page they are
    put in order of their place plus a normal deviate of ``shuffle``, so that documents change
    places. With ``pbm`` position k is looked at with ``examination[k - 1]``, and a document clicked
    there with ``relevance(query, document)``. In ``cascade`` users look from the top down and leave
    after their first click, in ``dbn`` after one that satisfies, with ``satisfaction``.
    """
    if model == "pbm" and len(examination) < max(map(len, lists.values()), default=0):
        raise ConfigError(
            f"examination: {len(examination)} positions, fewer than a page has; give one for each"
        )
    draw = random.Random(f"clicks {seed}")
    session = 0
    for query, documents in lists.items():
        for _ in range(pages):
            session += 1
            places = {name: draw.gauss(place, shuffle) for place, name in enumerate(documents)}
            gone = False
            for position, name in enumerate(sorted(places, key=lambda each: places[each]), 1):
                looks = draw.random() < examination[position - 1] if model == "pbm" else not gone
                clicked = looks and draw.random() < relevance(query, name)
                if clicked and model != "pbm":
                    satisfied = 1.0 if satisfaction is None else satisfaction(query, name)
                    gone = model == "cascade" or draw.random() < satisfied
                yield {
                    "session": str(session), "query_id": query, "doc_id": name,
                    "position": position, "clicked": int(clicked),
                }  # fmt: skip
