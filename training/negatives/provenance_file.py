"""Reads and writes the provenance of negatives as a parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import replaced_file
from sluice.encoders.foundation.errors import DataError
from sluice.training.negatives.provenance import CODES, MinedRows, reason_names
from sluice.training.negatives.report import MinedNegatives

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
