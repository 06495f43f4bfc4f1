"""Streams the raw rows of training files: JSON lines, csv, tsv and parquet."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.documents.jsonl import open_bytes, read_lines, read_objects

Record = tuple[str, dict[str, Any]]  # file:line, and the fields by name

BATCH = 1024  # rows of a parquet file decoded together
FIELD = 1 << 30  # characters a csv field may have; Python's own limit of 131,072 is a long document
FIRST_NAMES = {"anchor", "query", "query_id", "query-id", "question", "qid", "sentence1"}


def form_of(path: Path) -> str:
    """Return ``jsonl``, ``csv``, ``tsv`` or ``parquet`` by the file's name, ``.gz`` or not."""
    names = {".jsonl": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv", ".txt": "tsv"}
    names[".parquet"] = "parquet"
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix not in names:
        raise DataError(
            f"{path}: a file of examples is .jsonl, .csv, .tsv or .parquet (the first three also "
            f"with .gz), not {suffix or 'without an ending'}; rename it"
        )
    return names[suffix]


def read_records(path: Path) -> Iterator[Record]:
    """Stream the rows of a file as fields by name.

    A tsv file without a header, such as MS MARCO's, has fields named ``"0"``, ``"1"``, ... Only
    csv has quoting. Raises ``DataError`` with file and line for text that is not UTF-8, broken
    JSON, and a row with too many or too few fields.
    """
    form = form_of(path)
    if form == "jsonl":
        for number, value in read_objects(path, '{"query": ..., "pos": [...], "neg": [...]}'):
            yield f"{path}:{number}", value
    elif form == "parquet":
        yield from _parquet(path)
    elif form == "tsv":
        yield from _named(path, ((n, line.split("\t")) for n, line in read_lines(path)))
    else:
        yield from _named(path, _csv(path))


def _named(path: Path, rows: Iterator[tuple[int, list[str]]]) -> Iterator[Record]:
    names: list[str] | None = None
    for number, fields in rows:
        if names is None:
            first = [field.strip().lower() for field in fields]
            if first[0] in FIRST_NAMES:
                names = [field.strip() for field in fields]
                continue
            if form_of(path) == "csv":
                raise DataError(
                    f"{path}:{number}: begins with {fields[0]!r:.60}; expected a header whose "
                    "first column is anchor or query, as in anchor,positive,negative_1"
                )
            names = [str(place) for place in range(len(fields))]
        if len(fields) != len(names):
            raise DataError(
                f"{path}:{number}: {len(fields)} fields, but {len(names)} in the first line; every "
                "row needs as many (remove tabs and line breaks inside texts)"
            )
        yield f"{path}:{number}", dict(zip(names, fields, strict=True))


def _csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(FIELD)
    reader = csv.reader(_decoded(path), strict=True)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:
        raise DataError(
            f"{path}:{reader.line_num}: not valid csv ({error}); quote texts that hold commas, "
            "quotation marks or line breaks"
        ) from None


def _decoded(path: Path) -> Iterator[str]:
    """Stream the lines with line ends, blank ones too: a quoted text may hold either."""
    number = 0
    try:
        with open_bytes(path) as stream:
            for number, raw in enumerate(stream, 1):
                yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}:{number}: byte {error.start} of the line is not UTF-8 ({error.reason}); "
            "convert the file, for instance with iconv -t UTF-8"
        ) from None
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}:{number + 1}: the rest cannot be read ({error}); download the file again"
        ) from None


def _parquet(path: Path) -> Iterator[Record]:
    import pyarrow as pa
    from pyarrow import parquet

    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH):
                for fields in batch.to_pylist():
                    yield f"{path}: row {row:,}", fields
                    row += 1
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: row {row:,}: not readable as parquet ({error})") from None
