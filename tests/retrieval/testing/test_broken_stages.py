"""A stage that breaks a rule is found out, and the message says which."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, ClassVar

import pytest

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import Ranking, Run, Stage
from sluice.retrieval.pipelines.hit import Passage
from sluice.retrieval.pipelines.stage import Texts
from sluice.retrieval.pipelines.tracing import Span
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.testing import BrokenRule, check_stage
from sluice.retrieval.testing.rules import DOCUMENTS
from sluice.retrieval.testing.stage import MemoryTexts


class Words(Stage):
    """Documents by shared words, from a dict in memory."""

    name = "words"

    @property
    def documents(self) -> Texts:
        return MemoryTexts(DOCUMENTS)

    def scores(self, text: str) -> dict[str, float]:
        words = set(text.split())
        counts = {doc: float(len(words & set(body.split()))) for doc, body in DOCUMENTS.items()}
        return {doc: number for doc, number in counts.items() if number}

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        return Run({query: self.scores(text) for query, text in queries.items()}).top(k or 1000)


class Longest(Stage):
    """Reorders candidates by the length of their texts."""

    name = "longest"
    needs_candidates: ClassVar[bool] = True  # type: ignore[misc]

    def __init__(self, texts: Texts | None = None) -> None:
        self.texts = texts

    def attached(self, documents: Texts) -> Stage:
        return type(self)(documents)

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        if given is None or self.texts is None:
            raise ConfigError("longest: needs candidates")
        rankings = {}
        for query in queries:
            ids = list(given[query].doc_ids) if query in given else []
            texts = self.texts.texts(ids)
            rankings[query] = {doc: len(text) for doc, text in zip(ids, texts, strict=True)}
        return Run(rankings)


class Around(Stage):
    """Passes a stage on."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.name = stage, "around"

    @property
    def inner(self) -> tuple[Stage, ...]:
        return (self.stage,)

    def over(self, inner: Sequence[Stage]) -> Stage:
        return type(self)(*inner)

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        return self.stage.run(queries, given, k)


@pytest.mark.parametrize("stage", [Words(), Longest(), Around(Words()), Words() >> Longest()])
def test_right_ones_pass(stage: Stage) -> None:
    check_stage(stage)


def changed(kind: type[Stage], **methods: Any) -> type[Stage]:
    return type("Broken", (kind,), methods)


def broken_run(change: Any, kind: type[Stage] = Words) -> type[Stage]:
    def run(self: Any, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        found: Run = change(queries, kind.rank.__wrapped__(self, queries, given, k), k)  # type: ignore[attr-defined]
        return found

    return changed(kind, run=run)


def ranked(pairs: list[tuple[str, float]]) -> Ranking:
    return Ranking([doc for doc, _ in pairs], [score for _, score in pairs])


CALLS = count()
BROKEN = {
    "run_of_queries": broken_run(lambda asked, run, k: Run(dict(reversed(run.items())))),
    "best_first": broken_run(
        lambda asked, run, k: Run({q: ranked(list(r)[::-1]) for q, r in run.items()})
    ),
    "ties": broken_run(
        lambda asked, run, k: Run(
            {q: ranked(sorted(r, key=lambda hit: (-hit[1], hit[0]))) for q, r in run.items()}
        )
    ),
    "run_twice": broken_run(
        lambda asked, run, k: Run(
            {q: Ranking(r.doc_ids, r.scores + next(CALLS)) for q, r in run.items()}
        )
    ),
    "one_query_at_a_time": broken_run(
        lambda asked, run, k: Run(
            {q: Ranking(r.doc_ids, r.scores * len(run)) for q, r in run.items()}
        )
    ),
    "names_of_queries": broken_run(
        lambda asked, run, k: Run({q: r[: 1 + ("\n" not in q)] for q, r in run.items()})
    ),
    "depth": broken_run(lambda asked, run, k: run.top(1) if k == 1000 else run.top((k or 99) - 1)),
    "nothing_asked": broken_run(lambda asked, run, k: run if asked else None),
    "empty_run": changed(
        Longest,
        run=lambda self, queries, given=None, k=None: Longest.run(
            self, {q: t for q, t in queries.items() if q in (given or ())}, given
        ),
    ),
    "blank_query": broken_run(
        lambda asked, run, k: Run(
            {query: r if asked[query].strip() else {"d1": 1.0} for query, r in run.items()}
        )
    ),
    "candidates": changed(
        Longest,
        run=lambda self, queries, given=None, k=None: Longest.run(self, queries, given or Run({})),
    ),
    "traced_once": changed(
        Words, run=lambda self, queries, given=None, k=None: Words.run(self, queries, given, k)
    ),
    "made_of_others": changed(Around, over=lambda self, inner: self),
    "attached": changed(Around, attached=lambda self, documents: Words() % 1),
    "filtered": changed(Around, filtered=lambda self, where: Words() % 1),
    "asked_as_callers_do": changed(
        Words,
        rank=Words.rank.__wrapped__,  # type: ignore[attr-defined]
        run=lambda self, queries, given=None, k=None: self.rank(queries, given, k),
    ),
    "search": changed(Words, search=lambda self, query, k=10: []),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_broken_ones_are_found_out(rule: str) -> None:
    kind: Any = BROKEN[rule]
    stage = kind(Words()) if issubclass(kind, Around) else kind()
    others = [name for name in BROKEN if name != rule and name not in ("run_of_queries",)]
    with pytest.raises(BrokenRule, match=rf"^stage Broken: .* \({rule}\)\n"):
        check_stage(stage, skip=[] if rule != "traced_once" else others)


def test_passages_by_a_name_are_found_out() -> None:
    """It reads the trace of its own run by the name that ``search`` gives to a query."""

    def passages_of(
        self: Stage, query: str, doc_ids: Sequence[str], span: Span
    ) -> list[Passage | None]:
        assert span.result is not None
        known = span.result.get("query", ())
        return [Passage(1, 0, 1, "") if len(known) else None for _ in doc_ids]

    kind = changed(Words, names_passages=True, passages_of=passages_of)
    with pytest.raises(BrokenRule, match=r"under other names it names other passages"):
        check_stage(kind())


def test_what_cannot_be_checked_is_said() -> None:
    with pytest.raises(BrokenRule, match="no query found a document"):
        check_stage(Words(), {"a": "nowhere", "b": "nothing"})
    with pytest.raises(ConfigError, match="expected two or more"):
        check_stage(Words(), {"a": "gold"})
    with pytest.raises(ConfigError, match=r"unknown rule 'tie'.*did you mean 'ties'"):
        check_stage(Words(), skip=["tie"])
    with pytest.raises(BrokenRule, match=r"it is a int"):
        check_stage(3)  # type: ignore[arg-type]
