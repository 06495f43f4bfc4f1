"""Writes the weights of a retriever's terms, as they are or in whole numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.lexical.bm25 import BM25Encoder
from sluice.retrieval.exchange.formats.format import Format
from sluice.retrieval.exchange.vector_files import terms_of, write_query_vectors

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from sluice.retrieval.retrievers.retriever import Retriever

CHUNK = 16_384  # documents held at a time
EXACT = 2**24  # float32 holds every whole number up to here


@dataclass(slots=True)
class Survey:
    """Counts over sparse vectors, taken before they are quantised."""

    documents: int
    frequencies: NDArray[np.int64]  # [terms] documents with the term
    largest: NDArray[np.float32]  # [terms] the term's largest weight
    whole: bool  # every weight is a whole number


def survey_weights(chunks: Iterable[csr_array[Any]], terms: int) -> Survey:
    """Count the documents and weights of ``chunks``, which have at most ``terms`` columns."""
    survey = Survey(0, np.zeros(terms, np.int64), np.zeros(terms, np.float32), True)
    for chunk in chunks:
        used = chunk.indices[chunk.data > 0]
        survey.documents += int(chunk.shape[0])
        survey.frequencies += np.bincount(used, minlength=terms)
        np.maximum.at(survey.largest, chunk.indices, chunk.data)
        survey.whole = survey.whole and bool((chunk.data == np.rint(chunk.data)).all())
    return survey


class Quantiser:
    """Rounds ``scale`` times a weight to the nearest integer and counts the loss.

    ``factors`` are multiplied in first, one a term. ``lost`` weights became zero; of the others
    ``largest_error`` is the largest of ``|rounded / scale - weight| / weight``.
    """

    def __init__(self, scale: float, factors: NDArray[np.float64] | None = None) -> None:
        self.scale = scale
        self.postings = 0
        self.lost = 0
        self.largest_error = 0.0
        self._factors = factors

    def __call__(self, chunk: csr_array[Any]) -> csr_array[Any]:
        """Return the chunk in whole numbers, float32, without zeros."""
        import scipy.sparse as sp

        weights = chunk.data.astype(np.float64)
        if self._factors is not None:
            weights *= self._factors[chunk.indices]
        rounded = np.rint(weights * self.scale)
        positive = rounded > 0
        relative = np.abs(rounded[positive] / self.scale / weights[positive] - 1.0)
        self.postings += int(np.count_nonzero(positive))
        self.lost += int(np.count_nonzero((weights > 0) & ~positive))
        self.largest_error = max(self.largest_error, float(relative.max(initial=0.0)))
        quantised = sp.csr_array(
            (rounded.astype(np.float32), chunk.indices, chunk.indptr), shape=chunk.shape
        )
        quantised = quantised.copy()
        quantised.eliminate_zeros()
        return quantised


@dataclass(frozen=True, slots=True)
class SparseExport:
    """What was written, and what rounding lost: see ``Quantiser``."""

    documents: int
    terms: int
    postings: int
    scale: float  # weight written = round(scale * impact); 1 is the impact itself
    idf: str  # of BM25: in the "documents'" or the "queries'" weights; "" for other encoders
    lost: int
    largest_error: float

    def __str__(self) -> str:
        parts = [f"{self.documents:,} documents, {self.terms:,} terms, {self.postings:,} postings"]
        if self.idf:
            parts.append(f"BM25's idf is in the {self.idf} weights")
        if self.scale != 1.0:
            parts.append(
                f"weight = round({self.scale:.6g} x impact): {self.lost:,} became 0, the largest "
                f"relative error of the others is {self.largest_error:.3g}"
            )
        return "; ".join(parts)


def export_weights(
    retriever: Retriever,
    output: str | Path,
    form: Format,
    quantise: int | None,
    scale: float | None,
    queries: Mapping[str, str] | None,
) -> SparseExport:
    """Write the weights of a retriever's terms; see ``export_retriever``."""
    if not form.whole and (quantise is not None or scale is not None):
        raise ConfigError(f"{form.name}: lossless; quantise and scale are for ciff and impact-json")
    if quantise is not None and scale is not None:
        raise ConfigError("quantise and scale: give one of them")
    encoder, terms = retriever.encoder, terms_of(retriever.encoder)
    survey = survey_weights(live_weights(retriever), len(terms))
    factors = idf_of(encoder) if form.whole else None
    quantiser = Quantiser(1.0, factors)
    weights = live_weights(retriever)
    if form.whole:
        quantiser.scale = _scale(form, survey, factors, quantise, scale)
        weights = map(quantiser, weights)
    header = {"description": _description(quantiser, factors)} if form.described else {}
    assert form.write is not None
    form.write(Path(output), retriever.store, terms, weights, **header)
    if queries is not None:
        _write_queries(Path(f"{output}.queries.jsonl"), encoder, terms, queries, factors)
    idf = "documents'" if form.whole else "queries'"
    return SparseExport(
        documents=survey.documents,
        terms=int(np.count_nonzero(survey.frequencies)),
        postings=quantiser.postings or int(survey.frequencies.sum()),
        scale=quantiser.scale,
        idf=idf if isinstance(encoder, BM25Encoder) else "",
        lost=quantiser.lost,
        largest_error=quantiser.largest_error,
    )


def live_weights(retriever: Retriever) -> Iterator[csr_array[Any]]:
    """Yield the live documents' stored weights, a chunk at a time."""
    return map(retriever.index.documents, live_parts(retriever, CHUNK))


def live_parts(retriever: Retriever, size: int) -> list[NDArray[np.int64]]:
    """Return the rows of the live documents, ``size`` at a time."""
    live = retriever.store.live_rows
    return [live[start : start + size] for start in range(0, len(live), size)]


def idf_of(encoder: Any) -> NDArray[np.float64] | None:
    """Return BM25's weights on the query's side, one a term; None for other encoders."""
    if not isinstance(encoder, BM25Encoder):
        return None
    if encoder.fields is not None:
        raise ConfigError(
            f"BM25 over the fields {', '.join(encoder.fields)}: its idf and weights differ by "
            "field, which one weight a term cannot hold; export vectors, and the queries with them"
        )
    return encoder.idf()


def _scale(
    form: Format,
    survey: Survey,
    factors: NDArray[np.float64] | None,
    quantise: int | None,
    scale: float | None,
) -> float:
    weights = survey.largest if factors is None else survey.largest * factors
    largest = float(weights.max(initial=0.0))
    if scale is not None:
        if not 0 < scale < math.inf:
            raise ConfigError(f"scale: {scale!r}; expected a number above 0")
        if scale * largest > EXACT:
            raise ConfigError(
                f"scale: {scale!r} times the largest weight, {largest:.6g}, is above 2^24, up to "
                "which whole numbers are exact; give a smaller scale"
            )
        return scale
    if quantise is not None and not 0 < quantise <= EXACT:
        raise ConfigError(f"quantise: {quantise!r}; expected a whole number from 1 to 2^24")
    if quantise is None and survey.whole and factors is None:
        return 1.0
    if quantise is None and form.scale is not None:
        return form.scale
    most = form.largest if quantise is None else quantise
    return most / largest if largest and most else 1.0


def _description(quantiser: Quantiser, factors: NDArray[np.float64] | None) -> str:
    """Return what a file's header says of the weights."""
    what = "impacts" if factors is None else "BM25 impacts, idf included"
    return f"Exported by Sluice: {what}; weight = round({quantiser.scale!r} * impact)"


def _write_queries(
    path: Path,
    encoder: Any,
    terms: Sequence[str],
    queries: Mapping[str, str],
    factors: NDArray[np.float64] | None,
) -> None:
    vectors = encoder.encode_queries(list(queries.values()))
    if factors is not None:  # what is in the documents' weights must not count twice
        vectors.data = (vectors.data / factors[vectors.indices]).astype(np.float32)
    write_query_vectors(path, list(queries), terms, vectors)
