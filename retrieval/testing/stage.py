"""Checks that a stage keeps the contract of pipelines."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sluice.encoders.foundation.errors import ConfigError, DataError, SluiceError
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.pipelines.tracing import keeping_passages, tracing
from sluice.retrieval.runs.run import Ranking, Run, is_canonical
from sluice.retrieval.testing.rules import DOCUMENTS, QUERIES, expect, verify

if TYPE_CHECKING:
    from sluice.retrieval.documents.where import Where
    from sluice.retrieval.runs.queries import Queries

ODD_NAME: Final = "d1 Fräge\n質問🪙"  # of a query: with a space, a line break and a document's id


def check_stage(
    stage: Stage,
    queries: Mapping[str, str] = QUERIES,
    *,
    documents: Mapping[str, str] = DOCUMENTS,
    where: Where | None = None,
    tolerance: float = 1e-5,
    skip: Collection[str] = (),
) -> None:
    """Raise ``BrokenRule`` unless ``stage`` keeps every rule of a stage.

    ``queries`` are texts by id, two or more, that find something. ``documents`` (texts by id) are
    the candidates of a stage that needs some; other stages bring their own. ``where`` is a
    condition that some documents meet; without it the filter that all meet is tried. Scores may
    differ by ``tolerance``, relative to the largest. ``skip`` names rules that do not apply.
    """
    name = f"stage {type(stage).__name__}"
    verify(name, [is_a_stage], stage, [])
    if len(queries) < 2 or not all(text.strip() for text in queries.values()):
        raise ConfigError("queries: expected two or more, none of them blank")
    given = None
    if stage.needs_candidates:
        store = MemoryTexts(documents)
        stage = stage.attached(store)
        verify(name, [is_a_stage], stage, [])
        ranking = Ranking(list(documents), [float(len(documents) - n) for n in range(len(store))])
        given = Run(dict.fromkeys(queries, ranking), name="candidates")
    world = World(stage, dict(queries), given, MemoryTexts(documents), where, tolerance)
    verify(name, RULES, world, skip)


class MemoryTexts:
    """A document store in memory."""

    def __init__(self, documents: Mapping[str, str]) -> None:
        self._documents = dict(documents)

    def __len__(self) -> int:
        return len(self._documents)

    def texts(self, document_ids: Sequence[str]) -> list[str]:
        """Return the texts of documents; ``DataError`` for an unknown id."""
        for doc_id in document_ids:
            if doc_id not in self._documents:
                raise DataError(f"no document {doc_id!r}")
        return [self._documents[doc_id] for doc_id in document_ids]


@dataclass(frozen=True)
class World:
    """A stage with its store attached, and what it is run on."""

    stage: Stage
    queries: dict[str, str]
    given: Run | None
    store: Texts
    where: Where | None
    tolerance: float

    def run(self, k: int | None = None, stage: Stage | None = None) -> Run:
        """Run the stage, or another in its place, on the queries."""
        return (stage or self.stage).run(self.queries, self.given, k)


class Probe(Stage):
    """Passes a stage on: a stage of another class in its place."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.name = stage, stage.name

    @property
    def inner(self) -> tuple[Stage, ...]:
        """The stage."""
        return (self.stage,)

    @property
    def base_retriever(self) -> Stage | None:
        """Its retriever."""
        return self.stage.base_retriever

    @property
    def least_score(self) -> float | None:
        """Its least score."""
        return self.stage.least_score

    def over(self, inner: Sequence[Stage]) -> Stage:
        """Return a probe of another stage."""
        (stage,) = inner
        return Probe(stage)

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Run the stage."""
        return self.stage.rank(queries, given, k)


def is_a_stage(stage: Any) -> None:
    """A stage is a Stage, with a name for tables; what attached(documents) returns is one too."""
    expect(isinstance(stage, Stage), f"it is a {type(stage).__name__}; subclass sluice.Stage")
    expect(isinstance(stage.name, str) and stage.name, f"name is {stage.name!r}, expected text")
    expect(isinstance(stage.inner, tuple), f"inner is {stage.inner!r}, expected a tuple of stages")
    for inner in stage.inner:
        expect(isinstance(inner, Stage), f"inner holds {inner!r}, expected stages")


def run_of_queries(world: World) -> None:
    """A run has one ranking for each query, in the order they were asked."""
    for queries in (world.queries, dict(reversed(world.queries.items()))):
        run = world.stage.run(queries, world.given)
        expect(isinstance(run, Run), f"it returned a {type(run).__name__}")
        expect(
            list(run) == list(queries), f"asked {list(queries)}, its run has the order {list(run)}"
        )
    expect(
        any(len(ranking) for ranking in world.run().values()),
        "no query found a document, so nothing can be checked; pass queries= that find some",
    )


def best_first(world: World) -> None:
    """Rankings hold each document once, with finite scores that never increase."""
    for query, ranking in world.run().items():
        ids, scores = list(ranking.doc_ids), ranking.scores
        twice = [doc for doc in ids if ids.count(doc) > 1]
        expect(not twice, f"query {query!r}: document {twice[:1]} is in the ranking twice")
        expect(np.isfinite(scores).all(), f"query {query!r}: a score is not finite: {scores}")
        rises = np.flatnonzero(np.diff(scores) > 0)
        for place in rises[:1].tolist():
            expect(False, f"query {query!r}: {ranking[place]} stands before {ranking[place + 1]}")


def ties(world: World) -> None:
    """Documents of equal score stand by document id descending, or as the candidates stood.

    A pipeline with a reranker may have either: its parts are checked by themselves.
    """
    if world.given is None and _reranks(world.stage):
        return
    for query, ranking in world.run().items():
        if is_canonical(ranking.doc_ids, ranking.scores):
            continue
        order = list(world.given[query].doc_ids) if world.given is not None else []
        for one, other in pairwise(ranking):
            held = one[0] in order and other[0] in order
            expect(
                one[1] > other[1]
                or one[0] > other[0]
                or (held and order.index(one[0]) < order.index(other[0])),
                f"query {query!r}: {one[0]!r} stands before {other[0]!r}, both with {one[1]}; "
                "make the Run from {document id: score}, and it is ordered",
            )


def run_twice(world: World) -> None:
    """The same run comes out when it runs again, and the given run stays as it was."""
    before = _copy(world.given)
    first = world.run()
    _same(first, world.run(), 0.0, "the first time", "the second time")
    if world.given is not None and before is not None:
        _same(before, world.given, 0.0, "the given run before", "after")


def one_query_at_a_time(world: World) -> None:
    """A query's ranking does not depend on the queries it is searched with."""
    alone: dict[str, Ranking] = {}
    for query, text in world.queries.items():
        alone.update(world.stage.run({query: text}, world.given))
    _same(world.run(), Run(alone), world.tolerance, "asked together", "asked alone")


def names_of_queries(world: World) -> None:
    """Names that are given to queries change no result: no ranking, and no passage that is named.

    ``passages_of`` is handed the trace of one query's run: its runs have one ranking each.
    """
    before, own, first = world.run(), list(world.queries), world.given
    odd = [f"{ODD_NAME}{place}" for place in range(1, len(own))]
    for names in ([*own[1:], own[0]], ["query", *odd], [*odd, "0"]):
        named = dict(zip(names, own, strict=True))
        asked = {name: world.queries[query] for name, query in named.items()}
        given = first and Run({name: first[query] for name, query in named.items()})
        run = world.stage.run(asked, given)
        found = Run({query: run[name] for name, query in named.items()})
        _same(before, found, world.tolerance, "by its name", f"among {names}")
    for query, text in world.queries.items() if world.stage.names_passages else ():
        ids, passages = before[query].doc_ids[:5], []
        for name in ("query", "0", ODD_NAME):
            with keeping_passages(True) as spans:
                world.stage.run({name: text}, first and Run({name: first[query]}))
            passages.append(world.stage.passages_of(text, ids, spans[-1]))
        alike = passages[0] == passages[1] == passages[2]
        expect(alike, f"query {query!r}: under other names it names other passages: {passages}")


def depth(world: World) -> None:
    """With k a run has the k best (or all there are) and no more, as stage % k has."""
    full = world.run()
    longest = max(map(len, full.values()))
    for k in {1, max(1, longest // 2), longest + 7}:
        run, cut = world.run(k), world.run(stage=world.stage % k)
        for query, ranking in full.items():
            for label, found in (("k", run[query]), ("%", cut[query])):
                expect(
                    len(found) >= min(k, len(ranking)),
                    f"query {query!r}: {len(found)} documents with {label}={k}, "
                    f"{len(ranking)} without",
                )
                _close(query, ranking.scores[:k], found.scores[:k], world.tolerance, f"{label}={k}")
                expect(len(found) <= k, f"query {query!r}: {len(found)} documents with {label}={k}")


def nothing_asked(world: World) -> None:
    """No queries give an empty run."""
    run = world.stage.run({}, None if world.given is None else Run({}))
    expect(isinstance(run, Run) and len(run) == 0, f"it returned {run!r}")


def empty_run(world: World) -> None:
    """A query that the given run lacks, or for which it has nothing, is in the result."""
    for given in (Run({}), Run(dict.fromkeys(world.queries, Ranking([], [])))):
        run = world.stage.run(world.queries, given)
        expect(list(run) == list(world.queries), f"the run has {list(run)}")
        if world.given is not None:
            found = [query for query, ranking in run.items() if len(ranking)]
            expect(not found, f"query {found[:1]} has documents, and no candidates")


def blank_query(world: World) -> None:
    """A blank query has no hits, and the others keep theirs."""
    queries = {"blank": " \t", **world.queries}
    given = world.given and Run({**world.given, "blank": Ranking([], [])})
    run = world.stage.run(queries, given)
    expect(list(run) == list(queries), f"the run has {list(run)}")
    expect(len(run["blank"]) == 0, f"the blank query has {run['blank']}")
    rest = Run({query: run[query] for query in world.queries})
    _same(world.run(), rest, world.tolerance, "without a blank query", "with one")


def candidates(world: World) -> None:
    """A reranker refuses to run without candidates, and returns none but those it is given."""
    if world.given is None:
        return
    try:
        world.stage.run(world.queries)
    except SluiceError:
        pass
    else:
        expect(False, "run(queries) without a run returned; expected a ConfigError")
    half = Run({query: ranking[::2] for query, ranking in world.given.items()})
    for query, ranking in world.stage.run(world.queries, half).items():
        new = set(ranking.doc_ids) - set(half[query].doc_ids)
        expect(
            not new or world.stage.looks_inside,
            f"query {query!r}: document {min(new, default='')!r} was not among its candidates",
        )


def traced_once(world: World) -> None:
    """A run leaves one span in a trace: the stage's own, with its result."""
    with tracing() as spans:
        run = world.run()
    expect(len(spans) == 1, f"{len(spans)} outermost spans")
    expect(spans[0].stage is world.stage, f"the span is that of {spans[0].stage.name!r}")
    expect(spans[0].result is run, "the span's result is not the run that was returned")
    own = [span for span in spans[0].walk() if span.stage is world.stage]
    expect(len(own) == 1, f"{len(own)} spans of the stage: run calls its own run")


def made_of_others(world: World) -> None:
    """With over(inner) the same stage is made of those, and nothing changes in this one.

    A reranker whose scorer keeps its retrievers may return itself.
    """
    stage, inner = world.stage, world.stage.inner
    if not inner:
        expect(stage.over(()) is not None, "over(()) returned None")
        return
    before = world.run()
    _same(before, world.run(stage=stage.over(inner)), 0.0, "the stage", "over(inner)")
    probed = stage.over([Probe(each) for each in inner])
    expect(isinstance(probed, Stage), f"over returned {probed!r}")
    if probed is stage:
        expect(stage.needs_candidates, "over returned the stage itself: a filter has no effect")
        return
    expect(type(probed) is type(stage), f"over made a {type(probed).__name__}")
    expect(
        [type(each) for each in probed.inner] == [Probe] * len(inner),
        f"over was handed {len(inner)} probes; its inner are "
        f"{[type(each).__name__ for each in probed.inner]}",
    )
    _same(before, world.run(stage=probed), world.tolerance, "the stage", "over probes")
    _same(before, world.run(), 0.0, "the stage before over", "after")


def attached(world: World) -> None:
    """Given a document store, a stage runs as it did, and this one is left alone."""
    stage = world.stage
    before = world.run()
    store = stage.documents or world.store
    again = stage.attached(store)
    expect(isinstance(again, Stage), f"attached returned {again!r}")
    _same(before, world.run(stage=again), world.tolerance, "the stage", "attached")
    _same(before, world.run(), 0.0, "the stage before attached", "after")


def filtered(world: World) -> None:
    """Given a filter, a stage finds what matches, or raises a ConfigError.

    A reranker's candidates were filtered before: it must not raise.
    """
    before = world.run()
    for where in ({}, world.where or {}):
        try:
            stage = world.stage.filtered(where)
        except ConfigError:
            expect(world.given is None, "a reranker refused; return the stage itself")
            continue
        expect(isinstance(stage, Stage), f"filtered returned {stage!r}")
        run = world.run(stage=stage)
        if not where:
            _same(before, run, world.tolerance, "the stage", "filtered({})")
        expect(list(run) == list(before), f"the run has {list(run)}")
    _same(before, world.run(), 0.0, "the stage before filtered", "after")


def asked_as_callers_do(world: World) -> None:
    """A run takes a list of queries, which get ids, and where=, which is that of filtered(where).

    Both come with the class Stage: define rank(queries, given, k), and leave run and search to it.
    """
    if world.given is None:
        together = world.stage.run(list(world.queries.values()), k=3)
        by_place = dict(zip(map(str, range(len(world.queries))), world.queries, strict=True))
        expect(list(together) == list(by_place), f"the queries of a list are {list(together)}")
        named = Run({by_place[place]: ranking for place, ranking in together.items()})
        _same(world.run(3), named, world.tolerance, "by id", "as a list")
    for where in ({}, world.where or {}):
        try:
            stage = world.stage.filtered(where)
        except ConfigError:
            continue
        found = world.stage.run(world.queries, world.given, where=where)
        _same(world.run(stage=stage), found, world.tolerance, "filtered(where)", "run(where=)")


def search(world: World) -> None:
    """A search returns the hits of the run, best first, with their texts; a list of several."""
    if world.given is not None:
        return
    store = world.stage.documents
    for query, text in world.queries.items():
        hits = world.stage.search(text, 3)
        ranking = world.stage.run({query: text}, None, 3)[query][:3]
        expect(
            [hit.doc_id for hit in hits] == list(ranking.doc_ids),
            f"query {query!r}: search has {hits}, run {ranking}",
        )
        for hit in hits if store is not None else ():
            expect(isinstance(hit.text, str), f"query {query!r}: the text is {hit.text!r}")
    together = world.stage.search(list(world.queries.values()), 3)
    alone = [world.stage.search(text, 3) for text in world.queries.values()]
    ids = [[[hit.doc_id for hit in hits] for hits in lists] for lists in (together, alone)]
    expect(ids[0] == ids[1], f"several queries found {ids[0]}, one by one {ids[1]}")


RULES: Final = (
    run_of_queries, best_first, ties, run_twice, one_query_at_a_time, names_of_queries, depth,
    nothing_asked, empty_run, blank_query, candidates, traced_once, made_of_others, attached,
    filtered, asked_as_callers_do, search,
)  # fmt: skip


def _reranks(stage: Stage) -> bool:
    return any(inner.needs_candidates or _reranks(inner) for inner in stage.inner)


def _copy(run: Run | None) -> Run | None:
    if run is None:
        return None
    return Run({q: Ranking(list(r.doc_ids), r.scores.copy()) for q, r in run.items()})


def _same(one: Run, other: Run, tolerance: float, first: str, second: str) -> None:
    """Expect equal rankings; documents whose scores lie within the tolerance may change places."""
    for query, ranking in one.items():
        expect(query in other, f"query {query!r} is missing {second}")
        found = other[query]
        expect(
            len(found) == len(ranking),
            f"query {query!r}: {len(ranking)} documents {first}, {len(found)} {second}",
        )
        _close(query, ranking.scores, found.scores, tolerance, f"{first}, then {second}")
        places = [a == b for a, b in zip(ranking.doc_ids, found.doc_ids, strict=True)]
        if tolerance == 0 and not all(places):
            at = places.index(False)
            expect(False, f"query {query!r}: {ranking[at]} {first}, {found[at]} {second}")
        scores = dict(found)
        far = tolerance * max(1.0, float(np.abs(ranking.scores).max(initial=0)))
        for doc_id, score in ranking:
            near = abs(scores.get(doc_id, float(ranking.scores[-1])) - score) <= far
            expect(near, f"query {query!r}: {doc_id!r} has {score} {first}, not {second}")


def _close(query: str, one: Any, other: Any, tolerance: float, what: str) -> None:
    far = tolerance * max(1.0, float(np.abs(one).max(initial=0)))
    off = np.flatnonzero(np.abs(one - other[: len(one)]) > far)
    for place in off[:1].tolist():
        expect(
            False,
            f"query {query!r}: place {place + 1} scores {one[place]}, {other[place]} ({what})",
        )
