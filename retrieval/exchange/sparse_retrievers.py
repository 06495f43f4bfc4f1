"""Exports sparse retrievers as CIFF, impact JSON or folders of vectors, and imports these."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.retrieval.exchange.dense.vectors import FORMS as DENSE
from sluice.retrieval.exchange.query_vectors import terms_of, write_query_vectors
from sluice.retrieval.exchange.sparse.ciff import CiffFile, write_ciff
from sluice.retrieval.exchange.sparse.impact_json import ImpactFiles, write_impact_json
from sluice.retrieval.exchange.sparse.vectors_folder import (
    Quantiser,
    Survey,
    VectorsFolder,
    surveyed,
    write_vectors,
)
from sluice.retrieval.retrievers.retriever import Retriever

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from sluice.indexing import Index

FORMATS = ("ciff", "impact-json", "vectors")
CHUNK = 16_384  # documents held at a time
LARGEST = {"ciff": 255}  # the largest weight by default; impact JSON is written as round(100 w)
SCALE = 100.0
EXACT = 2**24  # float32 holds every whole number up to here


@dataclass(frozen=True, slots=True)
class Export:
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


def export_retriever(
    retriever: Retriever,
    output: str | Path,
    form: str,
    *,
    quantise: Annotated[int | None, "The largest weight becomes N."] = None,
    scale: Annotated[float | None, "A weight becomes round(X impact)."] = None,
    queries: Mapping[str, str] | None = None,
) -> Export:
    """Write the documents of a retriever whose index is inverted; deleted ones are left out.

    ``ciff`` and ``impact-json`` hold whole numbers: ``quantise`` makes the largest weight that
    number (CIFF's default is 255), ``scale`` multiplies every weight (impact JSON's default is
    100); weights that are whole numbers already are written as they are. BM25's idf is put into
    the documents' weights there. ``vectors`` is lossless. ``queries`` (id to text) are encoded and
    their vectors, such that scores stay proportional, written to ``OUTPUT.queries.jsonl``.
    """
    _check_format(form)
    if form == "vectors" and (quantise is not None or scale is not None):
        raise ConfigError("vectors: lossless; quantise and scale are for ciff and impact-json")
    if quantise is not None and scale is not None:
        raise ConfigError("quantise and scale: give one of them")
    chunks = stored_chunks(retriever)
    encoder, terms = retriever.encoder, terms_of(retriever.encoder)
    survey = surveyed(chunks(), len(terms))
    factors = None if form == "vectors" else idf_of(encoder)
    quantiser = Quantiser(1.0, factors)
    if form != "vectors":
        quantiser.scale = _scale(form, survey, factors, quantise, scale)
    quantised = map(quantiser, chunks())
    if form == "vectors":
        write_vectors(output, retriever.store, terms, chunks())
    elif form == "ciff":
        write_ciff(
            output, retriever.store, terms, quantised, description=_description(quantiser, factors)
        )
    else:
        write_impact_json(output, retriever.store, terms, quantised)
    if queries is not None:
        _write_queries(Path(f"{output}.queries.jsonl"), encoder, terms, queries, factors)
    return Export(
        documents=survey.documents,
        terms=int(np.count_nonzero(survey.frequencies)),
        postings=quantiser.postings or int(survey.frequencies.sum()),
        scale=quantiser.scale,
        idf=_idf_side(encoder, form),
        lost=quantiser.lost,
        largest_error=quantiser.largest_error,
    )


def import_retriever(
    inputs: Sequence[str | Path] | str | Path,
    output: str | Path,
    form: str,
    *,
    language: str | None = None,
    index: Index | None = None,
) -> Retriever:
    """Make a retriever folder of exchanged vectors; several inputs are for impact JSON only.

    Its encoder is a ``VocabularyEncoder``: queries are split at white space, or analysed when
    ``language`` is given, and count terms. ``index`` is empty and defaults to ``InvertedIndex()``.
    """
    from sluice.encoders.lexical.vocabulary import VocabularyEncoder

    _check_format(form)
    paths = [Path(path) for path in ([inputs] if isinstance(inputs, str | Path) else inputs)]
    if not paths or (len(paths) > 1 and form != "impact-json"):
        raise ConfigError(f"{form}: {len(paths)} inputs; expected one (impact-json takes several)")
    source: CiffFile | ImpactFiles | VectorsFolder
    if form == "ciff":
        source = CiffFile(paths[0])
    elif form == "vectors":
        source = VectorsFolder(paths[0])
    else:
        source = ImpactFiles(paths)
    encoder = VocabularyEncoder(language=language)
    folder = Path(output)
    fresh = not folder.exists()
    try:
        return Retriever.build(
            encoder,
            source.documents(),
            vectors=source.vectors(encoder.column),
            index=index,
            path=folder,
            config={"imported": [str(path) for path in paths], "format": form},
        )
    except BaseException:
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def stored_chunks(retriever: Retriever) -> Callable[[], Iterator[csr_array[Any]]]:
    """Return a function that yields the live documents' stored impacts, a chunk at a time."""
    index, store = retriever.index, retriever.store
    if index.by_passages:
        raise ConfigError(
            f"{retriever.path}: its documents are indexed in passages, and files hold vectors by "
            "document; export an index of whole documents"
        )
    if not holds_terms(index):
        raise ConfigError(
            f"{retriever.path}: its index is a {type(index).__name__}; exchange formats hold the "
            "sparse vectors of an InvertedIndex; dense ones go to npy, parquet or safetensors"
        )
    live = np.delete(np.arange(store.rows_total), store.deleted)

    def chunks() -> Iterator[csr_array[Any]]:
        for start in range(0, len(live), CHUNK):
            yield index.documents(live[start : start + CHUNK])

    return chunks


def holds_terms(index: Index) -> bool:
    """Return whether an index holds weights of terms: inverted, or in a database."""
    from sluice.indexing import InvertedIndex
    from sluice.indexing.databases.index import DatabaseIndex

    if issubclass(index.form, DatabaseIndex):
        return index.innermost.metric is None
    return issubclass(index.form, InvertedIndex)


def idf_of(encoder: Any) -> NDArray[np.float64] | None:
    """Return BM25's weights on the query's side, one a term; None for other encoders."""
    from sluice.encoders.lexical.bm25 import BM25Encoder

    if not isinstance(encoder, BM25Encoder):
        return None
    if encoder.fields is not None:
        raise ConfigError(
            f"BM25 over the fields {', '.join(encoder.fields)}: its idf and weights differ by "
            "field, which one weight a term cannot hold; export vectors, and the queries with them"
        )
    return encoder.idf()


def _idf_side(encoder: Any, form: str) -> str:
    from sluice.encoders.lexical.bm25 import BM25Encoder

    if not isinstance(encoder, BM25Encoder):
        return ""
    return "queries'" if form == "vectors" else "documents'"


def _scale(
    form: str,
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
    if quantise is None and form not in LARGEST:
        return SCALE
    most = LARGEST.get(form) if quantise is None else quantise
    return most / largest if largest and most else 1.0


def _description(quantiser: Quantiser, factors: NDArray[np.float64] | None) -> str:
    """Return the header's description."""
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


def _check_format(form: str) -> None:
    if form not in FORMATS:
        raise ConfigError(
            f"format: {form!r}; known: {', '.join(FORMATS)} (sparse), {', '.join(DENSE)} (dense: "
            f"see sluice.retrieval.exchange.dense_retrievers){suggest(form, [*FORMATS, *DENSE])}"
        )
