"""Chooses the queries that a report shows in detail, with their documents, and explains them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import SluiceError
from sluice.retrieval.evaluation.scores import Scores
from sluice.retrieval.retrievers.explanation import term_texts
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.studies.report.evaluated import EvaluatedSet, figures, histogram, token_pairs

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

    def parts(
        self, vectors: Any, doc_ids: Sequence[Sequence[str]]
    ) -> list[dict[str, list[list[Any]]]]:
        """Return of each query the largest parts of documents' scores: (term, contribution).

        ``doc_ids`` are those of each row of ``vectors``. Documents that are not in the store, or
        share no term with the query, are left out. The index is read once: that costs as much for
        one document as for thousands.
        """
        found = [self._rows(vectors[[place]], own) for place, own in enumerate(doc_ids)]
        rows = [own for _, own in found]
        if not any(map(len, rows)):
            return [{} for _ in found]
        every, places = np.unique(np.concatenate(rows), return_inverse=True)
        matrix = self.index.documents(every)
        of_queries = np.split(places, np.cumsum([len(own) for own in rows])[:-1])
        return [
            self._explained(vectors[[query]], ids, matrix[of_queries[query]])
            for query, (ids, _) in enumerate(found)
        ]

    def _explained(
        self, vector: Any, ids: Sequence[str], matrix: Any
    ) -> dict[str, list[list[Any]]]:
        """Return the parts of one query's documents, whose vectors are ``matrix``'s rows."""
        width = max(vector.shape[1], matrix.shape[1])
        weights = np.zeros(width, dtype=np.float32)
        weights[vector.indices] = vector.data
        explained = {}
        for place, doc_id in enumerate(ids):
            begin, end = matrix.indptr[place], matrix.indptr[place + 1]
            columns = matrix.indices[begin:end]
            values = weights[columns] * matrix.data[begin:end]
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
        parts = reader.parts(vectors, list(doc_ids_by_query.values()))
        for place, query in enumerate(doc_ids_by_query):
            terms = reader.query(texts[place], vectors[[place]])
            sizes.append(terms["count"])
            explained[query][name] = {**terms, "documents": parts[place]}
        counts[name] = {
            "documents": histogram([reader.document_sizes()]),
            "queries": histogram([sizes]),
        }
    return explained, counts


PLOTTED = 2000  # queries whose values and texts are stored
SHOWN = 10  # documents of each system
RELEVANT = 20  # relevant documents whose ranks are listed
SNIPPET, TITLE, QUERY = 240, 120, 400  # characters


def cut(text: str, length: int) -> str:
    """Return a text on one line, at most ``length`` characters of it, at a word where possible."""
    line = " ".join(text[: 4 * length].split())
    if len(line) <= length:
        return line
    words = line[:length].rsplit(" ", 1)[0]
    return (words if len(words) > length // 2 else line[:length]) + " …"


def plotted(queries: Sequence[str], chosen: Iterable[int]) -> list[int]:
    """Return the positions whose values are stored: all, or the chosen ones and an even sample."""
    if len(queries) <= PLOTTED:
        return list(range(len(queries)))
    detailed = set(chosen)
    spread = np.linspace(0, len(queries) - 1, PLOTTED - len(detailed)).astype(int).tolist()
    return sorted(detailed | set(spread))


def choose(
    scores: Mapping[str, Scores],
    queries: Sequence[str],
    baseline: str,
    failures: Mapping[str, Mapping[str, Sequence[int]]],
    count: int,
) -> list[int]:
    """Return the positions of ``count`` queries to show in detail, ascending.

    Of every four, two differ most from the baseline by the first measure (taking systems in turn,
    gains and losses alike), one is a failure, and one comes from an even sample.
    """
    measure = next(iter(scores[baseline].mean))
    values = {
        name: np.array([each.per_query[measure][query] for query in queries])
        for name, each in scores.items()
    }
    by_difference = []
    for of_system in values.values():
        difference = np.abs(of_system - values[baseline])
        order = np.argsort(-difference, kind="stable")[: int((difference > 0).sum())]
        by_difference.append(order.tolist())
    spread = np.linspace(0, len(queries) - 1, min(count, len(queries))).astype(int).tolist()
    failed = [places for of_system in failures.values() for places in of_system.values()]
    sources = [_in_turn(by_difference), _in_turn(failed), iter(spread)]
    everything = iter(range(len(queries)))
    chosen: dict[int, None] = {}
    for source in cycle([sources[0], sources[0], sources[1], sources[2]]):
        if len(chosen) >= min(count, len(queries)):
            break
        place = next((each for each in source if each not in chosen), None)
        if place is None and source is sources[2]:
            place = next((each for each in everything if each not in chosen), None)
        if place is not None:
            chosen[place] = None
    return sorted(chosen)


def _in_turn(lists: Sequence[Sequence[int]]) -> Iterator[int]:
    """Yield the first of each list, the second of each, and so on."""
    for depth in range(max(map(len, lists), default=0)):
        yield from (places[depth] for places in lists if depth < len(places))


class Texts:
    """Documents by number, each stored once: id, title and the beginning of the text."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, doc_id: str) -> int:
        """Return the document's number, a new one the first time."""
        return self.numbers.setdefault(doc_id, len(self.numbers))

    def stored(self, evaluated: EvaluatedSet) -> list[list[str]]:
        """Return id, title and snippet by number, or only the id if the text is not available."""
        documents = evaluated.documents(self.numbers)
        return [
            [name, cut(documents[name].title, TITLE), cut(documents[name].text, SNIPPET)]
            if name in documents
            else [name]
            for name in self.numbers
        ]


def details(
    evaluated: EvaluatedSet, places: Sequence[int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the details of the queries at ``places``, and the sparse retrievers' term counts.

    ``{"documents": [[id, title, snippet], ...], "queries": {place: {"top", "relevant", "terms",
    "tokens", "relevantTotal"}}}``. ``top`` has by system [document, score, grade or null], best
    first; ``relevant`` has [document, grade, [rank or 0 by system]], best grade first; ``terms`` by
    retriever the query's terms and the parts of its documents' scores, ``tokens`` which tokens met.
    """
    texts = Texts()
    documents = {
        evaluated.queries[place]: _documents(evaluated, evaluated.queries[place])
        for place in places
    }
    parts, counts = term_parts(evaluated, documents)
    pairs = token_pairs(evaluated, documents)
    queries = {}
    for place in places:
        query = evaluated.queries[place]
        shown = _shown(evaluated, query, texts)
        shown["terms"] = {name: _numbered(texts, found) for name, found in parts[query].items()}
        shown["tokens"] = {name: _numbered(texts, found) for name, found in pairs[query].items()}
        queries[place] = shown
    return {"documents": texts.stored(evaluated), "queries": queries}, counts


def _numbered(texts: Texts, terms: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of scores with their documents by number."""
    numbered = {
        key: {texts.number(doc): part for doc, part in terms[key].items()}
        for key in ("documents", "rest")
        if key in terms
    }
    return {**terms, **numbered}


def _relevant(evaluated: EvaluatedSet, query: str) -> list[tuple[str, int, list[int]]]:
    """Return all relevant documents with grades and ranks by system, 0 if not retrieved."""
    grades = evaluated.dataset.qrels[query]
    ranks = [
        {doc: rank for rank, doc in enumerate(run[query].doc_ids, 1) if grades.get(doc, 0) > 0}
        if query in run
        else {}
        for run in evaluated.runs.values()
    ]
    relevant = [
        (doc, grade, [of_system.get(doc, 0) for of_system in ranks])
        for doc, grade in grades.items()
        if grade > 0
    ]
    return sorted(relevant, key=lambda each: (-each[1], min(filter(None, each[2]), default=10**9)))


def _documents(evaluated: EvaluatedSet, query: str) -> list[str]:
    """Return the documents shown for a query, each once."""
    lists = [run[query].doc_ids[:SHOWN] for run in evaluated.runs.values() if query in run]
    lists.append([doc for doc, _, _ in _relevant(evaluated, query)[:RELEVANT]])
    return list(dict.fromkeys(doc for documents in lists for doc in documents))


def _shown(evaluated: EvaluatedSet, query: str, texts: Texts) -> dict[str, Any]:
    grades = evaluated.dataset.qrels[query]
    top = {}
    for name, run in evaluated.runs.items():
        ranking = run[query][:SHOWN] if query in run else []
        top[name] = [
            [texts.number(doc), figures([score], 5)[0], grades.get(doc)] for doc, score in ranking
        ]
    relevant = _relevant(evaluated, query)
    return {
        "top": top,
        "relevantTotal": len(relevant),
        "relevant": [
            [texts.number(doc), grade, ranks] for doc, grade, ranks in relevant[:RELEVANT]
        ],
    }
