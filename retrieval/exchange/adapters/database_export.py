"""Writes retrievers as the files that databases load, and brings an index home from a database."""

from __future__ import annotations

import json
import tempfile
from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import plural
from sluice.indexing.databases.index import DatabaseIndex
from sluice.indexing.flat.index import FlatIndex
from sluice.indexing.inverted.index import InvertedIndex
from sluice.retrieval.exchange.adapters.database_files import Form, Record, Shape
from sluice.retrieval.exchange.formats.format import refuse_repeated
from sluice.retrieval.exchange.retriever_files import is_decoded
from sluice.retrieval.exchange.sparse_export import idf_of, live_parts, live_weights, survey_weights
from sluice.retrieval.exchange.vector_files import index_kind, terms_of
from sluice.retrieval.retrievers.folder.parts import refuse_foreign
from sluice.retrieval.retrievers.retriever import Retriever

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from sluice.indexing import Index


CHUNK = 1_024  # documents held at a time


class Side(ABC):
    """One retriever: the values of rows, and those of queries.

    ``field`` is that of a ``Record``. ``decoded``: the index keeps less than the full vectors.
    """

    kind: ClassVar[str]
    field: ClassVar[str]
    decoded = False

    def __init__(self, retriever: Retriever) -> None:
        self.retriever = retriever

    @abstractmethod
    def shape(self) -> dict[str, Any]:
        """Return its part of the ``Shape``."""

    @abstractmethod
    def values(self, rows: NDArray[np.int64]) -> Any:
        """Return a sequence with the value of each row."""

    @abstractmethod
    def queries(self, texts: Sequence[str]) -> list[Any]:
        """Return the value of each query, in the numbers that JSON has."""


class DenseSide(Side):
    """Vectors; those of an index of cosines at length 1."""

    kind, field = "dense", "vector"

    def __init__(self, retriever: Retriever) -> None:
        super().__init__(retriever)
        index = retriever.index
        self.dim, self._metric = int(index.width or retriever.encoder.dim), index.innermost.metric
        self.decoded = is_decoded(index, self.dim)

    def shape(self) -> dict[str, Any]:
        """Return the width, and how vectors of length 1 or as they are compare."""
        return {"dim": self.dim, "metric": "l2" if self._metric == "l2" else "ip"}

    def values(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return ``[len(rows), dim]``."""
        return self._scale_vectors(self.retriever.index.documents(rows))

    def queries(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a list of numbers for each query."""
        vectors = np.asarray(self.retriever.encoder.encode_queries(list(texts)), np.float32)
        if len(texts) and vectors.shape[1:] != (self.dim,):
            raise ConfigError(
                f"{self.retriever.path}: queries have {vectors.shape[1]:,} dimensions and "
                f"documents {self.dim:,}; databases compare vectors of one width"
            )
        return [
            [float(f"{value:.9g}") for value in row]
            for row in self._scale_vectors(vectors).tolist()
        ]

    def _scale_vectors(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        if self._metric != "cosine":
            return vectors
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        return (vectors / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


class SparseSide(Side):
    """Weights by term; BM25's idf is in those of the documents."""

    kind, field = "sparse", "terms"

    def __init__(self, retriever: Retriever) -> None:
        super().__init__(retriever)
        self._terms = terms_of(retriever.encoder)
        refuse_repeated(self._terms)
        self.factors = idf_of(retriever.encoder)

    def shape(self) -> dict[str, Any]:
        """Return the largest weight of a document, 0 where there is none, and where idf is."""
        survey = survey_weights(live_weights(self.retriever), len(self._terms))
        weights = survey.largest if self.factors is None else survey.largest * self.factors
        return {"largest": float(weights.max(initial=0.0)), "idf": self.factors is not None}

    def values(self, rows: NDArray[np.int64]) -> list[dict[str, float]]:
        """Return the weights above 0 of each row, by term."""
        matrix = self.retriever.index.documents(rows)
        weights = matrix.data.astype(np.float64)
        if self.factors is not None:
            weights *= self.factors[matrix.indices]
        return self._by_term(matrix, weights)

    def queries(self, texts: Sequence[str]) -> list[dict[str, float]]:
        """Return the weights above 0 of each query, by term, without BM25's idf."""
        matrix = self.retriever.encoder.encode_queries(list(texts))
        weights = matrix.data.astype(np.float64)
        if self.factors is not None:
            weights /= self.factors[matrix.indices]
        return self._by_term(matrix, weights)

    def _by_term(
        self, matrix: csr_array[Any], weights: NDArray[np.float64]
    ) -> list[dict[str, float]]:
        columns, ends = matrix.indices.tolist(), matrix.indptr.tolist()
        values = [float(f"{weight:.9g}") for weight in weights.astype(np.float32).tolist()]
        return [
            {
                self._terms[column]: value
                for column, value in zip(columns[begin:end], values[begin:end], strict=True)
                if value > 0
            }
            for begin, end in pairwise(ends)
        ]


def sides_of(retrievers: Sequence[Retriever]) -> Mapping[str, Side]:
    """Return what one or two retrievers give, by kind; ``ConfigError`` for two of one kind."""
    sides: dict[str, Side] = {}
    for retriever in retrievers:
        side = _side_of(retriever)
        if side.kind in sides:
            raise ConfigError(
                f"{retriever.path}: {side.kind}, and so is {sides[side.kind].retriever.path}; "
                "documents take the vectors of one dense and one sparse retriever"
            )
        sides[side.kind] = side
    return sides


def records(sides: Sequence[Side]) -> Iterator[Record]:
    """Yield the live documents of the first side, with the values of all, a chunk at a time."""
    store = sides[0].retriever.store
    for rows in live_parts(sides[0].retriever, CHUNK):
        documents = store.documents(rows)
        values = {sides[0].field: sides[0].values(rows)}
        for side in sides[1:]:
            places = side.retriever.store.rows([document.id for document in documents])
            if len(absent := np.flatnonzero(places < 0)):
                raise DataError(
                    f"{side.retriever.path}: no document {documents[absent[0]].id!r}, which "
                    f"{store.path} has; expected two retrievers of the same documents"
                )
            values[side.field] = side.values(places)
        for at, document in enumerate(documents):
            yield Record(document, **{field: each[at] for field, each in values.items()})


def _side_of(retriever: Retriever) -> Side:
    index, kind = retriever.index, index_kind(retriever.index)
    reason = ""
    if kind == "tokens":
        reason = "its index holds a vector for each token; export npz or parquet"
    elif index.by_passages:
        reason = "its documents are indexed in passages; export an index of whole documents"
    elif kind == "sparse":
        return SparseSide(retriever)
    elif index.innermost.metric is None:
        reason = f"its index is a {type(index).__name__}, which holds no vectors"
    elif kind != "dense":
        reason = "its index holds several vectors for each document"
    if reason:
        raise ConfigError(
            f"{retriever.path}: {reason}; a database's documents have one vector each"
        )
    return DenseSide(retriever)


FORM = "retriever"  # in the place of a database's name


def export_home(retriever: Retriever, output: Path, allow: Collection[str]) -> str:
    """Write a copy of a retriever whose index lies in a database, with an exact index of ours.

    Encoder, documents, rows and deletions stay, so the hits do; nothing is encoded, and the
    database is only read. ``output`` is written in one step. Returns what was written.
    ``ConfigError`` for an index that lies in no database.
    """
    index = retriever.index
    if not isinstance(index, DatabaseIndex):
        raise ConfigError(
            f"--format {FORM}: is for an index in PostgreSQL or Qdrant, one for whole documents; "
            f"that of {retriever.path} is of type {index.type_name}: its folder can be copied"
        )
    own: Index = InvertedIndex() if index.metric is None else FlatIndex(index.metric)
    refuse_foreign(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as work:
        draft = Path(work) / "draft"
        retriever.save(draft)
        copy = Retriever.open(draft, allow=allow, encoder=retriever.encoder)
        copy.move_index(own)
        copy.save(output)
    kind = f"index of type {own.type_name}"
    return f"{plural(len(retriever), 'document')}, {kind}, {own.size_bytes:,} bytes"


ROOM = "sluice.retrieval.exchange.adapters"
DATABASES: Final[Mapping[str, str]] = {
    "opensearch": f"{ROOM}.lucene:OpenSearchForm",
    "elasticsearch": f"{ROOM}.lucene:ElasticsearchForm",
    "vespa": f"{ROOM}.vespa:VespaForm",
    "weaviate": f"{ROOM}.vector_databases:WeaviateForm",
    "lancedb": f"{ROOM}.vector_databases:LanceForm",
}
DEPTH = 10  # hits that the searches in QUERIES ask for
QUERIES = "queries.jsonl"
MARKER = "export.json"  # what only a folder of this kind has: it may be replaced


@dataclass(frozen=True, slots=True)
class DatabaseExport:
    """What was written; ``decoded`` says that the index keeps less than the full vectors."""

    documents: int
    shape: Shape
    decoded: bool
    left_out: int  # weights that the database cannot hold
    replaced: int  # characters that the database cannot hold

    def __str__(self) -> str:
        parts = [f"{self.documents:,} documents"]
        if self.shape.dim:
            parts.append(f"vectors of {self.shape.dim:,} dimensions ({self.shape.metric})")
        if self.decoded:
            parts.append("decoded from the index's codes, which are lossy")
        if self.shape.terms:
            parts.append("weights of terms")
        if self.shape.idf:
            parts.append("BM25's idf is in the documents' weights")
        if self.left_out:
            parts.append(f"{self.left_out:,} weights left out, which the database cannot hold")
        if self.replaced:
            parts.append(f"{self.replaced:,} control characters in texts replaced by spaces")
        return "; ".join(parts)


def export_database(
    retriever: Retriever,
    output: str | Path,
    form: str,
    *,
    beside: Retriever | None = None,
    queries: Mapping[str, str] | None = None,
) -> DatabaseExport:
    """Write the folder ``output``: settings, documents, templates of queries, and a README.

    ``form`` is one of ``DATABASES``. ``beside`` is a second retriever of the same documents, so
    that these have a dense vector and weights of terms. Deleted documents are left out.
    ``queries`` (id to text) are encoded, and the bodies of their searches for the best 10 written
    to ``queries.jsonl``: ``{"id", "dense": body, "sparse": body}``; blank ones are left out.
    """
    if form not in DATABASES:
        known = ", ".join(DATABASES)
        raise ConfigError(f"format: {form!r}; known: {known}{suggest(form, DATABASES)}")
    kind: type[Form] = resolve(DATABASES[form])
    sides = sides_of([retriever] if beside is None else [retriever, beside])
    if "sparse" in sides and not kind.takes_terms:
        raise ConfigError(
            f"{sides['sparse'].retriever.path}: its vectors are weights of terms, which {form} "
            "cannot hold; export a dense retriever, or choose opensearch, elasticsearch, vespa or "
            "lancedb"
        )
    if beside is not None and len(beside) != len(retriever):
        raise DataError(
            f"{beside.path}: {len(beside):,} documents, and {retriever.path} has "
            f"{len(retriever):,}; expected two retrievers of the same documents"
        )
    writer = kind(Shape(**dict(ChainMap(*(side.shape() for side in sides.values())))))
    with replaced_folder(Path(output), markers=(MARKER,)) as folder:
        for name, text in writer.files().items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        count = writer.write(folder, records(list(sides.values())))
        report = DatabaseExport(
            documents=count,
            shape=writer.shape,
            decoded=any(side.decoded for side in sides.values()),
            left_out=writer.left_out,
            replaced=writer.replaced,
        )
        if queries is not None:
            texts = {name: text for name, text in queries.items() if text.strip()}
            values = {kind: side.queries(list(texts.values())) for kind, side in sides.items()}
            with (folder / QUERIES).open("w", encoding="utf-8") as stream:
                for at, name in enumerate(texts):
                    bodies = {
                        kind: writer.request(kind, each[at], DEPTH) for kind, each in values.items()
                    }
                    stream.write(json.dumps({"id": name, **bodies}, ensure_ascii=False) + "\n")
        facts = {"format": form, "documents": count, "exported": str(report)}
        (folder / MARKER).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return report
