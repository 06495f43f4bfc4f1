"""Reads and writes dense vectors with their ids as streams: npy, parquet, safetensors, JSONL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import distinct

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
        f"{ROOM}.safetensors_file:TensorSource",
        f"{ROOM}.safetensors_file:write_file",
    ),
    "jsonl": ((".jsonl", ".jsonl.gz"), f"{ROOM}.jsonl:LineSource", None),
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
