"""Reads frames of pandas and polars, Arrow tables and datasets of the ``datasets`` library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.numbers import plural
from sluice.retrieval.documents.readers.documents import Documents, size_of
from sluice.retrieval.documents.readers.fields import SAMPLE, Asked, Row, check_names, choose

BATCH = 1024  # rows converted at a time
INDEX = "index"  # what the index of a pandas frame is called, where it has no name


class Reader(NamedTuple):
    """What a frame is called, a function that streams its rows, and the column its index is."""

    kind: str
    rows: Callable[[], Iterator[tuple[str, Row]]]
    label: str | None = None


def documents_in_frame(source: Any, asked: Asked) -> Documents | None:
    """Return the documents of a frame, known by what it can do; None for anything else."""
    reader = _reader(source)
    return None if reader is None else _documents(source, reader, asked, reader.kind)


def documents_in_dataset(data: Any, asked: Asked, *, name: str) -> Documents:
    """Return the documents of a dataset of the ``datasets`` library, which messages call ``name``.

    Their fingerprint is the library's own.
    """
    reader = Reader("dataset", lambda: _numbered(_batched(data)), None)
    return _documents(data, reader, asked, name)


def rows_in_frame(source: Any, name: str) -> Iterator[Row] | None:
    """Return the rows of a frame, without a pandas index; None for anything else.

    Raises ``DataError``, with ``name``, where two columns have one name.
    """
    reader = _reader(source)
    if reader is None:
        return None
    check_names(name, _names(source))
    rows = reader.rows() if reader.label is None else _pandas(source, None)
    return (row for _, row in rows)


def _documents(source: Any, reader: Reader, asked: Asked, name: str) -> Documents:
    size = size_of(source)
    check_names(name, _names(source))
    sample = [row for _, row in islice(reader.rows(), SAMPLE)]
    names = _names(source) or list(dict.fromkeys(key for row in sample for key in row))
    if reader.label is not None and reader.label not in names:
        names = [reader.label, *names]
    fields = choose(name, names, sample, asked, index=reader.label)
    rows_in_all = "" if size is None else f" of {plural(size, 'row')}"
    contents = getattr(source, "_fingerprint", None)
    return Documents(
        name,
        lambda: fields.documents(name, reader.rows()),
        described=f"{name}{rows_in_all}: {fields.describe()}",
        size=size,
        contents=None if not isinstance(contents, str) else lambda: fingerprint_of(contents, asked),
        guessed=True,
        numbered=fields.id is None,
    )


def _reader(source: Any) -> Reader | None:
    if hasattr(source, "itertuples") and hasattr(source, "index"):
        index = _index_of(source)
        return Reader("pandas frame", lambda: _pandas(source, index), index)
    if hasattr(source, "collect_schema") and hasattr(source, "collect"):
        source = source.collect()
    if hasattr(source, "iter_rows") and hasattr(source, "columns"):
        return Reader("polars frame", lambda: _numbered(source.iter_rows(named=True)))
    if hasattr(source, "to_batches") and hasattr(source, "schema"):
        return Reader("Arrow table", lambda: _numbered(_arrow(source)))
    if hasattr(source, "column_names") and hasattr(source, "iter"):
        return Reader("dataset", lambda: _numbered(_batched(source)))
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
