"""What a service does beside searching, each in a room that nothing else of the service imports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Part(NamedTuple):
    """A room, and in it what opens the part, its end points, and the files of its page."""

    room: str
    opener: str
    end_points: str
    pages: str


TABLE: Mapping[str, Part] = {
    "judging": Part(
        "sluice.retrieval.serving.judging",
        "sluice.retrieval.serving.judging.judging:open_judging",
        "sluice.retrieval.serving.judging.endpoints:END_POINTS",
        "sluice.retrieval.serving.judging.endpoints:PAGES",
    ),
}
