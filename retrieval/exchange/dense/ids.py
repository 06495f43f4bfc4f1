"""The ids of vectors in a file of their own: text, JSON, ``.npy`` or parquet, in the same order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.documents.document import Document

ENDINGS = (".txt", ".json", ".npy", ".parquet")
ID_COLUMNS = ("id", "_id", "doc_id", "docid")
# What numpy's reader raises for a file that is not an array, or one with a damaged header.
UNREADABLE = (OSError, ValueError, EOFError, OverflowError, MemoryError, SyntaxError)


class IdFile:
    """Streams the ids of a file as (place, id); ``len`` counts them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = path.suffix == ".txt"
        if self._lines:
            with path.open("rb") as stream:
                self._count = sum(1 for _ in stream)
        else:
            self._values = _read_values(path)
            self._count = len(self._values)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[str, str]]:
        if self._lines:
            yield from _lines(self.path)
            return
        for start in range(0, self._count, 4096):
            for number, value in enumerate(self._values[start : start + 4096], start):
                place = f"{self.path}: id {number:,} (from 0)"
                yield place, id_text(place, value)


def id_text(place: str, value: Any) -> str:
    """Return an id as text; whole numbers are taken as theirs, anything else is an error."""
    if isinstance(value, bytes):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{place}: {value!r:.80} is not UTF-8 ({error.reason})") from None
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise DataError(
            f"{place}: {value!r:.80}; expected a text that is not empty, or a whole number"
        )
    return str(value)


def ids_beside(vectors: Path) -> IdFile:
    """Return the ids of ``X.npy`` or ``X.safetensors``: ``X.ids.txt`` (or .json, .npy, .parquet).

    Where no other file of vectors lies in the folder, ``ids.txt`` will do.
    """
    own = [vectors.with_name(f"{vectors.stem}.ids{ending}") for ending in ENDINGS]
    found = [path for path in own if path.exists()]
    if not found and _alone(vectors):
        shared = [vectors.with_name(f"ids{ending}") for ending in ENDINGS]
        found = [path for path in shared if path.exists()]
    if len(found) > 1:
        raise DataError(f"{found[0]} and {found[1].name}: both may be the ids; remove one")
    if not found:
        raise DataError(
            f"{vectors}: no ids beside it; expected {own[0].name} (one id a line), or "
            f"{', '.join(path.name for path in own[1:])}"
        )
    return IdFile(found[0])


def write_ids(stream: IO[bytes], entries: Iterable[str] | Iterable[Document]) -> int:
    """Write one id a line and return how many they are."""
    count = 0
    for entry in entries:
        name = entry.id if isinstance(entry, Document) else entry
        if not isinstance(name, str) or not name or "\n" in name or name.endswith("\r"):
            raise DataError(
                f"id {name!r}: expected a text that is not empty and has no line break, because "
                "ids are written one a line; parquet has no such limit"
            )
        try:
            stream.write(name.encode("utf-8") + b"\n")
        except UnicodeEncodeError:
            raise DataError(f"id {name!r}: half a surrogate pair, which no UTF-8 holds") from None
        count += 1
    return count


def check_count(vectors: Path, rows: int, ids: IdFile) -> None:
    """Raise ``DataError`` unless there is one id for each of the ``rows`` vectors."""
    if len(ids) != rows:
        raise DataError(f"{vectors}: {rows:,} vectors, but {ids.path.name} has {len(ids):,} ids")


def map_array(path: Path) -> NDArray[Any]:
    """Map an ``.npy`` file into memory; ``DataError`` for one of Python objects, or none at all."""
    try:
        with path.open("rb") as stream:
            version = npy.read_magic(stream)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            objects = read(stream)[2].hasobject
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except UNREADABLE as error:
        raise DataError(f"{path}: not readable as a .npy file ({error})") from None
    if objects:
        raise DataError(
            f"{path}: an array of Python objects, which only pickle can read, and pickle runs any "
            "code; save it again as numbers, or ids as texts: np.save(path, np.array(ids, 'U'))"
        )
    try:
        found: NDArray[Any] = npy.open_memmap(path, mode="r")
    except UNREADABLE as error:
        raise DataError(f"{path}: not readable as a .npy file ({error}); is it whole?") from None
    return found


def _alone(vectors: Path) -> bool:
    others = {
        path.name
        for path in vectors.parent.glob(f"*{vectors.suffix}")
        if path.name != f"ids{vectors.suffix}"
    }
    return others <= {vectors.name}


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            place = f"{path}:{number}"
            yield place, id_text(place, line.removesuffix(b"\n").removesuffix(b"\r"))


def _read_values(path: Path) -> Any:
    """Return a sequence of ids whose slices are cheap."""
    if path.suffix == ".json":
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError, RecursionError) as error:
            raise DataError(f"{path}: not readable as JSON ({error})") from None
        if not isinstance(values, list):
            raise DataError(f"{path}: a JSON {type(values).__name__}, expected a list of ids")
        return values
    if path.suffix == ".npy":
        array = map_array(path)
        if array.ndim != 1 or array.dtype.kind not in "USiu":
            raise DataError(
                f"{path}: {array.dtype} of shape {array.shape}, expected texts or whole numbers [n]"
            )
        return array
    return _parquet_values(path)


def _parquet_values(path: Path) -> list[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not readable as parquet ({error})") from None
    columns = [name for name in table.column_names if name in ID_COLUMNS] or table.column_names
    if len(columns) != 1:
        raise DataError(
            f"{path}: columns {', '.join(table.column_names)}; expected one, or one named 'id'"
        )
    values: list[Any] = table.column(columns[0]).to_pylist()
    return values
