"""A dataset's queries, asked of a pipeline or looked up in a run: a query never finds itself."""

from __future__ import annotations

import logging

from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.runs.queries import DEPTH, Queries, SelfExcluding
from sluice.retrieval.runs.run import Run, without

log = logging.getLogger("sluice")


def asked(dataset: Dataset, source: Stage | Run | None = None) -> Queries:
    """Return the queries as they are to be put to ``source``.

    They are ``SelfExcluding`` where hits with the query's own id are the query itself
    (``Dataset.identical_ids``, decided from the documents of ``source`` if it has a store).
    """
    identical = dataset.identical_ids(getattr(getattr(source, "documents", None), "find", None))
    return SelfExcluding(dataset.queries) if identical.drop else dataset.queries


def run_on(source: Stage | Run, dataset: Dataset, depth: int = DEPTH) -> Run:
    """Return the lists of ``source`` for a dataset's queries, without the queries themselves."""
    queries = asked(dataset, source)
    run = source if isinstance(source, Run) else source.run(queries, None, depth)
    if not isinstance(queries, SelfExcluding):
        return run
    reason = dataset.identical_ids().reason
    log.info("%s: hits whose id is the query's are dropped (%s)", dataset.name, reason)
    # Retrievers have left them out; a run file and a stage of the user's own may not have.
    return Run({query: without(ranking, query) for query, ranking in run.items()}, name=run.name)
