"""A stage as a model that MTEB runs; runs and judgements as ir_measures and ranx have them.

The two order equal scores differently. A run of ours goes there with strictly decreasing scores, as
``Run.save`` writes them, so that it keeps our order. A run of theirs is put in trec_eval's order
(``Run``), its scores rounded to float32.

mteb (2 or later) and ir-measures are optional packages: ``pip install 'sluice-ir[interop]'``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from sluice.encoders.foundation.errors import ConfigError, DataError, needed_package
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.evaluation.scores import Qrels
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.runs.run import Ranking, Run


def to_scored_docs(run: Run) -> Iterator[Any]:
    """Yield an ``ir_measures.ScoredDoc`` for every hit, query after query, best first."""
    scored_doc = _ir_measures().ScoredDoc
    for query, hits in run.strictly_decreasing().items():
        yield from (scored_doc(query, doc_id, score) for doc_id, score in hits.items())


def from_scored_docs(records: Iterable[Any], *, name: str = "run") -> Run:
    """Return records with ``query_id``, ``doc_id`` and ``score``, in any order, as a run."""
    lists: dict[str, list[tuple[str, float]]] = {}
    for record in records:
        lists.setdefault(record.query_id, []).append((record.doc_id, record.score))
    return Run(lists, name=name)


def to_ir_qrels(qrels: Qrels) -> Iterator[Any]:
    """Yield an ``ir_measures.Qrel`` for every judgement."""
    qrel = _ir_measures().Qrel
    for query, grades in qrels.items():
        yield from (qrel(query, doc_id, int(grade)) for doc_id, grade in grades.items())


def from_ir_qrels(records: Iterable[Any]) -> dict[str, dict[str, int]]:
    """Return records as qrels; a document judged twice, as for subtopics, is a ``DataError``."""
    qrels: dict[str, dict[str, int]] = {}
    for record in records:
        grades = qrels.setdefault(record.query_id, {})
        if record.doc_id in grades:
            raise DataError(f"qrels: {record.query_id!r} judges {record.doc_id!r} twice")
        grades[record.doc_id] = int(record.relevance)
    return qrels


def _ir_measures() -> Any:
    with needed_package("ir-measures", "interop", "records of ir_measures"):
        import ir_measures
    return ir_measures


def to_ranx_run(run: Run) -> Any:
    """Return a ``ranx.Run`` of the run's name and order.

    Queries without hits, which ranx refuses, are left out; its
    ``evaluate(..., make_comparable=True)`` scores them 0. Raises ``DataError`` for a run without
    hits.
    """
    import ranx

    lists = {query: hits for query, hits in run.strictly_decreasing().items() if hits}
    if not lists:
        raise DataError(f"run {run.name!r}: no query has a hit, and ranx refuses an empty run")
    return ranx.Run(lists, name=run.name)


def from_ranx_run(theirs: Any) -> Run:
    """Return a ``ranx.Run`` as a run, named as it is, or ``run``."""
    return Run(theirs.to_dict(), name=theirs.name or "run")


def to_ranx_qrels(qrels: Qrels) -> Any:
    """Return ``ranx.Qrels``; queries without judgements are left out, ranx refuses them."""
    import ranx

    judged = {query: dict(grades) for query, grades in qrels.items() if grades}
    if not judged:
        raise DataError("the qrels hold no judgements, and ranx refuses empty ones")
    return ranx.Qrels(judged)


def from_ranx_qrels(theirs: Any) -> dict[str, dict[str, int]]:
    """Return ``ranx.Qrels`` as ``{query id: {document id: grade}}``."""
    return {
        query: {doc: int(grade) for doc, grade in grades.items()}
        for query, grades in theirs.to_dict().items()
    }


log = logging.getLogger("sluice")


class TaskCorpus:
    """The documents of a task; ``rows`` is a sequence of mappings (a ``datasets.Dataset``).

    It gives a stage without a document store the texts to rerank. A row without a text, as of a
    corpus of images, is a ``DataError``.
    """

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Document]:
        return map(_document, self.rows)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.rows["id"])}

    def texts(self, document_ids: Sequence[str]) -> list[str]:
        """Return the full texts of documents, in the order of the ids."""
        absent = [name for name in document_ids if name not in self._places]
        if absent:
            raise DataError(f"the task's corpus of {len(self):,} documents has no {absent[0]!r}")
        return [_document(self.rows[self._places[name]]).full_text for name in document_ids]

    def check(self, stage: Stage) -> None:
        """Raise ``DataError`` if the stage finds documents that are not in this corpus.

        Documents that it lacks are counted in a warning: a pruned corpus lacks some.
        """
        store = stage.documents
        if not isinstance(store, DocumentStore):
            return
        names = store.ids(store.live_rows)
        foreign = next((name for name in names if name not in self._places), None)
        if foreign is not None:
            raise DataError(
                f"{stage.name}: document {foreign!r} of its {len(store):,} is not in the task's "
                f"corpus of {len(self):,}; expected a stage made of that corpus, or a function "
                "that makes one of a corpus"
            )
        if len(store) < len(self):
            lacking = f"{len(self) - len(store):,} of {len(self):,}"
            log.warning("%s: lacks %s documents of the task's corpus", stage.name, lacking)


def queries_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return ``{id: text}``, with an instruction after the text, as mteb gives them to an encoder.

    A conversation instead of a text is a ``DataError``.
    """
    queries = {}
    for row in rows:
        if not isinstance(row.get("text"), str):
            raise DataError(
                f"query {row['id']!r} of the task is not a text; expected a task of texts"
            )
        queries[row["id"]] = " ".join(filter(None, (row["text"], row.get("instruction"))))
    return queries


def only(run: Run, candidates: Mapping[str, Sequence[str]]) -> Run:
    """Return a run's documents that are candidates of the query."""
    rankings = {}
    for query, ranking in run.items():
        allowed = set(candidates[query])
        places = [place for place, name in enumerate(ranking.doc_ids) if name in allowed]
        rankings[query] = Ranking([ranking.doc_ids[at] for at in places], ranking.scores[places])
    return Run(rankings, name=run.name)


def _document(row: Mapping[str, Any]) -> Document:
    if not isinstance(row.get("text"), str):
        raise DataError(
            f"document {row['id']!r} of the task has {', '.join(row)} and no text; expected a task "
            "of texts"
        )
    return Document(row["id"], row.get("title") or "", row["text"])


class MtebSearch:
    """A stage under mteb's ``SearchProtocol``, for ``mteb.evaluate(MtebSearch(...), task)``.

    ``stage`` was made of the task's corpus, or is a function that makes one of a corpus, called for
    every corpus. mteb keeps results under ``name`` (``maker/model``) and ``revision`` and does not
    compute again what it finds there: give each system its own. In reranking tasks a reranker gets
    the candidates; another stage ranks the entire corpus, of which the candidates are kept.
    """

    def __init__(
        self, stage: Stage | Callable[[Iterable[Document]], Stage], *, name: str, revision: str
    ) -> None:
        with needed_package("mteb", "interop", "evaluation by mteb"):
            from mteb.models import ModelMeta
        if "/" not in name:
            raise ConfigError(f"name: {name!r}; mteb expects maker/model, as in 'me/{name}'")
        self._source = stage
        settings = {"name": name, "revision": revision, "modalities": ["text"]}
        self.mteb_model_meta = ModelMeta.create_empty(settings)

    def index(self, corpus: Any, **_: Any) -> None:
        """Take a task's corpus: make the stage of it, or check that it was made of it."""
        self._corpus = TaskCorpus(corpus)
        stage = self._source
        self._stage = stage if isinstance(stage, Stage) else stage(self._corpus)
        self._corpus.check(self._stage)

    def search(
        self, queries: Any, *, top_k: int, top_ranked: Any = None, **_: Any
    ) -> dict[str, dict[str, float]]:
        """Return ``{query id: {document id: score}}``, from which mteb reads the stage's order."""
        texts = queries_of(queries)
        if top_ranked is None:
            return self._stage.run(texts, None, top_k).top(top_k).to_dict()
        ids = {query: list(dict.fromkeys(top_ranked.get(query, ()))) for query in texts}
        if self._stage.needs_candidates:
            candidates = Run({q: Ranking(c, range(len(c), 0, -1)) for q, c in ids.items()})
            run = self._stage.attached(self._corpus).run(texts, candidates)
        else:
            run = only(self._stage.run(texts, None, len(self._corpus)), ids)
        return run.top(top_k).to_dict()
