"""The report of mining, what was kept or dropped and why, and where negatives are from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import replaced_file
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.numbers import plural
from sluice.training.negatives.provenance import (
    CODES,
    REASONS,
    MinedRows,
    Provenance,
    RowsWriter,
    reason_names,
)

if TYPE_CHECKING:
    from sluice.training.protocol import Example


BINS = 10
SHOWN = 3  # reasons for dropping candidates that a summary names


@dataclass(frozen=True, slots=True)
class Histogram:
    """``counts[i]`` numbers in ``edges[i] <= x < edges[i + 1]``; the last edge is infinite."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def count(cls, values: NDArray[Any], edges: Sequence[float]) -> Histogram:
        """Count values between edges; those outside the edges are counted at the ends."""
        inner = np.asarray(edges[1:-1], np.float64)
        places = np.searchsorted(inner, values, side="right")
        counts = np.bincount(places, minlength=len(edges) - 1)
        return cls(tuple(float(edge) for edge in edges), tuple(counts.tolist()))

    @classmethod
    def of_counts(cls, values: NDArray[np.integer]) -> Histogram:
        """Count whole numbers from 0 in ten bins at most, each as wide as the others."""
        top = int(values.max(initial=0)) + 1
        width = -(-top // BINS)
        return cls.count(values, list(range(0, top + width, width)))

    def median(self, offset: int = 0) -> str:
        """Return the bin of the median, such as ``0-9``, shifted; empty if nothing was counted."""
        total, below = sum(self.counts), 0
        for low, high, count in zip(self.edges, self.edges[1:], self.counts, strict=False):
            below += count
            if count and 2 * below >= total:
                return _spelled(low + offset, high + offset, self._integers)
        return ""

    @property
    def _integers(self) -> bool:
        return all(float(edge).is_integer() for edge in self.edges)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {"edges": list(self.edges), "counts": list(self.counts)}

    def __str__(self) -> str:
        """The bins that are not empty, such as ``0-9: 312, 10-19: 40``."""
        bins = zip(self.edges, self.edges[1:], self.counts, strict=False)
        spelled = ((_spelled(low, high, self._integers), n) for low, high, n in bins if n)
        return ", ".join(f"{name}: {n:,}" for name, n in spelled)


def _spelled(low: float, high: float, integers: bool) -> str:
    if not integers:
        return f"{low:.2f}-{high:.2f}"
    return f"{low:.0f}" if high - low == 1 else f"{low:.0f}-{high - 1:.0f}"


__all__ = ["REASONS", "MinedNegatives", "MinedRows", "MiningReport", "Provenance"]

ANOTHER = ", set it by the mean or highest of several positives (positives)"
REMEDIES = {  # for a shortage, by what dropped most
    "rank": "widen range_min and range_max",
    "ratio": f"raise max_positive_ratio{ANOTHER}",
    "margin": f"lower margin{ANOTHER}",
    "adaptive_margin": f"lower adaptive_margin{ANOTHER}",
    "max_score": "raise max_score",
    "min_score": "lower min_score",
    "judge": "lower judge_margin",
    "unjudged": "raise judge_depth, or give a judge that knows these pairs",
}

EMPTY = Histogram((0.0, 1.0), (0,))


@dataclass(frozen=True, slots=True)
class MiningReport:
    """Counts over all queries; ``short`` maps a query to how many negatives are missing.

    ``positive_share`` is the share of kept negatives that are known positives: 0, or mining failed.
    Of the kept, ``ranks`` counts the best rank in any list (known positives taken out),
    ``ratios`` ``1 + (s - s+) / |s+|``, which is s / s+ for scores above 0, in the list where it is
    highest, and ``per_query`` how many queries got so many. ``found_by`` counts them by list.
    """

    queries: int
    candidates: int
    kept: int
    dropped: Mapping[str, int]
    short: Mapping[str, int]
    queries_without_hits: int
    unscored_positives: int
    queries_without_positive_score: int
    positive_share: float
    per_query_asked: int = 0
    found_by: Mapping[str, int] = field(default_factory=dict)
    queries_without_judged_positive: int = 0
    inconsistent_pairs: int = 0
    ranks: Histogram = EMPTY
    ratios: Histogram = EMPTY
    per_query: Histogram = EMPTY

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return asdict(self)

    @property
    def shortage(self) -> str:
        """Say how many negatives are missing, and the remedy; empty if none is."""
        if not self.short:
            return ""
        missing, total = sum(self.short.values()), self.queries * self.per_query_asked
        few = (
            f"fewer than {self.per_query_asked} negatives"
            if self.per_query_asked > 1
            else "no negatives"
        )
        text = (
            f"{len(self.short):,} of {self.queries:,} queries have {few} "
            f"({missing:,} of {total:,} are missing)"
        )
        drops = {reason: n for reason, n in self.dropped.items() if reason in REMEDIES and n}
        if not drops:
            return f"{text}; search deeper (depth), or ask for fewer (per_query)"
        most = max(drops, key=lambda reason: drops[reason])
        return (
            f"{text}; {drops[most]:,} candidates were dropped: {REASONS[most]}: "
            f"{REMEDIES[most]}, search deeper (depth), or ask for fewer (per_query)"
        )

    def __str__(self) -> str:
        each = f" ({self.kept / self.queries:.1f} each)" if self.queries else ""
        lines = [
            f"{self.kept:,} negatives for {plural(self.queries, 'query')}{each}, "
            f"from {self.candidates:,} candidates"
        ]
        if len(self.found_by) > 1:
            counts = ", ".join(f"{name} {count:,}" for name, count in self.found_by.items())
            lines.append(f"  found by: {counts}")
        drops = sorted(self.dropped.items(), key=lambda item: -item[1])
        shown = [f"{count:,} {REASONS.get(reason, reason)}" for reason, count in drops[:SHOWN]]
        others = sum(count for _, count in drops[SHOWN:])
        if shown:
            more = [f"{others:,} for other reasons"] if others else []
            lines.append(f"  dropped: {'; '.join([*shown, *more])}")
        if self.kept and any(self.ranks.counts):
            ratio = self.ratios.median()
            scored = f", at {ratio} of the positive's score" if any(self.ratios.counts) else ""
            lines.append(f"  typical: rank {self.ranks.median(1)}{scored}")
        if self.short:
            missing, few = sum(self.short.values()), plural(len(self.short), "query")
            lines.append(f"  too few: {few}, {missing:,} negatives missing in all")
        odd = [f"{count:,} {text}" for count, text in self._oddities() if count]
        if self.positive_share:
            odd.append(f"{self.positive_share:.2%} of the negatives are known positives")
        if odd:
            lines.append(f"  note: {'; '.join(odd)}")
        return "\n".join(lines)

    def _oddities(self) -> Iterator[tuple[int, str]]:
        yield self.queries_without_hits, "queries had no candidates"
        yield self.unscored_positives, "positives have no score in the lists"
        yield (
            self.queries_without_positive_score,
            "queries have no positive with a score: no ratio or margin limit for them",
        )
        yield (
            self.queries_without_judged_positive,
            "queries have no judged positive: no limit by the judge for them",
        )
        yield self.inconsistent_pairs, "training pairs are dropped: positive too low (consistency)"


@dataclass(frozen=True, slots=True)
class MinedNegatives:
    """Negatives by query, best first; a row for every candidate; and the report.

    ``inconsistent`` has the positives, by query, that a ranking-consistency filter leaves out of
    training. They remain known positives, never negatives.
    """

    negatives: Mapping[str, tuple[str, ...]]
    rows: Sequence[Provenance]
    report: MiningReport
    inconsistent: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def table(self) -> MinedRows:
        """The rows as columns."""
        return self.rows if isinstance(self.rows, MinedRows) else RowsWriter(("",)).rows()

    def consistent(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Yield the examples without the positives that the ranking-consistency filter drops.

        One that has no other positive is left out.
        """
        for example in examples:
            dropped = self.inconsistent.get(example.query.id, frozenset())
            labelled = zip(example.documents, example.labels, strict=True)
            places = [p for p, (doc, y) in enumerate(labelled) if y <= 0 or doc.id not in dropped]
            if len(places) == len(example.documents):
                yield example
            elif any(example.labels[place] > 0 for place in places):
                yield _narrowed(example, places)


def _narrowed(example: Example, places: Sequence[int]) -> Example:
    """Return an example with some of its documents, and their labels and scores."""
    return replace(
        example,
        documents=tuple(example.documents[place] for place in places),
        labels=tuple(example.labels[place] for place in places),
        scores=tuple(example.scores[place] for place in places if example.scores),
        answered=tuple(example.answered[place] for place in places if example.answered),
    )


ROWS = 1 << 18  # rows written at a time
COLUMNS = ("query", "document", "source", "rank", "score", "positive_score", "judge", "reason")
TEXT = ("query", "document", "source", "reason")


def write_provenance(path: Path, mined: MinedNegatives) -> int:
    """Write a row for every candidate, replacing ``path`` in one step; returns their number.

    Columns: ``query, document, source`` (the list that found it), ``rank`` (its place there, -1
    for a positive it lacks), ``score``, ``positive_score`` (s+ of the limits; null for none),
    ``judge`` (null where nothing was judged) and ``reason``: ``kept``, or why not.
    """
    import pyarrow as pa
    from pyarrow import parquet

    table = mined.table
    kinds = {**dict.fromkeys(TEXT, pa.string()), "rank": pa.int32()}
    schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in COLUMNS])
    ids = {
        "query": pa.array(table.queries, pa.string()),
        "document": pa.array(table.documents, pa.string()),
        "source": pa.array(table.sources, pa.string()),
        "reason": pa.array(reason_names(), pa.string()),
    }
    query = table.query
    with (
        replaced_file(path) as stream,
        parquet.ParquetWriter(stream, schema, compression="zstd") as writer,
    ):
        for start in range(0, len(table), ROWS):
            part = slice(start, start + ROWS)
            codes = {
                "query": query[part],
                "document": table.document[part],
                "source": table.source[part],
                "reason": table.reason[part],
            }
            positive = table.positive[query[part], table.source[part]]
            columns = {name: ids[name].take(pa.array(places)) for name, places in codes.items()}
            columns["rank"] = pa.array(table.rank[part])
            columns["score"] = _nullable(table.score[part])
            columns["positive_score"] = _nullable(positive)
            columns["judge"] = _nullable(table.judge[part])
            writer.write_table(pa.table([columns[name] for name in COLUMNS], schema=schema))
    return len(table)


def read_provenance(path: Path) -> MinedRows:
    """Read the rows that ``write_provenance`` wrote; the rows of a query are together.

    Raises ``DataError`` for a file that is not one of these.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        names = parquet.read_schema(path).names
        missing = [name for name in COLUMNS if name not in names]
        if missing:
            raise DataError(
                f"{path}: has no column {missing[0]!r}; expected {', '.join(COLUMNS)}: mine again"
            )
        table = parquet.read_table(path, columns=list(COLUMNS), read_dictionary=list(TEXT))
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: not readable as the provenance of negatives ({error}); mine again"
        ) from None
    table = table.combine_chunks().unify_dictionaries()
    query, queries = _coded(table["query"])
    document, documents = _coded(table["document"])
    source, sources = _coded(table["source"])
    reason, reasons = _coded(table["reason"])
    unknown = [name for name in reasons if name not in CODES]
    if unknown:
        raise DataError(f"{path}: reason {unknown[0]!r}; expected one of {', '.join(CODES)}")
    # Codes count from the first row on, so the rows of a query are together if they never fall.
    if (np.diff(query) < 0).any():
        raise DataError(f"{path}: rows of one query are not together; sort them by query")
    positive = np.full((len(queries), len(sources)), np.nan)
    positive[query, source] = _numbers(table["positive_score"])
    return MinedRows(
        queries=queries,
        starts=np.searchsorted(query, np.arange(len(queries) + 1)).astype(np.int64),
        documents=documents,
        sources=sources,
        document=document.astype(np.int32),
        source=source.astype(np.int8),
        rank=_numbers(table["rank"]).astype(np.int32),
        score=_numbers(table["score"]),
        reason=np.array([CODES[name] for name in reasons] or [0], np.int8)[reason],
        judge=_numbers(table["judge"]),
        positive=positive,
    )


def _nullable(values: NDArray[np.float64]) -> Any:
    import pyarrow as pa

    return pa.array(values, from_pandas=True)  # NaN becomes null


def _numbers(column: Any) -> NDArray[np.float64]:
    return np.asarray(column.to_numpy(), np.float64)


def _coded(column: Any) -> tuple[NDArray[np.int64], list[str]]:
    """Return a column's codes and what they stand for, in the order of first appearance."""
    chunk = column.combine_chunks()
    if not len(chunk):
        return np.empty(0, np.int64), []
    codes = chunk.indices.to_numpy().astype(np.int64)
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    names = chunk.dictionary.to_pylist()
    return rank[inverse], [str(names[codes[first[place]]]) for place in order.tolist()]
