"""What an inverted index reports: its counts, the plan of a query, the parts of a score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.indexing.inverted.search.record import (
    AUTO,
    BLOCKS,
    BLOCKS_COST,
    ENGINE,
    PLANNED,
    RESCORED,
    SCORED,
    TERMS,
    TERMS_COST,
)


class Contribution(NamedTuple):
    """What one term adds to a score: ``contribution`` is ``query_weight`` times ``impact``."""

    term: int
    query_weight: float
    impact: float
    contribution: float


@dataclass(frozen=True, slots=True)
class InvertedStatistics:
    """Counts of an inverted index, deleted documents included until ``compact``."""

    documents: int
    terms: int  # width of the vocabulary
    used_terms: int  # terms that some document has
    postings: int
    mean_terms: float  # per document: the L0 of documents
    longest: int  # postings of the most frequent term
    segments: int


class Plan(NamedTuple):
    """One query's plan; costs are the planner's own estimates in nanoseconds."""

    engine: str  # what searched: "blocks", "terms", or both over several segments
    planned: str  # what it began with
    terms_cost: int
    blocks_cost: int
    scored_blocks: int
    blocks: int  # of all segments
    rescored_documents: int  # scored from the impacts after the bounds left them over
    reason: str


def plan_of(work: NDArray[np.int64], engine: int, blocks: int) -> Plan:
    """Return the plan in a line of the kernel's record; ``engine`` is the requested one."""
    names = {0: "none", BLOCKS: "blocks", TERMS: "terms", BLOCKS | TERMS: "blocks and terms"}
    by_term, by_block = int(work[TERMS_COST]), int(work[BLOCKS_COST])
    chosen, planned = names[int(work[ENGINE])], names[int(work[PLANNED])]
    if chosen == "none":
        reason = "no document has a term of the query"
    elif engine != AUTO:
        met = int(work[ENGINE]) == engine
        reason = f"{names[engine]} was requested" if met else "the index has no blocks"
    elif planned == "blocks" and chosen != "blocks":
        reason = "began by block; too many blocks could still reach the k-th score"
    else:
        reason = f"expected {by_block / 1e6:.3f} ms by block, {by_term / 1e6:.3f} ms by term"
    scored, rescored = int(work[SCORED]), int(work[RESCORED])
    return Plan(chosen, planned, by_term, by_block, scored, blocks, rescored, reason)
