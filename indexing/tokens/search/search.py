"""Exact MaxSim search: bounds for every document, exact scores for those that may be hits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing.hits import MISSING_SCORE, Hits, Mask, Rows, best_first
from sluice.indexing.kernels.calls import in_parallel, in_pieces
from sluice.indexing.tokens.search.scan import bound_scores, score_exactly
from sluice.indexing.tokens.search.tile import BYTES, LANES, Queries, query_panels
from sluice.indexing.tokens.storage.rows import TokenRows
from sluice.indexing.tokens.storage.segment import RESIDUAL, Segment

TOGETHER = 64  # queries that go over a document while it is in the cache
MOST_BOUNDS = 1 << 25  # numbers in the tables of bounds
PIECES = 8  # of the documents, for each thread
FEWEST = 16  # documents that are worth a thread
FIRST_SCORED = 32  # candidates scored before the first look at what they leave over

Scores = NDArray[np.float32]
_ALL: Rows = np.empty(0, np.int64)


class Bounds(NamedTuple):
    """The least and the largest possible score of documents, a line for each query."""

    lows: Scores
    highs: Scores


class Part(NamedTuple):
    """Documents of one segment, and their columns in a table of all that are meant."""

    segment: Segment
    places: Rows  # empty: all of the segment
    documents: int
    column: int


class TokenSearch:
    """A batch of queries against the documents of ``rows``."""

    def __init__(self, rows: TokenRows, queries: TokenVectors) -> None:
        self._rows = rows
        self._queries: Queries = query_panels(queries)
        self._count = len(queries)
        self._lanes = int(np.diff(self._queries.panels).max(initial=0)) * LANES

    def hits(self, k: int, allowed: Mask | None) -> Hits:
        """Return the best allowed documents of each query; ``k`` is at least 1."""
        hits = Hits.missing(self._count, k)
        rows = None if allowed is None else np.flatnonzero(allowed)
        parts = list(self._parts(rows))
        total = sum(part.documents for part in parts)
        if not total:
            return hits
        step = max(1, min(TOGETHER, MOST_BOUNDS // total))
        for first in range(0, self._count, step):
            last = min(first + step, self._count)
            bounds = self._bounds(parts, total, first, last)
            if last - first == 1:
                self._choose(first, rows, bounds, 0, hits, True)
                continue

            def task(begin: int, end: int, first: int = first, bounds: Bounds = bounds) -> None:
                for line in range(begin, end):
                    self._choose(first + line, rows, bounds, line, hits, False)

            in_pieces(task, last - first, PIECES)
        return hits

    def best_of(self, candidates: Rows, k: int) -> Hits:
        """Return the best of each query's own candidate rows ``[n, c]``; -1 is skipped."""
        hits = Hits.missing(self._count, k)

        def task(begin: int, end: int) -> None:
            for query in range(begin, end):
                rows = np.unique(candidates[query])
                rows = rows[rows >= 0]
                if len(rows):
                    bounds = self._bounds_of(query, rows)
                    self._choose(query, rows, bounds, 0, hits, False)

        in_pieces(task, self._count, PIECES)
        return hits

    def scores(self, query: int, rows: Rows, parallel: bool = True) -> Scores:
        """Return the exact scores of one query with any rows; -inf where either has no tokens."""
        scores = np.full(len(rows), MISSING_SCORE, np.float32)
        for segment, places, where in self._rows.places(rows):
            found = np.empty(len(places), np.float32)

            def task(
                first: int,
                last: int,
                segment: Segment = segment,
                places: Rows = places,
                found: Scores = found,
            ) -> None:
                chosen = places[first:last]
                longest = int((segment.bounds[chosen + 1] - segment.bounds[chosen]).max(initial=0))
                sums = np.empty((longest, self._lanes), np.float32)
                codes, scales, direct = self._room(segment, longest)
                score_exactly(
                    segment, chosen, self._queries, query, codes, scales, direct, sums, found, first
                )

            if parallel:
                in_parallel(task, len(places), FEWEST)
            else:
                task(0, len(places))
            scores[where] = found
        return scores

    def _parts(self, rows: Rows | None) -> Iterator[Part]:
        """Yield the documents that are meant, all or ``rows`` (ascending), by segment."""
        column, first_row = 0, 0
        for segment in self._rows.segments():
            count, places = len(segment.losses), _ALL
            if rows is not None:
                ends = np.searchsorted(rows, (first_row, first_row + count))
                places = rows[ends[0] : ends[1]] - first_row
                first_row += count
                count = len(places)
            if count:
                yield Part(segment, places, count, column)
            column += count

    def _bounds(self, parts: list[Part], total: int, first: int, last: int) -> Bounds:
        """Return the bounds of queries ``first`` to ``last`` on all threads."""
        bounds = Bounds(*np.empty((2, last - first, total), np.float32))
        for part in parts:

            def task(begin: int, end: int, part: Part = part) -> None:
                self._bound(part, begin, end, first, bounds)

            in_pieces(task, part.documents, PIECES)
        return bounds

    def _bounds_of(self, query: int, rows: Rows) -> Bounds:
        """Return the bounds of one query with some rows, on the caller's thread."""
        bounds = Bounds(*np.empty((2, 1, len(rows)), np.float32))
        for part in self._parts(rows):
            self._bound(part, 0, part.documents, query, bounds)
        return bounds

    def _bound(self, part: Part, begin: int, end: int, first_query: int, bounds: Bounds) -> None:
        segment, places = part.segment, part.places[begin:end]
        if len(places):
            longest = int((segment.bounds[places + 1] - segment.bounds[places]).max())
        else:
            longest = int(np.diff(segment.bounds[begin : end + 1]).max())
        codes, scales, direct = self._room(segment, longest)
        best = np.empty((len(bounds.lows), self._lanes), np.float32)
        bound_scores(
            segment,
            places,
            begin,
            end - begin,
            self._queries,
            first_query,
            codes,
            scales,
            direct,
            best,
            bounds.lows,
            bounds.highs,
            part.column + begin,
        )

    def _room(self, segment: Segment, tokens: int) -> tuple[Any, Any, bool]:
        """Return codes and scales that are multiplied: the segment's own, or room for them."""
        direct = BYTES and segment.kind < RESIDUAL
        if direct:
            return segment.codes, segment.scales, True
        wide = (segment.table if segment.kind >= RESIDUAL else segment.codes).shape[1]
        codes = np.empty((tokens, wide), np.uint8 if BYTES else np.float32)
        return codes, np.empty(tokens, np.float32), False

    def _choose(
        self,
        query: int,
        rows: Rows | None,
        bounds: Bounds,
        line: int,
        hits: Hits,
        parallel: bool,
    ) -> None:
        """Write the best documents of one query: no other can be among them.

        Candidates are those that reach the k-th least score; they are scored in the order of
        what they may reach, until the next one cannot reach the k-th of those scored.
        """
        lows, highs, k = bounds.lows[line], bounds.highs[line], hits.rows.shape[1]
        floor = np.partition(lows, len(lows) - k)[len(lows) - k] if len(lows) > k else -np.inf
        columns = np.flatnonzero((highs >= floor) & (highs > -np.inf))
        columns = columns[np.argsort(-highs[columns], kind="stable")]
        found, scores = _ALL, np.empty(0, np.float32)
        done, step, kth = 0, max(k, FIRST_SCORED), MISSING_SCORE
        while done < len(columns) and highs[columns[done]] >= kth:
            part = columns[done : done + step]
            part = part[highs[part] >= kth]
            chosen = part if rows is None else rows[part]
            found = np.concatenate([found, chosen])
            scores = np.concatenate([scores, self.scores(query, chosen, parallel)])
            found, scores = best_first(found, scores, k)
            if len(scores) == k:
                kth = scores[-1]
            done, step = done + step, 2 * step
        hits.rows[query, : len(found)], hits.scores[query, : len(found)] = found, scores
