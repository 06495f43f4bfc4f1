"""Writes retrievers as files of vectors in every format, and makes retrievers of such files."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sluice.encoders.dense.precomputed import PrecomputedEncoder
from sluice.encoders.foundation.disk.files import new_draft
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.lexical.vocabulary import VocabularyEncoder
from sluice.indexing.databases.index import DatabaseIndex
from sluice.indexing.table import BY_FACTORY, CALLED, INDEXES
from sluice.indexing.wrappers.sharded import ShardedIndex
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.ids import distinct
from sluice.retrieval.documents.store import DocumentStore, write_documents
from sluice.retrieval.exchange.formats.format import Format
from sluice.retrieval.exchange.sparse_export import SparseExport, export_weights, live_parts
from sluice.retrieval.exchange.vector_files import (
    CHUNK_ROWS,
    VectorFile,
    find_formats,
    format_names,
    format_of,
    index_kind,
    kind_of,
    query_encoder,
    read_dense_vectors,
    values_of,
    write_vectors,
)
from sluice.retrieval.retrievers.retriever import Retriever

if TYPE_CHECKING:
    from sluice.encoders.encoder import Encoder
    from sluice.indexing import Index

log = logging.getLogger("sluice")

CHUNK = 16_384  # ids held at a time
LOOKED_AT = 8  # documents encoded to see whether the encoder is the one
ALIKE = 0.99  # cosine above which two vectors are of one model, whatever the precision


@dataclass(frozen=True, slots=True)
class VectorExport:
    """What was written; ``decoded`` says that the index keeps less than the full vectors."""

    documents: int
    tokens: int | None  # of one vector a document: None
    dim: int
    metric: str
    decoded: bool

    def __str__(self) -> str:
        parts = [f"{self.documents:,} documents, {self.dim:,} dimensions, metric {self.metric}"]
        if self.tokens is not None:
            parts = [
                f"{self.documents:,} documents, {self.tokens:,} vectors of {self.dim} dimensions"
            ]
        if self.decoded:
            parts.append("decoded from the index's codes, which are lossy")
        return "; ".join(parts)


def export_retriever(
    retriever: Retriever,
    output: str | Path,
    form: str,
    *,
    texts: bool = False,
    quantise: int | None = None,
    scale: float | None = None,
    queries: Mapping[str, str] | None = None,
) -> VectorExport | SparseExport:
    """Write a retriever's live documents: ids and the vectors that its index holds, in row order.

    ``form`` names one of ``vector_files.FORMATS`` for the vectors' kind: dense, tokens or sparse.
    From an index that keeps full vectors they are bit for bit those that were added. With
    ``texts`` (parquet only) titles and texts go with them.

    ``ciff`` and ``impact-json`` hold whole numbers: ``quantise`` makes the largest weight that
    number (CIFF's default is 255), ``scale`` multiplies every weight (impact JSON's default is
    100); weights that are whole numbers already are written as they are. BM25's idf is put into
    the documents' weights there. ``vectors`` is lossless. ``queries`` (id to text) are encoded and
    their vectors, such that scores stay proportional, written to ``OUTPUT.queries.jsonl``.
    """
    chosen = _format_for(retriever, form)
    if texts and not chosen.texts:
        raise ConfigError(f"texts: {form} holds ids and vectors only; choose parquet")
    if chosen.kind == "sparse":
        return export_weights(retriever, output, chosen, quantise, scale, queries)
    _refuse({"quantise": quantise, "scale": scale, "queries": queries}, chosen)
    index: Any = retriever.index
    parts, tokens = live_parts(retriever, CHUNK_ROWS[chosen.kind]), 0

    def chunks() -> Iterator[Any]:
        nonlocal tokens
        for part in parts:
            vectors = index.documents(part)
            tokens += len(values_of(vectors))
            yield vectors

    ids = (name for part in parts for name in retriever.store.ids(part))
    entries = retriever.store if texts else ids
    dim = int(index.width or 0)
    count = write_vectors(output, entries, chunks(), chosen, dim=dim)
    several = None if chosen.kind == "dense" else tokens
    return VectorExport(count, several, dim, index.metric or "ip", is_decoded(index, dim))


def _format_for(retriever: Retriever, form: str) -> Format:
    """Return the format of a name for the vectors that a retriever's index holds."""
    formats, index, kind = find_formats(form), retriever.index, index_kind(retriever.index)
    fitting = next((each for each in formats if each.kind == kind), None)
    if fitting is None:
        known = " or ".join(", ".join(format_names(kind, written=True)).rsplit(", ", 1))
        advice = f"{CALLED[kind]} ones go to {known}"
        if not known:
            advice = "encode the texts in Python, with its encoder's encode_documents"
        raise ConfigError(
            f"{retriever.path}: its {type(index).__name__} holds {CALLED[kind]} vectors, and "
            f"{form} is for {CALLED[formats[0].kind]} vectors; {advice}"
        )
    if index.by_passages and kind != "dense":
        raise ConfigError(
            f"{retriever.path}: its documents are indexed in passages, and files hold vectors by "
            "document; export an index of whole documents"
        )
    return fitting


def _refuse(options: Mapping[str, object], form: Format) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"{name}: is not for the {CALLED[form.kind]} vectors of {form.name}")


def is_decoded(index: Any, dim: int) -> bool:
    """Return whether an index keeps less than the full vectors, of ``dim`` float32 numbers."""
    if index_kind(index) == "tokens":
        holder: Any = index.first if isinstance(index, ShardedIndex) else index.innermost
        return bool(holder.store != "float32")
    if isinstance(index.innermost, DatabaseIndex):
        return index.innermost.rounds
    return bool(index.size_bytes < 4 * dim * index.rows)


def import_retriever(
    inputs: Sequence[str | Path] | str | Path,
    output: str | Path,
    form: str | None = None,
    *,
    documents: Iterable[Document] | None = None,
    encoder: Encoder | None = None,
    index: Index | None = None,
    language: str | None = None,
) -> Retriever:
    """Make a retriever folder of the vectors in files; several are for impact JSON only.

    Titles and texts are those of ``documents``, in any order: as many as vectors, with the same
    ids. Without them they come from the file, or are empty. ``encoder`` is the model that made
    dense or token vectors; it encodes the queries, and if its vectors of the first documents differ
    from those in the file, one warning says by how much. Dense ones need none: the encoder is then
    a ``PrecomputedEncoder``. That of sparse ones is a ``VocabularyEncoder``: queries are split at
    white space, or analysed when ``language`` is given, and count terms. ``index`` is empty and
    defaults to the usual one.
    """
    paths = [Path(path) for path in ([inputs] if isinstance(inputs, str | Path) else inputs)]
    chosen = input_format(paths, form)
    sparse = chosen.kind == "sparse"
    foreign = {"documents": documents, "encoder": encoder} if sparse else {"language": language}
    _refuse(foreign, chosen)
    config = {"imported": [str(path) for path in paths], "format": chosen.name}
    build = partial(Retriever.build, index=index, path=Path(output), config=config)
    if sparse:
        source = chosen.source(paths if chosen.several else paths[0])
        terms = VocabularyEncoder(language=language)
        with draft_texts(Path(output), None):
            return build(terms, distinct(source.documents), vectors=source.vectors(terms.column))
    file: VectorFile[Any] = VectorFile(paths[0], chosen)
    if encoder is None and chosen.kind == "dense":
        encoder = PrecomputedEncoder(dim=max(file.dim, 1))  # no vectors: any number is right
    elif encoder is None:
        raise ConfigError(f"--encoder: missing; {file.path} holds token vectors: name their model")
    else:
        _check_encoder(encoder, file)
    texts = encoder.texts if isinstance(encoder, PrecomputedEncoder) else None
    with draft_texts(Path(output), documents) as stored:
        if texts is None:
            _compare(encoder, file, documents_of(file, stored))
        queries = {text: text for text in texts or ()} or None
        return build(encoder, documents_of(file, stored), vectors=file.chunks(), queries=queries)


def input_format(paths: Sequence[Path], form: str | None) -> Format:
    """Return the format of the files to read; ``ConfigError`` for more than it takes."""
    several = form is not None and find_formats(form)[0].several
    if not paths or (len(paths) > 1 and not several):
        raise ConfigError(
            f"{form}: {len(paths)} inputs; expected one (impact-json takes several, and a folder "
            "of parquet files is one)"
        )
    return format_of(paths[0], form)


@contextmanager
def draft_texts(
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


def _check_encoder(encoder: Any, file: VectorFile[Any]) -> None:
    """Raise ``ConfigError`` unless an encoder makes vectors of a file's kind and width."""
    empty, name = encoder.encode_documents([]), type(encoder).__name__
    kind, width = kind_of(empty), values_of(empty).shape[1]
    if kind != file.kind:
        raise ConfigError(
            f"encoder: a {name} makes {CALLED[kind]} vectors, and {file.path} holds "
            f"{CALLED[file.kind]} ones; name the model that made them"
        )
    if width != file.dim and len(file):
        raise ConfigError(
            f"encoder: this {name} makes vectors of {width} dimensions, but {file.path} holds "
            f"{file.dim}; name the model that made them"
        )


def documents_of(vectors: VectorFile[Any], stored: DocumentStore | None) -> Iterator[Document]:
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


def _compare(encoder: Any, file: VectorFile[Any], documents: Iterator[Document]) -> None:
    """Warn if the encoder's own vectors of the first documents differ from those in the file."""
    texts = [document.full_text for document in islice(documents, LOOKED_AT)]
    chosen = [place for place, text in enumerate(texts) if text]
    if not chosen:
        return
    own = encoder.encode_documents([texts[place] for place in chosen])
    imported = next(file.chunks())[chosen]
    dense, difference = file.kind == "dense", "other numbers of tokens"
    if dense or (own.lengths == imported.lengths).all():
        one, other = (np.asarray(values_of(each), np.float64) for each in (own, imported))
        lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        cosines = (one * other).sum(axis=1) / np.where(lengths > 0, lengths, 1.0)
        if (cosines.min() if dense else cosines.mean()) >= ALIKE:
            return
        difference = f"a mean cosine of {cosines.mean():.4f}"
        if dense:
            difference = f"cosines from {cosines.min():.4f} to {cosines.max():.4f}"
    log.warning(
        "%s: its vectors of the first documents have %s beside the encoder's; was another model, "
        "prompt or length used? Then queries do not fit",
        file.path,
        difference,
    )


def index_of(text: str, metric: str | None) -> Index:
    """Return the empty index that ``text`` names.

    It is a type (``flat``, ``auto``), a component (``{type: funnel, dimensions: 64}``), or a
    factory string of FAISS (``HNSW32``).
    """
    from sluice.encoders.foundation.bounded_input import yaml_value
    from sluice.encoders.foundation.build import build

    spec = yaml_value(text, "index")
    if not isinstance(spec, dict):
        known = text in INDEXES
        spec = {"type": text} if known else {"type": BY_FACTORY, "factory": text}
    if metric is not None:
        spec = {"metric": metric, **spec}
        if spec["metric"] != metric:
            raise ConfigError(f"metric: {metric!r}, but {spec['metric']!r} in the index; give one")
    index: Index = build(spec, INDEXES, where="index")
    return index


def corpus_of(name: str) -> Iterable[Document]:
    """Return the documents of a corpus file or a dataset."""
    from sluice.retrieval.datasets.beir import read_documents
    from sluice.retrieval.datasets.dataset import load_dataset

    if name.endswith((".jsonl", ".jsonl.gz")):
        return read_documents(Path(name))
    return load_dataset(name, split=None).corpus


def encoder_of(model: str | None, vectors: Path | None, queries: Path | None, dim: int) -> Any:
    """Return what encodes queries: a model, or the vectors of given ones; None without either."""
    if model is not None:
        from sluice.encoders.model_files.registry import open_encoder

        return open_encoder(model)
    if vectors is None:
        return None
    from sluice.retrieval.datasets.beir import read_queries

    texts = None if queries is None else dict(read_queries(queries))
    return query_encoder(read_dense_vectors(vectors), dim, texts)
