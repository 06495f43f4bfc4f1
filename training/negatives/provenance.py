"""The origin and fate of every candidate in mining, as columns."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

REASONS = {
    "kept": "negatives",
    "positive": "known positives",
    "rank": "outside the rank window",
    "ratio": "too near the positive's score (max_positive_ratio)",
    "margin": "too near the positive's score (margin)",
    "adaptive_margin": "too near the positive's score (adaptive_margin)",
    "max_score": "score not below max_score",
    "min_score": "score below min_score",
    "empty_text": "without any text",
    "positive_text": "same text as a positive",
    "duplicate_text": "same text as an earlier candidate",
    "judge": "the judge's score too near the positive's (judge_margin)",
    "unjudged": "below judge_depth, or without a judge's score",
    "surplus": "not needed: enough negatives were found before",
}
CODES = {reason: code for code, reason in enumerate(REASONS)}


class Provenance(NamedTuple):
    """Where one candidate stood and what became of it: ``kept``, or why it was dropped.

    ``rank`` is its place in the list of ``source``, from 0. A positive that the list lacks has rank
    -1, and NaN for a score if none is known. ``judge`` is NaN where nothing was judged.
    """

    query: str
    document: str
    rank: int
    score: float
    reason: str
    source: str = ""
    positive_score: float = float("nan")
    judge: float = float("nan")


@dataclass(frozen=True, slots=True, eq=False)
class MinedRows(Sequence[Provenance]):
    """All candidates, query after query and list after list: 26 bytes a row beside the ids.

    Rows of query i are ``starts[i]:starts[i + 1]``. ``document`` counts in ``documents``,
    ``source`` in ``sources``, ``reason`` in ``REASONS``. ``positive`` ``[queries, sources]`` is the
    positive's score that the limits of a query's list were set by, NaN for none.
    """

    queries: Sequence[str]
    starts: NDArray[np.int64]  # [queries + 1]
    documents: Sequence[str]
    sources: Sequence[str]
    document: NDArray[np.int32]  # [rows], as are those below
    source: NDArray[np.int8]
    rank: NDArray[np.int32]
    score: NDArray[np.float64]
    reason: NDArray[np.int8]
    judge: NDArray[np.float64]
    positive: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.document)

    @overload
    def __getitem__(self, row: int) -> Provenance: ...
    @overload
    def __getitem__(self, row: slice) -> list[Provenance]: ...
    def __getitem__(self, row: int | slice) -> Provenance | list[Provenance]:
        if isinstance(row, slice):
            return [self[place] for place in range(*row.indices(len(self)))]
        place = range(len(self))[row]
        query = int(np.searchsorted(self.starts, place, side="right")) - 1
        source = int(self.source[place])
        return Provenance(
            self.queries[query],
            self.documents[int(self.document[place])],
            int(self.rank[place]),
            float(self.score[place]),
            reason_names()[int(self.reason[place])],
            self.sources[source],
            float(self.positive[query, source]),
            float(self.judge[place]),
        )

    def __iter__(self) -> Iterator[Provenance]:
        return (self[place] for place in range(len(self)))

    @property
    def query(self) -> NDArray[np.int32]:
        """The place of each row's query in ``queries``."""
        lengths = np.diff(self.starts)
        return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)

    def scores_of(self, query: int) -> dict[str, float]:
        """Return the score of each document of the query at that place: the judge's if it has one.

        Otherwise its list's; nothing where there are several lists, whose scores do not compare.
        """
        part = slice(int(self.starts[query]), int(self.starts[query + 1]))
        scores = self.judge[part]
        if np.isnan(scores).all():
            if len(self.sources) > 1:
                return {}
            scores = self.score[part]
        names = [self.documents[code] for code in self.document[part].tolist()]
        pairs = zip(names, scores.tolist(), strict=True)
        return {name: score for name, score in pairs if not math.isnan(score)}


def reason_names() -> list[str]:
    """Return the reasons in the order of their codes."""
    return list(REASONS)


@dataclass(slots=True)
class RowsWriter:
    """Collects rows a query at a time into columns that grow."""

    sources: Sequence[str]
    _queries: list[str] = field(default_factory=list)
    _starts: array[int] = field(default_factory=lambda: array("q", [0]))
    _codes: dict[str, int] = field(default_factory=dict)
    _document: array[int] = field(default_factory=lambda: array("i"))
    _source: array[int] = field(default_factory=lambda: array("b"))
    _rank: array[int] = field(default_factory=lambda: array("i"))
    _score: array[float] = field(default_factory=lambda: array("d"))
    _reason: array[int] = field(default_factory=lambda: array("b"))
    _judge: array[float] = field(default_factory=lambda: array("d"))
    _positive: array[float] = field(default_factory=lambda: array("d"))

    def add(
        self,
        source: int,
        documents: Iterable[str],
        ranks: NDArray[np.int32],
        scores: NDArray[np.float64],
        reasons: NDArray[np.int8],
        judged: NDArray[np.float64],
    ) -> None:
        """Add the rows of one list of the query under way."""
        codes = self._codes
        self._document.extend([codes.setdefault(doc, len(codes)) for doc in documents])
        self._source.frombytes(np.full(len(ranks), source, np.int8).tobytes())
        self._rank.frombytes(ranks.tobytes())
        self._score.frombytes(scores.tobytes())
        self._reason.frombytes(reasons.tobytes())
        self._judge.frombytes(judged.tobytes())

    def end_query(self, query: str, positive: Iterable[float]) -> None:
        """Close the query under way; ``positive`` is what its limits were set by, by list."""
        self._queries.append(query)
        self._positive.extend(positive)
        self._starts.append(len(self._document))

    def rows(self) -> MinedRows:
        """Return the rows; nothing is copied."""
        return MinedRows(
            queries=self._queries,
            starts=_numbers(self._starts, np.int64),
            documents=list(self._codes),
            sources=tuple(self.sources),
            document=_numbers(self._document, np.int32),
            source=_numbers(self._source, np.int8),
            rank=_numbers(self._rank, np.int32),
            score=_numbers(self._score, np.float64),
            reason=_numbers(self._reason, np.int8),
            judge=_numbers(self._judge, np.float64),
            positive=_numbers(self._positive, np.float64).reshape(
                len(self._queries), len(self.sources)
            ),
        )


def _numbers(values: array[Any], kind: type[np.generic]) -> NDArray[Any]:
    return np.frombuffer(values, kind) if len(values) else np.empty(0, kind)
