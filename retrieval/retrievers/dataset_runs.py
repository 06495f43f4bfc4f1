"""Runs a dataset's queries through a stage, or looks them up in a run, without self-hits."""

from __future__ import annotations

import logging
from typing import Protocol, runtime_checkable

from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.documents.document import Document
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.runs.queries import DEPTH, Queries, SelfExcluding
from sluice.retrieval.runs.run import Run, without

log = logging.getLogger("sluice")


@runtime_checkable
class FindsDocuments(Protocol):
    """A store that returns complete documents, as ``DocumentStore`` does; others have texts."""

    def find(self, document_id: str) -> Document | None:
        """Return a document, None for an unknown id."""
        ...


def asked(dataset: Dataset, source: Stage | Run | None = None) -> Queries:
    """Return the dataset's queries for a search of ``source``.

    They are ``SelfExcluding`` if hits with the query's own id are the query itself
    (``Dataset.identical_ids``, decided from the documents of ``source`` if it has a store).
    """
    store = source.documents if isinstance(source, Stage) else None
    identical = dataset.identical_ids(store.find if isinstance(store, FindsDocuments) else None)
    return SelfExcluding(dataset.queries) if identical.drop else dataset.queries


def run_on(source: Stage | Run, dataset: Dataset, depth: int = DEPTH) -> Run:
    """Return the lists of ``source`` for a dataset's queries, without the queries themselves.

    ``DataError`` for lists that lack the documents of a shard.
    """
    return lists_for(source, asked_on(source, dataset), depth)


def asked_on(source: Stage | Run, dataset: Dataset) -> Queries:
    """Return what ``asked`` does; say in the log where hits are dropped, and why."""
    queries = asked(dataset, source)
    if isinstance(queries, SelfExcluding):
        reason = dataset.identical_ids().reason
        log.info("%s: hits whose id is the query's are dropped (%s)", dataset.name, reason)
    return queries


def lists_for(source: Stage | Run, queries: Queries, depth: int = DEPTH) -> Run:
    """Return the lists of ``source`` for queries as ``asked`` returns them; see ``run_on``."""
    run = source if isinstance(source, Run) else source.run(queries, None, depth)
    run.check_whole()
    if not isinstance(queries, SelfExcluding):
        return run
    # Retrievers have left them out; a run file and a stage of the user's own may not have.
    return Run({query: without(ranking, query) for query, ranking in run.items()}, name=run.name)
