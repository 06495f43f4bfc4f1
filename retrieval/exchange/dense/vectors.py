"""Reads and writes dense vectors with their ids as streams: npy, parquet, safetensors, JSONL."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.disk.files import packed_file
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import distinct, id_text
from sluice.retrieval.exchange.dense.arrays import (
    IdFile,
    check_count,
    ids_beside,
    write_ids,
    write_values,
)

VECTORS = "vectors"  # the tensor, and in a folder the file
LARGEST_HEADER = 100_000_000  # bytes; the format's own bound
LARGEST_IDS = 32_000_000  # bytes of ids that are put into the header
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class TensorSource:
    """One tensor of ``X.safetensors``, or of ``vectors.safetensors`` in a folder, and its ids."""

    has_texts = False

    def __init__(self, path: Path) -> None:
        self._path = path = path / f"{VECTORS}.safetensors" if path.is_dir() else path
        header, begin = _read_header(path)
        metadata = header.pop("__metadata__", None) or {}
        if not isinstance(metadata, dict):
            raise DataError(f"{path}: its __metadata__ is {metadata!r:.60}, expected texts by name")
        name, entry = _chosen(path, header)
        self._kind, self._start = str(entry["dtype"]), begin + int(entry["data_offsets"][0])
        self.rows, self.dim = (int(length) for length in entry["shape"])
        size = self.rows * self.dim * np.dtype(DTYPES[self._kind]).itemsize
        if self._start < begin or self._start + size > path.stat().st_size:
            raise DataError(f"{path}: the tensor {name!r} is cut short; is the file complete?")
        self._ids: list[Any] | IdFile
        if "ids" in metadata:
            self._ids = _listed(path, metadata["ids"])
            if len(self._ids) != self.rows:
                raise DataError(f"{path}: {self.rows:,} vectors, but {len(self._ids):,} ids")
        else:
            self._ids = ids_beside(path)
            check_count(path, self.rows, self._ids)

    def documents(self) -> Iterator[tuple[str, Document]]:
        """Yield (place, document without texts)."""
        if isinstance(self._ids, IdFile):
            for place, name in self._ids:
                yield place, Document(name, "", "")
            return
        for number, value in enumerate(self._ids):
            place = f"{self._path}: id {number:,} (from 0)"
            yield place, Document(id_text(f"{place}: the id", value), "", "")

    def blocks(self, size: int) -> Iterator[NDArray[Any]]:
        """Yield blocks of the mapped tensor; bfloat16 is widened to float32."""
        if not self.rows or not self.dim:
            return
        shape = (self.rows, self.dim)
        mapped = np.memmap(self._path, DTYPES[self._kind], "r", self._start, shape)
        for start in range(0, self.rows, size):
            block = np.asarray(mapped[start : start + size])
            if self._kind == "BF16":  # the upper half of a float32
                block = (block.astype(np.uint32) << np.uint32(16)).view(np.float32)
            yield block


def write_tensors(
    path: Path,
    entries: Iterable[str] | Iterable[Document],
    chunks: Iterable[NDArray[np.float32]],
    dim: int,
) -> int:
    """Write the tensor ``vectors`` with the ids in the header, or beside it if there are many."""
    beside = path.with_name(f"{path.stem}.ids.txt")
    with packed_file(path) as stream, tempfile.TemporaryFile() as ids:
        rows = write_ids(ids, entries)
        metadata = {}
        if ids.tell() <= LARGEST_IDS:
            ids.seek(0)
            names = ids.read().decode("utf-8").split("\n")[:-1]
            metadata["ids"] = json.dumps(names, ensure_ascii=False)
        else:
            ids.seek(0)
            with packed_file(beside) as copy:
                copy.writelines(ids)
        tensor = {"dtype": "F32", "shape": [rows, dim], "data_offsets": [0, 4 * rows * dim]}
        header = json.dumps({"__metadata__": metadata, VECTORS: tensor}, ensure_ascii=False)
        data = header.encode("utf-8")
        data += b" " * (-len(data) % 8)  # values begin at a multiple of eight
        stream.write(len(data).to_bytes(8, "little") + data)
        write_values(stream, chunks, rows)
    if metadata and not path.with_suffix(".npy").exists():  # whose ids they would be
        beside.unlink(missing_ok=True)  # left by another file, which this one replaces
    return rows


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header and where the values begin."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(LARGEST_HEADER, size - 8):
                raise ValueError(f"a header of {length:,} bytes in a file of {size:,}")
            header = json.loads(stream.read(length).decode("utf-8"))
        if not isinstance(header, dict):
            raise ValueError("its header is not a JSON object")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as safetensors ({error})") from None
    return header, 8 + length


def _chosen(path: Path, header: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the tensor ``vectors``, or the only one with two axes, checked."""
    shapes = {name: _shape(entry) for name, entry in header.items()}
    wide = [name for name, shape in shapes.items() if len(shape) == 2]
    name = VECTORS if VECTORS in header else wide[0] if len(wide) == 1 else ""
    if not name:
        shown = ", ".join(f"{name} {shape}" for name, shape in list(shapes.items())[:8]) or "none"
        raise DataError(
            f"{path}: tensors {shown}; expected one named {VECTORS!r}, or only one of [n, dim]"
        )
    entry, shape = header[name], shapes[name]
    if not isinstance(entry, dict):
        raise DataError(f"{path}: the tensor {name!r} is {entry!r:.60}, expected its description")
    if (
        len(shape) != 2
        or not isinstance(entry.get("dtype"), str)
        or entry.get("dtype") not in DTYPES
    ):
        raise DataError(
            f"{path}: the tensor {name!r} is {entry.get('dtype')} of shape {shape}, expected "
            f"{', '.join(DTYPES)} of [n, dim]"
        )
    offsets = entry.get("data_offsets")
    size = math.prod(shape) * np.dtype(DTYPES[entry["dtype"]]).itemsize
    if not _counts(offsets) or len(offsets) != 2 or offsets[1] - offsets[0] != size:
        raise DataError(f"{path}: the tensor {name!r} has offsets {offsets!r:.60}; damaged?")
    return name, entry


def _shape(entry: Any) -> tuple[int, ...]:
    shape = entry.get("shape") if isinstance(entry, dict) else None
    return tuple(shape) if _counts(shape) else ()


def _counts(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(
        isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values
    )


def _listed(path: Path, text: Any) -> list[Any]:
    try:
        ids = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: 'ids' of its metadata is not JSON ({error})") from None
    if not isinstance(ids, list):
        raise DataError(f"{path}: 'ids' of its metadata is a {type(ids).__name__}, expected a list")
    return ids


Dense = NDArray[np.float32]
CHUNK_ROWS = 16_384
CHUNK_BYTES = 1 << 26  # of float32; what is read at a time has the smaller of both

ROOM = "sluice.retrieval.exchange.dense"
# Form -> how its files end, what opens a path of the form, and what writes one (None: nothing).
FORMS: dict[str, tuple[tuple[str, ...], str, str | None]] = {
    "npy": ((".npy",), f"{ROOM}.arrays:ArraySource", f"{ROOM}.arrays:write_file"),
    "parquet": ((".parquet",), f"{ROOM}.parquet:ParquetSource", f"{ROOM}.parquet:write_file"),
    "safetensors": (
        (".safetensors",),
        f"{ROOM}.vectors:TensorSource",
        f"{ROOM}.vectors:write_tensors",
    ),
    "jsonl": ((".jsonl", ".jsonl.gz"), f"{ROOM}.arrays:LineSource", None),
}
WRITTEN = tuple(form for form, (_, _, writer) in FORMS.items() if writer)


class VectorSource(Protocol):
    """What a form's module gives: how many vectors, the documents, and the vectors in blocks."""

    rows: int
    dim: int  # 0 where an empty file does not say
    has_texts: bool

    def documents(self) -> Iterator[tuple[str, Document]]:
        """Yield (place in the file, document) in order, from the start at each call."""
        ...

    def blocks(self, size: int) -> Iterator[NDArray[Any]]:
        """Yield the vectors in order, at most ``size`` together, float ``[n, dim]``."""
        ...


class DenseVectors:
    """Vectors in a file, one per document; ``len`` is how many, ``dim`` how wide.

    Nothing is held in memory: ``documents`` and ``chunks`` stream, as often as they are called.
    ``has_texts`` says whether the file has titles or texts besides the ids.
    """

    def __init__(self, path: Path, form: str, source: VectorSource) -> None:
        self.path, self.form = path, form
        self._source = source
        self.dim, self.has_texts = source.dim, source.has_texts

    def __len__(self) -> int:
        return self._source.rows

    def __repr__(self) -> str:
        return f"DenseVectors({str(self.path)!r}, {len(self):,} x {self.dim})"

    def documents(self) -> Iterator[Document]:
        """Yield the documents in order, without texts where the file has none.

        ``DataError`` for an id that occurs twice, and for more or fewer ids than vectors.
        """
        count = 0
        for document in distinct(self._source.documents):
            count += 1
            yield document
        if count != len(self):
            raise DataError(
                f"{self.path}: {len(self):,} vectors for {count:,} ids; expected one each"
            )

    def ids(self) -> Iterator[str]:
        """Yield the ids in order."""
        return (document.id for document in self.documents())

    def chunks(self) -> Iterator[Dense]:
        """Yield the vectors in order, float32 ``[n, dim]``, at most 64 MiB at a time.

        ``DataError`` for values that are not finite in float32.
        """
        size = max(1, min(CHUNK_ROWS, CHUNK_BYTES // (4 * max(self.dim, 1))))
        done = 0
        for block in self._source.blocks(size):
            yield _finite(block, f"{self.path}: vector", done)
            done += len(block)
        if done != len(self):
            raise DataError(f"{self.path}: it has {done:,} vectors, but declares {len(self):,}")

    def array(self) -> Dense:
        """Return all vectors, float32 ``[n, dim]``, in memory."""
        return np.concatenate([np.zeros((0, self.dim), np.float32), *self.chunks()])


def read_dense_vectors(path: str | Path, form: str | None = None) -> DenseVectors:
    """Open vectors with ids; ``form`` is ``npy``, ``parquet``, ``safetensors`` or ``jsonl``.

    Without ``form`` the file's name decides, or what a folder holds. Ids are texts; whole numbers
    are written out. float16, bfloat16 and float64 become float32. ``DataError`` for a file
    that holds no such vectors: it names what was found.

    * ``npy``: an array ``[n, dim]``, mapped; ids beside ``X.npy`` in ``X.ids.txt`` (one per line),
      ``X.ids.json``, ``X.ids.npy`` or ``X.ids.parquet``, or a folder with ``vectors.npy`` and
      ``ids.txt``. Object arrays are refused, because reading them would run their code.
    * ``parquet``: a file or a folder of files with a column ``id`` and a column of lists
      ``embedding``, ``vector`` or ``emb``; ``title`` and ``text`` are kept, other columns as
      metadata.
    * ``safetensors``: the tensor ``vectors``, or the only one with two axes; ids as a JSON list
      ``ids`` in the file's metadata, or beside it as for ``npy``.
    * ``jsonl``: ``{"id", "embedding"}`` per line, or the lines of an OpenAI batch's output.
    """
    file = Path(path)
    name = _form_of(file) if form is None else _known(form)
    return DenseVectors(file, name, resolve(FORMS[name][1])(file))


def write_dense_vectors(
    path: str | Path,
    entries: Iterable[str] | Iterable[Document],
    chunks: Iterable[NDArray[Any]],
    form: str,
    *,
    dim: int = 0,
) -> int:
    """Write vectors (arrays ``[n, dim]``, one after the other) and their ids; return how many.

    ``npy`` is written as ``X.npy`` with ``X.ids.txt``, or as a folder where ``path`` does not end
    in ``.npy``. ``parquet`` keeps titles and texts if ``entries`` are documents. Values are
    float32. Existing files are replaced once the new ones are complete. ``dim`` is the width
    for a file without vectors.
    """
    name = _known(form)
    writer = FORMS[name][2]
    if writer is None:
        raise ConfigError(f"format: {name!r} is read-only; can be written: {', '.join(WRITTEN)}")
    stream = iter(chunks)
    first = next(stream, None)
    width = dim if first is None else _width(first)
    checked = _checked(chain([] if first is None else [first], stream), width)
    written: int = resolve(writer)(Path(path), entries, checked, width)
    return written


def _width(chunk: Any) -> int:
    if getattr(chunk, "ndim", None) != 2:
        raise DataError(f"vectors: {type(chunk).__name__}, expected numpy arrays [n, dim]")
    return int(chunk.shape[1])


def _checked(chunks: Iterable[NDArray[Any]], width: int) -> Iterator[Dense]:
    done = 0
    for chunk in chunks:
        if _width(chunk) != width or chunk.dtype.kind != "f":
            raise DataError(
                f"vectors: {chunk.dtype} of shape {chunk.shape} from row {done:,} on, expected "
                f"floats [n, {width}]"
            )
        yield _finite(chunk, "vectors: row", done)
        done += len(chunk)


def _finite(block: NDArray[Any], what: str, first: int) -> Dense:
    """Return a block as contiguous float32; ``DataError`` names the first value not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        dense = np.ascontiguousarray(block, dtype=np.float32)
        suspicious = not np.isfinite(dense.sum())
    if suspicious and len(bad := np.argwhere(~np.isfinite(dense))):
        row, column = bad[0]
        raise DataError(
            f"{what} {first + row:,} (from 0), dimension {column} is {dense[row, column]} in "
            "float32; expected finite values"
        )
    return dense


def _known(form: str) -> str:
    if form not in FORMS:
        raise ConfigError(f"format: {form!r}; known: {', '.join(FORMS)}{suggest(form, FORMS)}")
    return form


def _form_of(path: Path) -> str:
    for form, (endings, _, _) in FORMS.items():
        if path.name.endswith(endings):
            return form
    if path.is_dir():
        for form in ("npy", "safetensors"):
            if (path / f"vectors.{form}").exists():
                return form
        if any(path.glob("*.parquet")):
            return "parquet"
    state = "a folder" if path.is_dir() else "a file" if path.exists() else "no such file"
    raise DataError(
        f"{path}: {state}; expected vectors that end in .npy, .parquet, .safetensors or .jsonl, "
        "or a folder with vectors.npy or vectors.safetensors and ids.txt, or with parquet files"
    )
