"""Queries: what is asked of a pipeline, and how deep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

DEPTH = 1000  # how deep a retriever inside a pipeline searches when no cut says otherwise

Queries = Mapping[str, str]  # query id -> text


class SelfExcluding(dict[str, str]):
    """Queries whose own document is no hit: retrievers drop the hit whose id is the query's.

    They return as many documents all the same. For datasets whose queries stand in the corpus
    (``Dataset.identical_ids``).
    """


class WithCutoff(Protocol):
    """A measure, as far as depth goes: the rank it looks down to, None for all of a ranking."""

    @property
    def cutoff(self) -> int | None: ...  # noqa: D102


def depth_for(measures: Iterable[WithCutoff]) -> int:
    """Return how many documents a query needs: 1,000, or the deepest cut-off of a measure."""
    return max([DEPTH, *(measure.cutoff or 0 for measure in measures)])
