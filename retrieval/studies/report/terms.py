"""Explains the report's queries by sparse retrievers: terms, expansions, parts of scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import SluiceError
from sluice.retrieval.retrievers.explanation import term_texts
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.studies.report.distributions import figures, histogram
from sluice.retrieval.studies.report.evaluated import EvaluatedSet

QUERY_TERMS = 24  # of a query: the heaviest
DOCUMENT_TERMS = 6  # of a document's score: the largest parts
COUNTED = 5000  # documents whose terms are counted

DocIds = Mapping[str, Sequence[str]]  # query id -> documents whose scores are explained


class TermReader:
    """Explains scores of one sparse retriever, many documents of a query at once.

    The parts are those of ``Retriever.explain``, from the index's stored impacts.
    """

    def __init__(self, retriever: Retriever) -> None:
        from sluice.indexing.inverted.index import InvertedIndex
        from sluice.indexing.wrappers.passages import PassageIndex
        from sluice.indexing.wrappers.sharded import ShardedIndex

        self.retriever = retriever
        self.store = retriever.store
        searched: Any = retriever.index
        self.passages = searched if isinstance(searched, PassageIndex) else None
        self.index: Any = searched.innermost
        by_passages = isinstance(searched, ShardedIndex) and searched.by_passages
        self.sparse = issubclass(self.index.form, InvertedIndex) and not by_passages
        self._texts: dict[int, str] = {}

    @property
    def encoder(self) -> Any:
        """The retriever's encoder, loaded when the first query needs it."""
        return self.retriever.encoder

    def query(self, text: str, vector: Any) -> dict[str, Any]:
        """Return a query's heaviest terms, marking those that are not in its text as expansion."""
        order = np.lexsort((vector.indices, -vector.data))[:QUERY_TERMS]
        columns = vector.indices[order].tolist()
        tokenizer = hooks_of(self.encoder).tokenizer
        own = None if tokenizer is None else set(tokenizer(text)["input_ids"])
        terms = zip(self.terms(columns), figures(vector.data[order], 3), columns, strict=True)
        return {
            "count": int(vector.nnz),
            "terms": [
                [term, weight, int(own is not None and column not in own)]
                for term, weight, column in terms
            ],
        }

    def parts(self, vector: Any, doc_ids: Sequence[str]) -> dict[str, list[list[Any]]]:
        """Return the largest parts of documents' scores as (term, contribution), largest first.

        Documents that are not in the store, or share no term with the query, are left out.
        """
        ids, rows = self._rows(vector, doc_ids)
        if not len(rows) or not vector.nnz:
            return {}
        weights = np.zeros(vector.shape[1], dtype=np.float32)
        weights[vector.indices] = vector.data
        matrix = self.index.documents(rows)
        explained = {}
        for place, doc_id in enumerate(ids):
            begin, end = matrix.indptr[place], matrix.indptr[place + 1]
            columns = matrix.indices[begin:end]
            known = columns < len(weights)
            columns = columns[known]
            values = weights[columns] * matrix.data[begin:end][known]
            shared = np.flatnonzero(values > 0).tolist()
            texts = self.terms([int(columns[at]) for at in shared])
            parts = [(text, float(values[at])) for text, at in zip(texts, shared, strict=True)]
            parts.sort(key=lambda part: (-part[1], part[0]))
            if parts:
                explained[doc_id] = [
                    [text, figures([part], 3)[0]] for text, part in parts[:DOCUMENT_TERMS]
                ]
        return explained

    def _rows(self, vector: Any, doc_ids: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
        """Return the stored documents and their rows; with passages, the row of the best one."""
        rows = self.store.rows(list(doc_ids))
        stored = rows >= 0
        rows, ids = rows[stored], [doc for doc, has in zip(doc_ids, stored, strict=True) if has]
        if self.passages is None or not len(rows):
            return ids, rows
        from scipy import sparse

        queries = sparse.vstack([vector] * len(rows), format="csr")
        best = self.passages.best_passages(queries, rows).rows[:, 0]
        valid = [place for place, row in enumerate(best) if row >= 0]
        return [ids[place] for place in valid], best[valid]

    def terms(self, columns: Sequence[int]) -> list[str]:
        """Return the texts of columns, looking each up once."""
        new = [column for column in columns if column not in self._texts]
        self._texts.update(zip(new, term_texts(self.encoder, new), strict=True))
        return [self._texts[column] for column in columns]

    def document_sizes(self) -> list[int]:
        """Return the number of terms of up to 5,000 rows of the index, evenly spread."""
        rows = np.arange(self.index.rows)[:: max(1, -(-self.index.rows // COUNTED))]
        return [int(size) for size in np.diff(self.index.documents(rows).indptr)]


def readers(evaluated: EvaluatedSet, texts: list[str]) -> Iterator[tuple[str, TermReader, Any]]:
    """Yield the sparse retrievers that can be loaded, by name, with the queries' vectors."""
    for name, retriever in evaluated.retrievers.items():
        try:
            reader = TermReader(retriever)
            if reader.sparse:
                yield name, reader, reader.encoder.encode_queries(texts)
        except (SluiceError, ImportError, OSError) as error:
            evaluated.failed(f"terms of {name}", error)


def term_parts(
    evaluated: EvaluatedSet, doc_ids_by_query: DocIds
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Explain the documents of each query by every sparse retriever, and count terms.

    Returns ``{query id: {retriever: {"count", "terms", "documents": {id: parts}}}}``, and
    ``{retriever: {"documents", "queries"}}`` with histograms of how many terms they have.
    """
    explained: dict[str, dict[str, Any]] = {query: {} for query in doc_ids_by_query}
    counts = {}
    texts = [evaluated.dataset.queries.get(query, "") for query in doc_ids_by_query]
    for name, reader, vectors in readers(evaluated, texts):
        sizes: list[int] = []
        for place, (query, doc_ids) in enumerate(doc_ids_by_query.items()):
            vector = vectors[[place]]
            terms = reader.query(texts[place], vector)
            sizes.append(terms["count"])
            parts = reader.parts(vector, doc_ids)
            explained[query][name] = {**terms, "documents": parts}
        counts[name] = {
            "documents": histogram([reader.document_sizes()]),
            "queries": histogram([sizes]),
        }
    return explained, counts
