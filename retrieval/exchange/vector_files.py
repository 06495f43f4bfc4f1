"""The formats' table, files of vectors as streams with ids, and vectors of queries."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.disk.files import packed_file
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.progress import progress
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.indexing.table import CALLED, KNOWN
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import distinct
from sluice.retrieval.documents.json_files import read_objects
from sluice.retrieval.exchange.formats import arrays, ciff, parquet, tensors
from sluice.retrieval.exchange.formats.format import Entries, Format, Kind
from sluice.retrieval.exchange.formats.sparse_files import (
    IMPACT_JSON,
    VECTORS,
    id_of,
    matrix_of,
    weights_of,
)
from sluice.retrieval.runs.run import Run

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from sluice.encoders.encoder import Encoder
    from sluice.indexing import Index
    from sluice.retrieval.retrievers.retriever import Retriever


Dense = NDArray[np.float32]
Chunk = TypeVar("Chunk", Dense, TokenVectors)  # the vectors of some texts

FORMATS: Final = (
    arrays.NPY, parquet.DENSE, tensors.SAFETENSORS, arrays.JSONL, tensors.NPZ, parquet.NESTED,
    ciff.CIFF, IMPACT_JSON, VECTORS,
)  # fmt: skip
CHUNK_ROWS: Final = {"dense": 16_384, "tokens": 512}  # texts that are read or written at a time
CHUNK_BYTES = 1 << 26  # of float32; of dense vectors no more are read at a time
UNITS: Final = {"dense": "vector", "tokens": "text"}  # what messages count


def format_names(*kinds: str, written: bool = False) -> list[str]:
    """Return the names of the formats that hold vectors of a kind; ``written``: that we write."""
    return [each.name for each in FORMATS if each.kind in kinds and (each.write or not written)]


def find_formats(name: str, kinds: Sequence[Kind] = ("dense", "tokens", "sparse")) -> list[Format]:
    """Return the formats of a name, one for each kind of vectors; ``ConfigError`` for none."""
    formats = [each for each in FORMATS if each.name == name and each.kind in kinds]
    if not formats:
        parts = [", ".join(format_names(kind)) for kind in kinds]
        if len(kinds) > 1:
            parts = [f"{part} ({kind})" for part, kind in zip(parts, kinds, strict=True)]
        close = suggest(name, format_names(*kinds))
        raise ConfigError(f"format: {name!r}; known: {', '.join(parts)}{close}")
    return formats


def format_of(path: Path, name: str | None) -> Format:
    """Return the format of a name, or of the file's, for the kind of vectors that it holds."""
    first, *others = find_formats(_format_by_name(path).name if name is None else name)
    return others[0] if others and parquet.is_nested_file(path) else first


def index_kind(index: Index) -> str:
    """Return the form of the vectors that an index holds, as its type's traits say."""
    traits = KNOWN.get(index.form.type_name)
    holds = traits.holds if traits is not None else ("dense",)
    if "sparse" in holds and index.innermost.metric is None:
        return "sparse"
    form = holds[0] if holds else "dense"
    return "dense" if CALLED[form] == CALLED["dense"] else form


class VectorFile(Generic[Chunk]):
    """Vectors in a file, one or several for each document: see ``DenseVectors``."""

    def __init__(self, path: Path, form: Format) -> None:
        self.path, self.form, self.kind = path, form.name, form.kind
        self._source = form.source(path)
        self.dim: int = self._source.dim
        self.has_texts: bool = self._source.has_texts

    def __len__(self) -> int:
        return int(self._source.rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, {len(self):,} x {self.dim})"

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
                f"{self.path}: {len(self):,} {UNITS[self.kind]}s for {count:,} ids; expected one "
                "each"
            )

    def ids(self) -> Iterator[str]:
        """Yield the ids in order."""
        return (document.id for document in self.documents())

    def chunks(self) -> Iterator[Chunk]:
        """Yield the vectors in order, float32 ``[n, dim]`` or ``TokenVectors``, some at a time.

        ``DataError`` for values that are not finite in float32.
        """
        size, unit, done = CHUNK_ROWS[self.kind], UNITS[self.kind], 0
        if self.kind == "dense":
            size = max(1, min(size, CHUNK_BYTES // (4 * max(self.dim, 1))))
        for block in self._source.blocks(size):
            yield _finite(block, f"{self.path}: {unit}", done)
            done += len(block)
        if done != len(self):
            raise DataError(f"{self.path}: it has {done:,} {unit}s, but declares {len(self):,}")


class DenseVectors(VectorFile[Dense]):
    """Vectors in a file, one per document; ``len`` is how many, ``dim`` how wide.

    Nothing is held in memory: ``documents`` and ``chunks`` stream, as often as they are called.
    ``has_texts`` says whether the file has titles or texts besides the ids.
    """

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
    dense = _format_by_name(file) if form is None else find_formats(form, ["dense"])[0]
    return DenseVectors(file, dense)


def write_dense_vectors(
    path: str | Path,
    entries: Entries,
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
    return write_vectors(path, entries, chunks, find_formats(form, ["dense"])[0], dim=dim)


def write_vectors(
    path: str | Path, entries: Entries, chunks: Iterable[Any], form: Format, *, dim: int = 0
) -> int:
    """Write vectors of the kind that a format holds; see ``write_dense_vectors``."""
    if form.write is None:
        known = ", ".join(format_names(form.kind, written=True))
        raise ConfigError(f"format: {form.name!r} is read-only; can be written: {known}")
    stream = iter(chunks)
    first = next(stream, None)
    width = dim if first is None else _width(first)
    chunks = _check_chunks(chain([] if first is None else [first], stream), width)
    return int(form.write(Path(path), entries, chunks, width))


def values_of(chunk: Any) -> Any:
    """Return the vectors of a chunk as one matrix: of tokens, those of all its texts."""
    return chunk.values if isinstance(chunk, TokenVectors) else chunk


def kind_of(vectors: Any) -> Kind:
    """Return the kind of an encoder's vectors."""
    if isinstance(vectors, TokenVectors):
        return "tokens"
    return "dense" if isinstance(vectors, np.ndarray) else "sparse"


def _width(chunk: Any) -> int:
    values = values_of(chunk)
    if getattr(values, "ndim", None) != 2:
        raise DataError(f"vectors: {type(chunk).__name__}, expected numpy arrays [n, dim]")
    return int(values.shape[1])


def _check_chunks(chunks: Iterable[Any], width: int) -> Iterator[Any]:
    done = 0
    for chunk in chunks:
        values = values_of(chunk)
        if _width(chunk) != width or values.dtype.kind != "f":
            raise DataError(
                f"vectors: {values.dtype} of shape {values.shape} from row {done:,} on, expected "
                f"floats [n, {width}]"
            )
        yield _finite(chunk, "vectors: row", done)
        done += len(chunk)


def _finite(chunk: Any, what: str, first: int) -> Any:
    """Return a chunk in contiguous float32; ``DataError`` names the first value not finite."""
    values = values_of(chunk)
    with np.errstate(over="ignore", invalid="ignore"):
        floats = np.ascontiguousarray(values, dtype=np.float32)
        suspicious = not np.isfinite(floats.sum())
    if suspicious and len(bad := np.argwhere(~np.isfinite(floats))):
        row, column = bad[0]
        text = row if values is chunk else np.searchsorted(chunk.bounds, row, side="right") - 1
        raise DataError(
            f"{what} {first + text:,} (from 0), dimension {column} is {floats[row, column]} in "
            "float32; expected finite values"
        )
    return floats if values is chunk else TokenVectors(floats, chunk.bounds)


def _format_by_name(path: Path) -> Format:
    dense = [each for each in FORMATS if each.kind == "dense"]
    for each in dense:
        if path.name.endswith(each.endings):
            return each
    for each in sorted(dense, key=lambda each: "*" in each.inside):  # ids may be in parquet
        if path.is_dir() and each.inside and any(path.glob(each.inside)):
            return each
    state = "a folder" if path.is_dir() else "a file" if path.exists() else "no such file"
    raise DataError(
        f"{path}: {state}; expected vectors that end in .npy, .parquet, .safetensors or .jsonl, "
        "or a folder with vectors.npy or vectors.safetensors and ids.txt, or with parquet files"
    )


log = logging.getLogger("sluice")

EXPECTED = '{"id": ..., "vector": {token: weight, ...}}'
BATCH = 512  # queries searched at a time


def terms_of(encoder: Any) -> list[str]:
    """Return the text of every column of a sparse encoder's vectors."""
    hooks = hooks_of(encoder)
    if hooks.terms is None:
        raise ConfigError(
            f"{type(encoder).__name__} has no terms, and exchange formats hold sparse vectors over "
            "terms (bm25, splade, or an imported index)"
        )
    return hooks.terms(range(encoder.dim))


def read_query_vectors(
    path: str | Path, columns: Mapping[str, int]
) -> tuple[list[str], csr_array[Any]]:
    """Read queries as (ids, matrix ``[queries, len(columns)]``) from JSON lines.

    ``columns`` maps terms to columns, as ``VocabularyEncoder.vocabulary`` does. Tokens outside it
    match no document: they are left out, and one warning counts them.
    """
    ids: dict[str, str] = {}
    rows = []
    tokens = unknown = 0
    for number, value in read_objects(Path(path), EXPECTED):
        place = f"{path}:{number}"
        name = id_of(place, value, EXPECTED)
        if name in ids:
            raise DataError(f"{place}: id {name!r} again, first in {ids[name]}; ids are unique")
        ids[name] = place
        weights = weights_of(place, value, EXPECTED)
        known = {columns[token]: weight for token, weight in weights.items() if token in columns}
        tokens += len(weights)
        unknown += len(weights) - len(known)
        rows.append((list(known), list(known.values())))
    if not rows:
        raise DataError(f"{path}: empty; expected one object per line: {EXPECTED}")
    if unknown:
        log.warning("%s: %d of %d tokens are not in the vocabulary", path, unknown, tokens)
    return list(ids), matrix_of(rows, len(columns))


def queries_of(retriever: Retriever, path: str | Path) -> tuple[list[str], Any]:
    """Read query vectors of the kind that a retriever's index holds, as (ids, vectors ``[n, m]``).

    For a dense one see ``sluice.retrieval.exchange.vector_files.read_dense_vectors``.
    """
    kind = index_kind(retriever.index)
    if kind == "tokens":
        raise ConfigError(
            f"{path}: one vector for each query, and {retriever.path} compares the vectors of all "
            "tokens; search with texts, or in Python with search(vector=...)"
        )
    if kind == "sparse":
        terms = terms_of(retriever.encoder)
        return read_query_vectors(path, {term: column for column, term in enumerate(terms)})
    vectors = read_dense_vectors(path)
    if not len(vectors):
        raise DataError(f"{path}: no vectors; expected one per query")
    return list(vectors.ids()), vectors.array()


def write_query_vectors(
    path: str | Path, ids: Sequence[str], terms: Sequence[str], vectors: csr_array[Any]
) -> None:
    """Write queries and their weights as JSON lines; weights are float32, written exactly."""
    ends = vectors.indptr.tolist()
    with packed_file(Path(path)) as stream:
        for name, begin, end in zip(ids, ends[:-1], ends[1:], strict=True):
            tokens = (terms[at] for at in vectors.indices[begin:end].tolist())
            weights = vectors.data[begin:end].tolist()
            line = {"id": name, "vector": dict(zip(tokens, weights, strict=True))}
            stream.write(json.dumps(line, ensure_ascii=False).encode("utf-8") + b"\n")


def run_vectors(retriever: Retriever, ids: Sequence[str], vectors: Any, k: int = 1000) -> Run:
    """Search a retriever's index with the given vectors, one a query id, to depth ``k``.

    ``vectors`` are a ``csr_array`` or, for a dense index, an array ``[n, dim]``.
    """
    if len(ids) != vectors.shape[0]:
        raise DataError(f"{vectors.shape[0]:,} vectors for {len(ids):,} query ids")
    rankings = {}
    show = len(ids) > 2 * BATCH
    with progress(f"search {retriever.name}", len(ids), "queries", show=show) as advance:
        for start in range(0, len(ids), BATCH):
            block = ids[start : start + BATCH]
            part, depth = vectors[start : start + BATCH], min(k, len(retriever))
            hits = retriever.index.search(part, depth, params=retriever.params)
            for place, query in enumerate(block):
                filled = hits.rows[place] >= 0
                names = retriever.store.ids(hits.rows[place][filled])
                rankings[query] = list(zip(names, hits.scores[place][filled].tolist(), strict=True))
            advance(len(block))
    return Run(rankings, name=retriever.name)


def query_encoder(
    vectors: DenseVectors, dim: int, queries: Mapping[str, str] | None = None
) -> Encoder:
    """Return a ``PrecomputedEncoder`` of a file of query vectors.

    Their texts are in the file, or in ``queries`` by id. A text that two queries share is kept
    once.
    """
    from sluice.encoders.dense.precomputed import PrecomputedEncoder

    if vectors.dim != dim and len(vectors):
        raise DataError(
            f"{vectors.path}: {vectors.dim} dimensions, but the documents have {dim}; one model "
            "makes both"
        )
    entries = list(vectors.documents())
    if queries is None and not vectors.has_texts:
        raise DataError(
            f"{vectors.path}: ids without texts; give the queries' texts (--queries), or a file "
            "with a column 'text'"
        )
    unknown = [each.id for each in entries if queries is not None and each.id not in queries]
    if unknown:
        raise DataError(
            f"{vectors.path}: {len(unknown):,} of {len(entries):,} ids are not among the queries "
            f"({', '.join(map(repr, unknown[:3]))})"
        )
    texts = [each.full_text if queries is None else queries[each.id] for each in entries]
    places = {text: place for place, text in reversed(list(enumerate(texts)))}
    rows = sorted(places.values())
    return PrecomputedEncoder([texts[row] for row in rows], vectors.array()[rows], dim=dim)
