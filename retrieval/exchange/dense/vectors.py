"""Anyone's dense vectors with their ids, streamed: .npy, parquet, safetensors, JSON lines."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import distinct

Dense = NDArray[np.float32]
CHUNK_ROWS = 16_384
CHUNK_BYTES = 1 << 26  # of float32; what is read at a time has the smaller of both

# Form -> how its files end, the module that reads it, and whether that one writes it too.
FORMS = {
    "npy": ((".npy",), "sluice.retrieval.exchange.dense.npy", True),
    "parquet": ((".parquet",), "sluice.retrieval.exchange.dense.parquet", True),
    "safetensors": ((".safetensors",), "sluice.retrieval.exchange.dense.safetensors_file", True),
    "jsonl": ((".jsonl", ".jsonl.gz"), "sluice.retrieval.exchange.dense.jsonl", False),
}
WRITTEN = tuple(form for form, (_, _, written) in FORMS.items() if written)


class VectorSource(Protocol):
    """What a form's module gives: how many vectors, the documents, and the vectors in blocks."""

    rows: int
    dim: int  # 0 where a file without rows does not say
    has_texts: bool

    def documents(self) -> Iterator[tuple[str, Document]]:
        """Yield (place in the file, document) in order, anew at each call."""
        ...

    def blocks(self, size: int) -> Iterator[NDArray[Any]]:
        """Yield the vectors in order, at most ``size`` together, float ``[n, dim]``."""
        ...


class DenseVectors:
    """Vectors that lie in a file, one a document; ``len`` is how many, ``dim`` how wide.

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
            raise DataError(f"{self.path}: {len(self):,} vectors for {count:,} ids; give one each")

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
            raise DataError(f"{self.path}: it has {done:,} vectors, and said {len(self):,}")

    def array(self) -> Dense:
        """Return all vectors, float32 ``[n, dim]``, in memory."""
        return np.concatenate([np.zeros((0, self.dim), np.float32), *self.chunks()])


def read_dense_vectors(path: str | Path, form: str | None = None) -> DenseVectors:
    """Open vectors with ids; ``form`` is ``npy``, ``parquet``, ``safetensors`` or ``jsonl``.

    Without ``form`` the file's name decides, or what a folder holds. Ids are texts; whole numbers
    are taken as theirs. float16, bfloat16 and float64 become float32. ``DataError`` for a file
    that is not such vectors: it names what was found.

    * ``npy``: an array ``[n, dim]``, mapped; ids beside ``X.npy`` in ``X.ids.txt`` (one a line),
      ``X.ids.json``, ``X.ids.npy`` or ``X.ids.parquet``, or a folder with ``vectors.npy`` and
      ``ids.txt``. Object arrays are refused, because reading them would run their code.
    * ``parquet``: a file or a folder of files with a column ``id`` and a column of lists
      ``embedding``, ``vector`` or ``emb``; ``title`` and ``text`` are kept, other columns as
      metadata.
    * ``safetensors``: the tensor ``vectors``, or the only one with two axes; ids as a JSON list
      ``ids`` in the file's metadata, or beside it as for ``npy``.
    * ``jsonl``: ``{"id", "embedding"}`` a line, or the lines of an OpenAI batch's output.
    """
    given = Path(path)
    name = _form_of(given) if form is None else _known(form)
    source: VectorSource = importlib.import_module(FORMS[name][1]).open_source(given)
    return DenseVectors(given, name, source)


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
    float32. Existing files are replaced when the new ones are whole. ``dim`` is for no vectors.
    """
    name = _known(form)
    if name not in WRITTEN:
        raise ConfigError(f"format: {name!r} is read only; written are {', '.join(WRITTEN)}")
    stream = iter(chunks)
    first = next(stream, None)
    width = dim if first is None else _width(first)
    checked = _checked(chain([] if first is None else [first], stream), width)
    written: int = importlib.import_module(FORMS[name][1]).write_file(
        Path(path), entries, checked, width
    )
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
    """Return a block as contiguous float32; ``DataError`` naming the first value that is none."""
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
    found = "a folder" if path.is_dir() else "a file" if path.exists() else "no such file"
    raise DataError(
        f"{path}: {found}; expected vectors that end in .npy, .parquet, .safetensors or .jsonl, "
        "or a folder with vectors.npy or vectors.safetensors and ids.txt, or with parquet files"
    )
