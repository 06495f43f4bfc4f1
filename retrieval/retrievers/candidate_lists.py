"""Opens ranked lists by name or path; runs a dataset's queries through a stage."""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.documents.document import Document
from sluice.retrieval.pipelines.fusion.fusion import reciprocal_rank_fusion
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.runs.queries import DEPTH, Queries, SelfExcluding
from sluice.retrieval.runs.run import Run, without

if TYPE_CHECKING:
    from sluice.retrieval.documents.where import Where


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


# Names in `negatives.retriever` that stand for no retriever, and need none opened.
SELF = "self"  # the encoder in training, in its current state
RANDOM = "random"  # documents of the corpus, drawn anew at each mining
NOT_OPENED = (SELF, RANDOM)
FAR_BELOW = -1e6  # the first score of a random document; that of a positive is 0 beside it


def named_sources(spec: Mapping[str, Any], where: str) -> list[tuple[str, Any]]:
    """Return the lists that ``retriever:`` of a section ``negatives`` names, with their keys.

    ``self``, the encoder in training, and ``random`` are left out: there is nothing to open.
    """
    named = spec.get("retriever")
    if not isinstance(named, list):
        return [] if named in NOT_OPENED else [(where, named)]
    if not named:
        raise ConfigError(f"{where}: an empty list; name at least one retriever")
    texts = [each for each in named if isinstance(each, str)]
    twice = next((name for name in texts if texts.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{where}: {twice!r} is named twice")
    opened = ((place, each) for place, each in enumerate(named) if each not in NOT_OPENED)
    return [(f"{where}[{place}]", each) for place, each in opened]


def listed(named: Any) -> list[Any]:
    """Return one value, or several, as a list."""
    return list(named) if isinstance(named, list) else [named]


def check_lists(named: str, where: str, known: Sequence[str]) -> None:
    """Raise ``ConfigError`` unless ``named`` is one of the known names, a folder or a file."""
    if named not in known and not Path(named).exists():
        raise ConfigError(
            f"{where}: {named!r} does not exist; expected a retriever's folder or a run file"
            f"{', or a name of this file: ' * bool(known)}{', '.join(known)}"
            f"{suggest(named, known)}"
        )


def open_lists(
    named: str, where: str, known: Sequence[str] = (), *, allow: Collection[str] = ()
) -> Stage | Run:
    """Open a retriever folder, which may use what ``allow`` lists, or a TREC run by path."""
    check_lists(named, where, known)
    if Path(named).is_dir():
        return Retriever.open(named, allow=allow)
    return Run.load(Path(named))


class RandomRun(Run):
    """Random documents for every query, none of them relevant, far below any positive's score."""


def random_run(dataset: Dataset, count: int, seed: int) -> RandomRun:
    """Draw ``count`` documents of a dataset's corpus for each of its queries, by seed and id."""
    ids = [document.id for document in dataset.corpus]
    lists: dict[str, dict[str, float]] = {}
    for query in dataset.queries:
        relevant = {doc for doc, grade in dataset.qrels.get(query, {}).items() if grade > 0}
        drawn = random.Random(f"{seed}:random:{query}").sample(
            range(len(ids)), min(len(ids), count + len(relevant))
        )
        chosen = [ids[place] for place in drawn if ids[place] not in relevant][:count]
        lists[query] = {name: FAR_BELOW - rank for rank, name in enumerate(chosen)}
    return RandomRun(lists, name=RANDOM)


class Sources(Stage):
    """Stages and runs by name, such as ``negatives.retriever: [bm25, dense]`` names.

    The miner takes candidates from each and notes which one found them; run as one stage (dev
    evaluation of a cross-encoder) they are fused by reciprocal rank.
    """

    def __init__(self, parts: Sequence[tuple[str, Stage | Run]]) -> None:
        if not parts:
            raise ConfigError("negatives.retriever: an empty list; name at least one retriever")
        names = [name for name, _ in parts]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ConfigError(f"negatives.retriever: {twice[0]!r} is named twice")
        self.parts: dict[str, Stage | Run] = dict(parts)
        self.name = ", ".join(names)

    @property
    def documents(self) -> Texts | None:
        """The first store among the parts."""
        stores = (part.documents for part in self.parts.values() if isinstance(part, Stage))
        return next((store for store in stores if store is not None), None)

    def filtered(self, where: Where) -> Sources:
        """Return the sources with every stage filtered; runs cannot be."""
        parts: list[tuple[str, Stage | Run]] = []
        for name, part in self.parts.items():
            if isinstance(part, Run):
                raise ConfigError(f"{name}: where filters retrievers, and this is a run")
            parts.append((name, part.filtered(where)))
        return Sources(parts)

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Return the fusion of all parts' lists for these queries."""
        depth = max(DEPTH, k or 0)
        runs = [
            Run({query: part[query] for query in queries if query in part})
            if isinstance(part, Run)
            else part.rank(queries, given, depth)
            for part in self.parts.values()
        ]
        fused = reciprocal_rank_fusion(runs, k=60, weights=None)
        return fused if k is None else fused.top(k)
