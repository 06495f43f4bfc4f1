"""Reads and writes query vectors, searches with them, and makes an encoder of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.disk.files import packed_file
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.progress import progress
from sluice.retrieval.documents.jsonl import read_objects
from sluice.retrieval.exchange.formats.sparse_files import id_of, matrix_of, weights_of
from sluice.retrieval.exchange.vector_files import DenseVectors, index_kind, read_dense_vectors
from sluice.retrieval.runs.run import Run

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from sluice.encoders.encoder import Encoder
    from sluice.retrieval.retrievers.retriever import Retriever

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
