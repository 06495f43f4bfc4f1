"""Vectors as .npy arrays with their ids in a file beside them, or as JSON lines."""

from __future__ import annotations

import base64
import binascii
import json
import lzma
import shutil
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from sluice.encoders.foundation.disk import arrays
from sluice.encoders.foundation.disk.files import packed_file
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.documents.columns import MetadataReader
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import id_text
from sluice.retrieval.documents.json_files import missing_field, read_lines, read_objects
from sluice.retrieval.exchange.formats.format import Entries, Format

ENDINGS = (".txt", ".json", ".npy", ".parquet")
ID_COLUMNS = ("id", "_id", "doc_id", "docid")


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
            values = self._values[start : start + 4096]
            if isinstance(values, np.ndarray) and not _are_characters(values):
                raise DataError(
                    f"{self.path}: from id {start:,} (from 0) on, a text that is not Unicode; is "
                    "the file damaged?"
                )
            yield from list_ids(self.path, values, start)


def _are_characters(texts: NDArray[Any]) -> bool:
    """Return whether an array of texts holds code points only, which numpy does not look at."""
    if texts.dtype.kind != "U" or not texts.size:
        return True
    points = np.ascontiguousarray(texts).view(
        np.dtype(np.uint32).newbyteorder(texts.dtype.byteorder)
    )
    return int(points.max()) <= sys.maxunicode


def list_ids(path: Path, values: Iterable[Any], first: int = 0) -> Iterator[tuple[str, str]]:
    """Yield (place, id) of a list of ids; ``DataError`` for what is none."""
    for number, value in enumerate(values, first):
        place = f"{path}: id {number:,} (from 0)"
        yield place, id_text(f"{place}: the id", value)


def ids_beside(vectors: Path) -> IdFile:
    """Return the ids of ``X.npy`` or ``X.safetensors``: ``X.ids.txt`` (or .json, .npy, .parquet).

    If the folder has no other file of vectors, ``ids.txt`` is taken.
    """
    own = [vectors.with_name(f"{vectors.stem}.ids{ending}") for ending in ENDINGS]
    present = [path for path in own if path.exists()]
    if not present and _alone(vectors):
        shared = [vectors.with_name(f"ids{ending}") for ending in ENDINGS]
        present = [path for path in shared if path.exists()]
    if len(present) > 1:
        raise DataError(f"{present[0]} and {present[1].name}: both may hold the ids; remove one")
    if not present:
        raise DataError(
            f"{vectors}: no ids beside it; expected {own[0].name} (one id per line), or "
            f"{', '.join(path.name for path in own[1:])}"
        )
    return IdFile(present[0])


def write_ids(stream: IO[bytes], entries: Entries) -> int:
    """Write one id per line; return how many."""
    count = 0
    for entry in entries:
        name = entry.id if isinstance(entry, Document) else entry
        if not isinstance(name, str) or not name or "\n" in name or name.endswith("\r"):
            raise DataError(
                f"id {name!r}: expected a text that is not empty and has no line break, because "
                "ids are written one per line; parquet has no such limit"
            )
        try:
            stream.write(name.encode("utf-8") + b"\n")
        except UnicodeEncodeError:
            raise DataError(
                f"id {name!r}: half a surrogate pair, which UTF-8 cannot encode"
            ) from None
        count += 1
    return count


def check_count(vectors: Path, rows: int, ids: IdFile) -> None:
    """Raise ``DataError`` unless there is one id for each of the ``rows`` vectors."""
    if len(ids) != rows:
        raise DataError(f"{vectors}: {rows:,} vectors, but {ids.path.name} has {len(ids):,} ids")


def map_array(path: Path) -> NDArray[Any]:
    """Map an ``.npy`` file into memory; ``DataError`` for Python objects and for other files."""
    try:
        return arrays.map_array(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not readable as a .npy file: {error}") from None


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
            yield place, id_text(f"{place}: the id", line.removesuffix(b"\n").removesuffix(b"\r"))


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
        columns = [name for name in table.column_names if name in ID_COLUMNS] or table.column_names
        values: list[Any] = table.column(columns[0]).to_pylist() if columns else []
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise DataError(f"{path}: not readable as parquet ({error})") from None
    if len(columns) != 1:
        raise DataError(
            f"{path}: columns {', '.join(table.column_names)}; expected one, or one named 'id'"
        )
    return values


VECTORS = "vectors.npy"
IDS = "ids.txt"


class ArraySource:
    """``X.npy``, or ``vectors.npy`` in a folder, and its ids; see ``read_dense_vectors``."""

    has_texts = False

    def __init__(self, path: Path) -> None:
        path = path / VECTORS if path.is_dir() else path
        self._array = map_array(path)
        shape, dtype = self._array.shape, self._array.dtype
        if len(shape) != 2 or dtype.kind != "f":
            raise DataError(
                f"{path}: {dtype} of shape {shape}, expected float32, float16 or float64 [n, dim]"
            )
        self.rows, self.dim = int(shape[0]), int(shape[1])
        self._ids = ids_beside(path)
        check_count(path, self.rows, self._ids)

    def documents(self) -> Iterator[tuple[str, Document]]:
        """Yield (place, document without texts)."""
        return ((place, Document(name, "", "")) for place, name in self._ids)

    def blocks(self, size: int) -> Iterator[NDArray[Any]]:
        """Yield views of the mapped array."""
        for start in range(0, self.rows, size):
            yield self._array[start : start + size]


def write_arrays(
    path: Path, entries: Entries, chunks: Iterable[NDArray[np.float32]], dim: int
) -> int:
    """Write ``X.npy`` and ``X.ids.txt``, or a folder; the ids are read before the vectors."""
    with ExitStack() as stack:
        if path.suffix == ".npy":
            vectors = stack.enter_context(packed_file(path))
            ids = stack.enter_context(packed_file(path.with_name(f"{path.stem}.ids.txt")))
        else:
            folder = stack.enter_context(replaced_folder(path, markers=(VECTORS,)))
            vectors = stack.enter_context((folder / VECTORS).open("wb"))
            ids = stack.enter_context((folder / IDS).open("wb"))
        rows = write_ids(ids, entries)
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)}
        npy.write_array_header_1_0(vectors, header)
        write_values(vectors, chunks, rows)
    return rows


def write_values(stream: IO[bytes], chunks: Iterable[NDArray[np.float32]], rows: int) -> None:
    """Write the values of ``rows`` vectors; ``DataError`` if there are more or fewer."""
    written = 0
    for chunk in chunks:
        stream.write(np.ascontiguousarray(chunk, dtype="<f4").data)
        written += len(chunk)
    if written != rows:
        raise DataError(f"vectors: {written:,} for {rows:,} ids; expected one each")


# What zipfile and numpy raise for an archive that is damaged, encrypted or packed in other ways.
UNREADABLE = (
    OSError, ValueError, KeyError, OverflowError, MemoryError, EOFError, zipfile.BadZipFile,
    zlib.error, lzma.LZMAError, RuntimeError,
)  # fmt: skip


def add_array(
    archive: zipfile.ZipFile, name: str, values: IO[bytes], dtype: str, shape: tuple[int, ...]
) -> None:
    """Write raw values, from the start of a stream, into an archive as an ``.npy`` file."""
    values.seek(0)
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(member, header)
        shutil.copyfileobj(values, member, 1 << 20)


VECTOR_FIELDS = ("embedding", "vector", "emb")
EXPECTED = '{"id": ..., "embedding": [...]}'


class LineSource:
    """One object a line, or the lines of an OpenAI batch's output; see ``read_dense_vectors``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows = sum(1 for _ in read_lines(path))
        self.has_texts, self.dim = False, 0
        for number, value in read_objects(path, EXPECTED):
            self.has_texts = bool(value.keys() & {"title", "text"})
            self.dim = len(_vector(f"{path}:{number}", value))
            break

    def documents(self) -> Iterator[tuple[str, Document]]:
        """Yield (place, document): its ``title``, ``text`` and ``metadata``, where it has them."""
        metadata = MetadataReader()
        for number, value in read_objects(self._path, EXPECTED):
            place = f"{self._path}:{number}"
            title, text = value.get("title") or "", value.get("text") or ""
            if not isinstance(title, str) or not isinstance(text, str):
                raise DataError(f"{place}: 'title' or 'text' is not a text")
            own = value.get("metadata")
            fields = metadata.kept(own if isinstance(own, dict) else {})
            yield place, Document(_name(place, value), title, text, fields)
        metadata.warn(self._path)

    def blocks(self, size: int) -> Iterator[NDArray[Any]]:
        """Yield the vectors; ``DataError`` for another width than the first one's."""
        block: list[NDArray[Any]] = []
        for number, value in read_objects(self._path, EXPECTED):
            place = f"{self._path}:{number}"
            vector = _vector(place, value)
            if len(vector) != self.dim:
                raise DataError(
                    f"{place}: {len(vector)} values, but {self.dim} in the first line; vectors "
                    "have one width"
                )
            block.append(vector)
            if len(block) == size:
                yield np.stack(block)
                block = []
        if block:
            yield np.stack(block)


def _name(place: str, value: dict[str, Any]) -> str:
    for field in ("custom_id", *ID_COLUMNS) if "response" in value else ID_COLUMNS:
        if field in value:
            return id_text(f"{place}: {field!r}", value[field])
    raise DataError(f"{place}: {missing_field('id', value)}; expected {EXPECTED}")


def _vector(place: str, value: dict[str, Any]) -> NDArray[np.float32]:
    if "response" in value:
        return _numbers(place, _batch_embedding(place, value))
    for field in VECTOR_FIELDS:
        if field in value:
            return _numbers(place, value[field])
    raise DataError(f"{place}: {missing_field('embedding', value)}; expected {EXPECTED}")


def _batch_embedding(place: str, value: dict[str, Any]) -> Any:
    """Return the embedding of a line of an OpenAI batch's output."""
    try:
        data = value["response"]["body"]["data"]
        entry = data[0]["embedding"]
    except (KeyError, TypeError, IndexError):
        answer = value.get("error") or value["response"]
        raise DataError(
            f"{place}: a request without an embedding ({answer!r:.120}); request it again"
        ) from None
    if len(data) != 1:
        raise DataError(
            f"{place}: {len(data)} embeddings for one custom_id; send one text per request"
        )
    return entry


def _numbers(place: str, values: Any) -> NDArray[np.float32]:
    """Return a vector given as a list of numbers, or as base64 of little-endian float32."""
    try:
        vector = _decode(values) if isinstance(values, str) else np.array(values)
    except (binascii.Error, TypeError, ValueError, OverflowError):
        vector = np.array(0)
    if vector.ndim != 1 or not len(vector) or vector.dtype.kind not in "fiu":
        raise DataError(f"{place}: the vector is {values!r:.60}; expected a list of numbers")
    with np.errstate(over="ignore"):  # reported as a value that is not finite
        return vector.astype(np.float32)


def _decode(text: str) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(text, validate=True), "<f4")


NPY: Final = Format("npy", "dense", ArraySource, write_arrays, (".npy",), VECTORS)
JSONL: Final = Format("jsonl", "dense", LineSource, endings=(".jsonl", ".jsonl.gz"))
