"""Reads frames of pandas and polars, Arrow tables and datasets of the ``datasets`` library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.documents.readers.documents import Documents
from sluice.retrieval.documents.readers.fields import SAMPLE, Asked, Row, choose

BATCH = 1024  # rows converted at a time
INDEX = "index"  # what the index of a pandas frame is called, where it has no name


def documents_in_frame(source: Any, asked: Asked) -> Documents | None:
    """Return the documents of a frame, known by what it can do; None for anything else."""
    reader = _reader(source)
    if reader is None:
        return None
    kind, rows, index = reader
    size = _size(source)
    sample = [row for _, row in islice(rows(), SAMPLE)]
    names = _names(source) or list(dict.fromkeys(name for row in sample for name in row))
    if index is not None and index not in names:
        names = [index, *names]
    fields = choose(kind, names, sample, asked, index=index)
    rows_in_all = "" if size is None else f" of {plural(size, 'row')}"
    described = f"{kind}{rows_in_all}: {fields.describe()}"
    contents = getattr(source, "_fingerprint", None)
    return Documents(
        kind,
        lambda: fields.documents(kind, rows()),
        described=described,
        size=size,
        contents=None if not isinstance(contents, str) else lambda: f"{contents} {asked}",
        guessed=True,
    )


Rows = Callable[[], Iterator[tuple[str, Row]]]


def _reader(source: Any) -> tuple[str, Rows, str | None] | None:
    """Return what a frame is called, a function that streams its rows, and its index as a name."""
    if hasattr(source, "itertuples") and hasattr(source, "index"):
        index = _index_of(source)
        return "pandas frame", lambda: _pandas(source, index), index
    if hasattr(source, "collect_schema") and hasattr(source, "collect"):
        source = source.collect()
    if hasattr(source, "iter_rows") and hasattr(source, "columns"):
        return "polars frame", lambda: _numbered(source.iter_rows(named=True)), None
    if hasattr(source, "to_batches") and hasattr(source, "schema"):
        return "Arrow table", lambda: _numbered(_arrow(source)), None
    if hasattr(source, "column_names") and hasattr(source, "iter"):
        return "dataset", lambda: _numbered(_batched(source)), None
    return None


def _size(source: Any) -> int | None:
    try:
        return len(source)
    except TypeError:  # a dataset that is streamed, a lazy frame
        return None


def _names(source: Any) -> list[str]:
    if hasattr(source, "collect_schema"):
        return list(source.collect_schema().names())
    columns = getattr(source, "column_names", None)
    if columns is None:
        columns = getattr(source, "columns", None)
    return [] if columns is None else [str(name) for name in columns]


def _index_of(frame: Any) -> str | None:
    """Return the name of a frame's index if it says more than the rows' numbers."""
    index = frame.index
    if type(index).__name__ in ("RangeIndex", "MultiIndex"):
        return None
    return str(index.name or INDEX)


def _pandas(frame: Any, index: str | None) -> Iterator[tuple[str, Row]]:
    names = [str(name) for name in frame.columns]
    for number, (label, values) in enumerate(
        zip(frame.index, frame.itertuples(index=False, name=None), strict=True)
    ):
        row = dict(zip(names, values, strict=True))
        if index is not None:
            row.setdefault(index, label)
        yield f"row {number}", row


def _numbered(rows: Iterator[Mapping[str, Any]]) -> Iterator[tuple[str, Row]]:
    for number, row in enumerate(rows):
        yield f"row {number}", row


def _arrow(table: Any) -> Iterator[Row]:
    for batch in table.to_batches(max_chunksize=BATCH):
        yield from batch.to_pylist()


def _batched(data: Any) -> Iterator[Row]:
    for batch in data.iter(batch_size=BATCH):
        names = list(batch)
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(names, values, strict=True))
