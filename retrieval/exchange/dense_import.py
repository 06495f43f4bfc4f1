"""``sluice import`` of dense vectors: the options by name, and what they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.documents.document import Document
from sluice.retrieval.exchange.dense.vectors import DenseVectors, read_dense_vectors
from sluice.retrieval.exchange.dense_retrievers import import_dense
from sluice.retrieval.retrievers.retriever import Retriever

if TYPE_CHECKING:
    from sluice.encoders.encoder import Encoder
    from sluice.indexing import Index


@dataclass(frozen=True, slots=True)
class DenseImport:
    """What to import vectors with; None is the default."""

    documents: str | None = None  # a corpus file or a dataset
    encoder: str | None = None  # a model's folder or hub id
    metric: str | None = None
    index: str | None = None  # see ``index_of``
    query_vectors: Path | None = None
    queries: Path | None = None  # the texts of query_vectors


def import_job(inputs: Sequence[Path], output: Path, form: str, options: DenseImport) -> Retriever:
    """Make a retriever folder as the command line asks; see ``import_dense``."""
    if len(inputs) != 1:
        raise ConfigError(
            f"{form}: {len(inputs)} inputs; expected one (a folder of parquet files is one)"
        )
    if options.encoder is not None and options.query_vectors is not None:
        raise ConfigError("--encoder and --query-vectors: give one; the model encodes queries")
    if options.queries is not None and options.query_vectors is None:
        raise ConfigError("--queries: the texts of --query-vectors, which is not given")
    return import_dense(
        inputs[0],
        output,
        form,
        documents=None if options.documents is None else _corpus(options.documents),
        encoder=_encoder(options, inputs[0], form),
        index=index_of(options.index or "flat", options.metric),
    )


def index_of(text: str, metric: str | None) -> Index:
    """Return the empty index that ``text`` names.

    It is a type (``flat``, ``auto``), a component (``{type: funnel, dimensions: 64}``), or a
    factory string of FAISS (``HNSW32``).
    """
    import yaml

    from sluice.encoders.foundation.build import build
    from sluice.indexing.table import INDEXES

    try:
        spec = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"index: {text!r} is not YAML ({error})") from None
    if not isinstance(spec, dict):
        known = text in INDEXES
        spec = {"type": text} if known else {"type": "faiss", "factory": text}
    if metric is not None:
        spec = {"metric": metric, **spec}
        if spec["metric"] != metric:
            raise ConfigError(f"metric: {metric!r}, and {spec['metric']!r} in the index; give one")
    made: Index = build(spec, INDEXES, where="index")
    return made


def query_encoder(
    vectors: DenseVectors, dim: int, queries: Mapping[str, str] | None = None
) -> Encoder:
    """Return a ``PrecomputedEncoder`` of a file of query vectors.

    Their texts are in the file, or in ``queries`` by id. A text that two queries share is taken
    once.
    """
    from sluice.encoders.dense.precomputed import PrecomputedEncoder

    if vectors.dim != dim and len(vectors):
        raise DataError(
            f"{vectors.path}: {vectors.dim} dimensions, and the documents have {dim}; one model "
            "makes both"
        )
    found = list(vectors.documents())
    if queries is None and not vectors.has_texts:
        raise DataError(
            f"{vectors.path}: ids without texts; give the queries' texts (--queries), or a file "
            "with a column 'text'"
        )
    unknown = [each.id for each in found if queries is not None and each.id not in queries]
    if unknown:
        raise DataError(
            f"{vectors.path}: {len(unknown):,} of {len(found):,} ids are not among the queries "
            f"({', '.join(map(repr, unknown[:3]))})"
        )
    texts = [each.full_text if queries is None else queries[each.id] for each in found]
    places = {text: place for place, text in reversed(list(enumerate(texts)))}
    kept = sorted(places.values())
    return PrecomputedEncoder([texts[at] for at in kept], vectors.array()[kept], dim=dim)


def _corpus(name: str) -> Iterable[Document]:
    from sluice.retrieval.datasets.beir_files import read_documents
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
    from sluice.retrieval.datasets.beir_files import read_queries

    texts = None if options.queries is None else dict(read_queries(options.queries))
    dim = read_dense_vectors(vectors, form).dim
    return query_encoder(read_dense_vectors(options.query_vectors), dim, texts)
