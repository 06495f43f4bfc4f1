"""Exports dense retrievers as files of vectors, and makes retrievers of such files."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import new_draft
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.indexing.table import BY_FACTORY, DEFAULT, INDEXES
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.store import DocumentStore, write_documents
from sluice.retrieval.exchange.dense.vectors import (
    WRITTEN,
    DenseVectors,
    read_dense_vectors,
    write_dense_vectors,
)
from sluice.retrieval.retrievers.corpus.vectors.index_tasks import holds_tokens
from sluice.retrieval.retrievers.retriever import Retriever

if TYPE_CHECKING:
    from sluice.encoders.encoder import Encoder
    from sluice.indexing import Index

log = logging.getLogger("sluice")

CHUNK = 16_384  # documents held at a time
LOOKED_AT = 8  # documents encoded to see whether the encoder is the one
ALIKE = 0.99  # cosine above which two vectors are of one model, whatever the precision


@dataclass(frozen=True, slots=True)
class DenseExport:
    """What was written; ``decoded`` says that the index keeps less than the full vectors."""

    documents: int
    dim: int
    metric: str
    decoded: bool

    def __str__(self) -> str:
        parts = [f"{self.documents:,} documents, {self.dim:,} dimensions, metric {self.metric}"]
        if self.decoded:
            parts.append("decoded from the index's codes, which are lossy")
        return "; ".join(parts)


def export_dense(
    retriever: Retriever, output: str | Path, form: str, *, texts: bool = False
) -> DenseExport:
    """Write a dense retriever's live documents, ids and vectors in row order.

    ``form`` is ``npy``, ``parquet`` or ``safetensors``; see ``write_dense_vectors``. With
    ``texts`` (parquet only) titles and texts go with them. From an index that keeps full
    vectors they are bit for bit those that were added.
    """
    from sluice.indexing import InvertedIndex, PseudoQueryIndex

    if form not in WRITTEN:
        raise ConfigError(f"format: {form!r}; known: {', '.join(WRITTEN)}{suggest(form, WRITTEN)}")
    if texts and form != "parquet":
        raise ConfigError(f"texts: {form} holds ids and vectors only; choose parquet")
    index: Any = retriever.index
    if holds_tokens(index):
        raise ConfigError(
            f"{retriever.path}: its index holds a vector for each token, and {form} one for each "
            "document; export_tokens writes npz and parquet"
        )
    if isinstance(index.innermost, PseudoQueryIndex):
        raise ConfigError(
            f"{retriever.path}: its index holds several vectors for each document, and {form} one; "
            "encode the texts in Python: PseudoQueryEncoder.encode_documents"
        )
    if issubclass(index.form, InvertedIndex):
        raise ConfigError(
            f"{retriever.path}: its index is an InvertedIndex; {form} holds dense vectors, sparse "
            "ones go to ciff, impact-json or vectors"
        )
    parts, entries = live_documents(retriever, CHUNK, texts=texts)
    dim = int(index.width or 0)
    chunks = map(index.documents, parts)
    count = write_dense_vectors(output, entries, chunks, form, dim=dim)
    return DenseExport(count, dim, index.metric or "ip", is_decoded(index, dim))


def is_decoded(index: Index, dim: int) -> bool:
    """Return whether an index keeps less than the full vectors, of ``dim`` float32 numbers."""
    from sluice.indexing.databases.index import DatabaseIndex

    if isinstance(index.innermost, DatabaseIndex):
        return index.innermost.rounds
    return bool(index.size_bytes < 4 * dim * index.rows)


def live_documents(
    retriever: Retriever, size: int, *, texts: bool
) -> tuple[list[NDArray[np.int64]], Iterable[Document] | Iterable[str]]:
    """Return the rows of the live documents, ``size`` at a time, and their ids or documents."""
    store = retriever.store
    live = np.delete(np.arange(store.rows_total), store.deleted)
    parts = [live[at : at + size] for at in range(0, len(live), size)]
    return parts, store if texts else chain.from_iterable(map(store.ids, parts))


def import_dense(
    path: str | Path,
    output: str | Path,
    form: str | None = None,
    *,
    documents: Iterable[Document] | None = None,
    encoder: Encoder | None = None,
    index: Index | None = None,
) -> Retriever:
    """Make a retriever folder of precomputed dense vectors; see ``read_dense_vectors``.

    Titles and texts are those of ``documents``, in any order: as many as vectors, with the same
    ids. Without them they come from the file, or are empty. ``encoder`` is the dense model that
    made the vectors; it encodes the queries, and if its vectors of the first documents differ
    from those in the file, one warning says by how much. Without one the encoder is a
    ``PrecomputedEncoder``. ``index`` is empty and defaults to ``FlatIndex()``.
    """
    from sluice.encoders.dense.precomputed import PrecomputedEncoder

    vectors = read_dense_vectors(path, form)
    queries = _no_encoder(vectors) if encoder is None else _fitting(encoder, vectors)
    texts = queries.texts if isinstance(queries, PrecomputedEncoder) else []
    with texts_beside(Path(output), documents) as stored:
        if encoder is not None:
            _compare(encoder, vectors, described(vectors, stored))
        return Retriever.build(
            queries,
            described(vectors, stored),
            vectors=vectors.chunks(),
            index=index,
            queries={text: text for text in texts} or None,
            path=Path(output),
            config={"imported": [str(path)], "format": vectors.form},
        )


@contextmanager
def texts_beside(
    folder: Path, documents: Iterable[Document] | None
) -> Iterator[DocumentStore | None]:
    """Keep documents beside a new folder while it is made; None where none are given.

    A folder that was not there before is removed if making it fails.
    """
    fresh = not folder.exists()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with new_draft(folder, folder=True) as draft:
        stored = None if documents is None else write_documents(draft / "texts", documents)
        try:
            yield stored
        except BaseException:
            if fresh:
                shutil.rmtree(folder, ignore_errors=True)
            raise


def _no_encoder(vectors: DenseVectors) -> Encoder:
    from sluice.encoders.dense.precomputed import PrecomputedEncoder

    return PrecomputedEncoder(dim=max(vectors.dim, 1))  # no vectors: any number is right


def _fitting(encoder: Any, vectors: DenseVectors) -> Encoder:
    """Return the encoder if its vectors are dense and as wide as those given."""
    empty = encoder.encode_documents([])
    kind = type(encoder).__name__
    if not isinstance(empty, np.ndarray):
        made = "sparse vectors" if sp.issparse(empty) else "a vector for each token"
        raise ConfigError(f"encoder: a {kind} makes {made}; expected a dense one")
    if empty.shape[1] != vectors.dim and len(vectors):
        raise ConfigError(
            f"encoder: this {kind} makes vectors of {empty.shape[1]} dimensions, but "
            f"{vectors.path} holds {vectors.dim}; name the model that made them"
        )
    fitting: Encoder = encoder
    return fitting


class Described(Protocol):
    """A file of vectors, as far as its ids and documents are concerned."""

    path: Path

    def __len__(self) -> int:
        """Return how many documents it has."""
        ...

    def documents(self) -> Iterator[Document]:
        """Yield them in order."""
        ...

    def ids(self) -> Iterator[str]:
        """Yield their ids in order."""
        ...


def described(vectors: Described, stored: DocumentStore | None) -> Iterator[Document]:
    """Yield the documents in the order of their vectors.

    ``DataError`` after the last one unless ids of documents and vectors are the same.
    """
    if stored is None:
        yield from vectors.documents()
        return
    absent, examples = 0, list[str]()
    has_vector = np.zeros(len(stored), dtype=np.bool_)
    ids = vectors.ids()
    while block := list(islice(ids, CHUNK)):
        rows = stored.rows(block)
        has_vector[rows[rows >= 0]] = True
        unknown = np.flatnonzero(rows < 0)
        absent += len(unknown)
        examples += [block[at] for at in unknown[: 3 - len(examples)].tolist()]
        if not absent:
            yield from stored.documents(rows)
    if absent:
        raise DataError(
            f"{vectors.path}: {absent:,} of {len(vectors):,} ids are not in the corpus "
            f"({', '.join(map(repr, examples))}); is it the corpus that was encoded?"
        )
    left = np.flatnonzero(~has_vector)
    if len(left):
        shown = ", ".join(map(repr, stored.ids(left[:3])))
        raise DataError(
            f"{vectors.path}: {len(left):,} of {len(stored):,} documents of the corpus have no "
            f"vector ({shown}); encode them too, or give the corpus without them"
        )


def _compare(encoder: Encoder, vectors: DenseVectors, documents: Iterator[Document]) -> None:
    """Warn if the encoder's own vectors of the first documents differ from those in the file."""
    from sluice.encoders.dense.precomputed import PrecomputedEncoder

    if isinstance(encoder, PrecomputedEncoder):
        return
    texts = [document.full_text for document in islice(documents, LOOKED_AT)]
    chosen = [place for place, text in enumerate(texts) if text]
    if not chosen:
        return
    own = np.asarray(encoder.encode_documents([texts[at] for at in chosen]), np.float64)
    imported = next(vectors.chunks())[chosen].astype(np.float64)
    lengths = np.linalg.norm(own, axis=1) * np.linalg.norm(imported, axis=1)
    cosines = (own * imported).sum(axis=1) / np.where(lengths > 0, lengths, 1.0)
    if cosines.min() < ALIKE:
        log.warning(
            "%s: its vectors of the first documents have cosines from %.4f to %.4f with those of "
            "the encoder; was another model, prompt or length used? Then queries do not fit",
            vectors.path,
            cosines.min(),
            cosines.max(),
        )


@dataclass(frozen=True, slots=True)
class DenseImport:
    """The options of ``sluice import`` for dense vectors; None is the default."""

    documents: Annotated[str | None, "SOURCE", "Texts by id: a corpus .jsonl, or a dataset."] = None
    encoder: Annotated[
        str | None, "MODEL", "The model that produced the vectors; it encodes queries."
    ] = None
    metric: Annotated[str | None, "ip, cosine or l2."] = None
    index: Annotated[str | None, "flat, a FAISS factory, or YAML: '{type: ...}'."] = None
    query_vectors: Annotated[Path | None, "Vectors of the queries that will be searched."] = None
    queries: Annotated[Path | None, "Texts of --query-vectors, by id."] = None


def import_job(inputs: Sequence[Path], output: Path, form: str, options: DenseImport) -> Retriever:
    """Make a retriever folder as the command line asks; see ``import_dense``."""
    if len(inputs) != 1:
        raise ConfigError(
            f"{form}: {len(inputs)} inputs; expected one (a folder of parquet files is one)"
        )
    if options.encoder is not None and options.query_vectors is not None:
        raise ConfigError("--encoder and --query-vectors: give one; the model encodes queries")
    if options.queries is not None and options.query_vectors is None:
        raise ConfigError("--queries: needs --query-vectors, whose texts they are")
    return import_dense(
        inputs[0],
        output,
        form,
        documents=None if options.documents is None else corpus_of(options.documents),
        encoder=_encoder(options, inputs[0], form),
        index=index_of(options.index or DEFAULT, options.metric),
    )


def index_of(text: str, metric: str | None) -> Index:
    """Return the empty index that ``text`` names.

    It is a type (``flat``, ``auto``), a component (``{type: funnel, dimensions: 64}``), or a
    factory string of FAISS (``HNSW32``).
    """
    import yaml

    from sluice.encoders.foundation.build import build
    from sluice.encoders.foundation.input.plain_yaml import load_yaml

    try:
        spec = load_yaml(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"index: {text!r:.200} is not YAML ({error})") from None
    if not isinstance(spec, dict):
        known = text in INDEXES
        spec = {"type": text} if known else {"type": BY_FACTORY, "factory": text}
    if metric is not None:
        spec = {"metric": metric, **spec}
        if spec["metric"] != metric:
            raise ConfigError(f"metric: {metric!r}, but {spec['metric']!r} in the index; give one")
    index: Index = build(spec, INDEXES, where="index")
    return index


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


def corpus_of(name: str) -> Iterable[Document]:
    """Return the documents of a corpus file or a dataset."""
    from sluice.retrieval.datasets.beir import read_documents
    from sluice.retrieval.datasets.dataset import load_dataset

    if name.endswith((".jsonl", ".jsonl.gz")):
        return read_documents(Path(name))
    return load_dataset(name, split=None).corpus


def _encoder(options: DenseImport, vectors: Path, form: str) -> Any:
    if options.encoder is not None:
        from sluice.encoders.model_files.registry import open_encoder

        return open_encoder(options.encoder)
    if options.query_vectors is None:
        return None
    from sluice.retrieval.datasets.beir import read_queries

    texts = None if options.queries is None else dict(read_queries(options.queries))
    dim = read_dense_vectors(vectors, form).dim
    return query_encoder(read_dense_vectors(options.query_vectors), dim, texts)
