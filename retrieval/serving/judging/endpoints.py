"""What the judging page asks: what is next, what an assessor says, agreement, qrels."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from pydantic import Field

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.text import matches
from sluice.retrieval.serving.faults import Fault, invalid
from sluice.retrieval.serving.http.call import Call, EndPoint, Reply, unless_gone
from sluice.retrieval.serving.judging.judgements import LONGEST_COMMENT, LONGEST_NAME, Judgement
from sluice.retrieval.serving.judging.judging import Candidate, Judging, Known, QueryProgress
from sluice.retrieval.serving.judging.results import assessor_agreement, qrels_of, qrels_text
from sluice.retrieval.serving.service import Service
from sluice.retrieval.serving.shapes.base import Shape
from sluice.retrieval.serving.shapes.search import SearchRequest
from sluice.retrieval.studies.judging.generative_judge import DEFINITIONS

NAMES = ("not relevant", "related", "answers in part", "answers in full")
MOST_TEXT = 100_000  # characters of a document that are shown
MARKED = 20_000  # of these, where words of the query are marked
JUDGE = "judge"  # the scope of a key
TABLE = "text/tab-separated-values; charset=utf-8"


ASSESSOR = "Who judges; not needed with a key, whose name it is then."


class AssessorRequest(Shape):
    """Who asks."""

    assessor: str = Field(default="", description=ASSESSOR)


class TaskRequest(Shape):
    """A query whose candidates are asked for."""

    assessor: str = Field(default="", description=ASSESSOR)
    query: str | None = Field(
        default=None, description="A query's id; without it the first that is not finished."
    )


class JudgementRequest(Shape):
    """What an assessor says of a document."""

    assessor: str = Field(default="", description=ASSESSOR)
    query: str = Field(description="A query's id.")
    document: str = Field(description="A candidate's id.")
    grade: Literal[0, 1, 2, 3] | None = Field(
        description="One of /judge/queries; null with skipped, or to take a grade back."
    )
    skipped: bool = Field(default=False, description="Whether it is left for later or for others.")
    comment: str = Field(default="", max_length=LONGEST_COMMENT)


class QrelsRequest(Shape):
    """How qrels are made of judgements."""

    rule: str = Field(
        default="majority",
        description="The grade where several judged: majority (of a tie the lower), mean "
        "(rounded, a half up) or max.",
    )
    format: str = Field(default="beir", description="beir (three columns) or trec (four).")
    assessor: str | None = Field(default=None, description="The judgements of this one alone.")


class GradeShape(Shape):
    """A grade and what it means."""

    grade: int
    name: str
    meaning: str


class QueryShape(Shape):
    """A query and how far the assessor is; ``candidates`` is null before its pipelines ran."""

    id: str
    text: str
    candidates: int | None
    judged: int
    skipped: int


class QueriesAnswer(Shape):
    """What is judged, and how far the assessor is; ``named`` where the name is a key's."""

    assessor: str
    named: bool
    depth: int
    grades: list[GradeShape]
    queries: list[QueryShape]


class CandidateShape(Shape):
    """A document to judge.

    ``marks`` are the places of the query's words in the text, ``cut`` says that its end is left
    out.
    """

    id: str
    title: str
    text: str
    cut: bool
    marks: list[tuple[int, int]]
    metadata: dict[str, Any]
    grade: int | None
    skipped: bool
    comment: str


class TaskAnswer(Shape):
    """A query's candidates in the order in which all assessors see them.

    ``query`` is null when the assessor has seen everything.
    """

    query: QueryShape | None
    documents: list[CandidateShape]


class JudgementAnswer(Shape):
    """What a document has now, and how far the assessor is with its query."""

    document: str
    grade: int | None
    skipped: bool
    comment: str
    query: QueryShape


class AssessorShape(Shape):
    """What one person judged: counts by grade, 0 first."""

    name: str
    judged: int
    skipped: int
    grades: list[int]


class TwoShape(Shape):
    """How two agree on the pairs that both judged; kappa is null where it is undefined."""

    first: str
    second: str
    pairs: int
    same: float
    kappa: float | None
    weighted_kappa: float | None


class AgreementAnswer(Shape):
    """What each judged, and how they agree: Cohen's kappa of two, Krippendorff's alpha of all."""

    assessors: list[AssessorShape]
    shared: int
    alpha: dict[str, float | None]
    two: list[TwoShape]


async def queries(service: Service, call: Call) -> Reply:
    """List what is judged, and how far the assessor is with it."""
    judging = _judging(service)
    named = call.read_query(AssessorRequest, call.query).assessor
    assessor = _assessor(call, named) if named or call.key else ""
    progress = await asyncio.to_thread(judging.progress, assessor, _known(service))
    meanings = zip(NAMES, DEFINITIONS, strict=True)
    return Reply(
        QueriesAnswer(
            assessor=assessor,
            named=call.key is not None,
            depth=judging.depth,
            grades=[
                GradeShape(grade=grade, name=name, meaning=meaning)
                for grade, (name, meaning) in enumerate(meanings)
            ],
            queries=[_query(each) for each in progress],
        )
    )


async def task(service: Service, call: Call) -> Reply:
    """Return a query's candidates; without a query those of the first that is not finished."""
    judging = _judging(service)
    request = call.read_query(TaskRequest, call.query)
    assessor = _assessor(call, request.assessor)
    return Reply(await unless_gone(_task(service, judging, request.query, assessor), call.gone()))


async def judge(service: Service, call: Call) -> Reply:
    """Add what an assessor says of a document; it is on disk when this returns."""
    judging = _judging(service)
    request = call.read(JudgementRequest)
    if request.skipped and request.grade is not None:
        raise invalid("skipped: a document with a grade is not skipped; leave one out", "skipped")
    said = Judgement(
        request.query,
        request.document,
        _assessor(call, request.assessor),
        request.grade,
        request.skipped,
        request.comment.strip(),
    )
    progress = await asyncio.to_thread(judging.say, said, _known(service))
    return Reply(_said(said, progress))


async def undo(service: Service, call: Call) -> Reply:
    """Take the assessor's last entry back, and the one before it when asked again."""
    judging = _judging(service)
    assessor = _assessor(call, call.read(AssessorRequest).assessor)
    said, progress = await asyncio.to_thread(judging.undo, assessor, _known(service))
    return Reply(_said(said, progress))


async def agreement(service: Service, call: Call) -> Reply:
    """Say what each assessor judged, and how they agree."""
    judging = _judging(service)
    figures = await asyncio.to_thread(judging.log.read, assessor_agreement)
    return Reply(AgreementAnswer.model_validate(figures.to_dict(), strict=False))


async def qrels(service: Service, call: Call) -> Reply:
    """Return the judgements as a file of qrels."""
    judging = _judging(service)
    request = call.read_query(QrelsRequest, call.query)
    named = [] if request.assessor is None else [request.assessor]

    def text() -> bytes:
        grades = judging.log.read(lambda state: qrels_of(state, request.rule, named))
        return qrels_text(grades, request.format).encode()

    try:
        body = await asyncio.to_thread(text)
    except ConfigError as error:  # names the field first
        raise invalid(str(error), str(error).partition(":")[0]) from None
    except DataError as error:
        raise Fault(409, "no_qrels", str(error)) from None
    ending = "tsv" if request.format == "beir" else "trec"
    return Reply(
        body,
        media=TABLE,
        headers={"content-disposition": f'attachment; filename="qrels.{ending}"'},
    )


def _judging(service: Service) -> Judging:
    if service.judging is None:
        raise Fault(
            404, "not_judging", "nothing is judged here; sluice serve FOLDER --judge QUERIES"
        )
    judging: Judging = service.judging
    return judging


def _assessor(call: Call, named: str) -> str:
    """Return who judges: the key's name where there are keys, else what the request says."""
    if call.key is not None:
        if named and named != call.key:
            raise Fault(
                403, "forbidden", f"assessor: the key is that of {call.key!r}; leave it out",
                param="assessor",
            )  # fmt: skip
        return call.key
    name = " ".join(named.split())
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise invalid(
            f"assessor: {named!r:.80}; expected a name of 1 to {LONGEST_NAME} characters",
            "assessor",
        )
    return name


def _known(service: Service) -> Known:
    store = service.content.store
    return (lambda _: False) if store is None else store.__contains__


async def _task(service: Service, judging: Judging, query: str | None, assessor: str) -> TaskAnswer:
    passed: set[str] = set()  # those whose pool has nothing left to judge
    while True:
        chosen = query
        if chosen is None:
            known = _known(service)
            chosen = await asyncio.to_thread(judging.next_query, assessor, known, passed)
        if chosen is None:
            return TaskAnswer(query=None, documents=[])
        await _pool(service, judging, chosen)
        answer = await asyncio.to_thread(_shown, service, judging, chosen, assessor)
        if query is not None or any(d.grade is None and not d.skipped for d in answer.documents):
            return answer
        passed.add(chosen)


async def _pool(service: Service, judging: Judging, query: str) -> None:
    number = service.content.number
    if not judging.needs_pool(query, number):
        return
    text = judging.queries[query]
    documents: set[str] = set()
    for name in judging.pipelines:  # one by one: many slow ones at once would be an overload
        request = SearchRequest(query=text, pipeline=name, k=judging.depth, fields=[])
        (answer,) = await service.search(request)
        documents.update(hit.id for hit in answer.hits)
    await asyncio.to_thread(judging.pool, query, number, documents)


def _shown(service: Service, judging: Judging, query: str, assessor: str) -> TaskAnswer:
    store = service.content.store
    known = _known(service)
    progress = judging.progress_of(query, assessor, known)
    candidates = [
        (each, document)
        for each in judging.candidates(query, assessor, known)
        if store is not None and (document := store.find(each.document)) is not None
    ]
    documents = [_candidate(each, document, progress.text) for each, document in candidates]
    return TaskAnswer(query=_query(progress), documents=documents)


def _candidate(candidate: Candidate, document: Document, query: str) -> CandidateShape:
    said, text = candidate.said, document.text
    return CandidateShape(
        id=document.id,
        title=document.title,
        text=text[:MOST_TEXT],
        cut=len(text) > MOST_TEXT,
        marks=[(start, end) for start, end, _ in matches(text[:MARKED], query)],
        metadata=dict(document.metadata),
        grade=None if said is None else said.grade,
        skipped=said is not None and said.skipped,
        comment="" if said is None else said.comment,
    )


def _query(progress: QueryProgress) -> QueryShape:
    return QueryShape(
        id=progress.query,
        text=progress.text,
        candidates=progress.candidates,
        judged=progress.judged,
        skipped=progress.skipped,
    )


def _said(said: Judgement, progress: QueryProgress) -> JudgementAnswer:
    return JudgementAnswer(
        document=said.document,
        grade=said.grade,
        skipped=said.skipped,
        comment=said.comment,
        query=_query(progress),
    )


END_POINTS = (
    EndPoint("GET", "/judge/queries", queries, JUDGE, [QueriesAnswer], AssessorRequest),
    EndPoint("GET", "/judge/task", task, JUDGE, [TaskAnswer], TaskRequest),
    EndPoint("POST", "/judge/judgements", judge, JUDGE, [JudgementAnswer], JudgementRequest),
    EndPoint("POST", "/judge/undo", undo, JUDGE, [JudgementAnswer], AssessorRequest),
    EndPoint("GET", "/judge/agreement", agreement, JUDGE, [AgreementAnswer]),
    EndPoint("GET", "/judge/qrels", qrels, JUDGE, [], QrelsRequest),
)
PAGES = {"/judge": "judge.html", "/judge.js": "judge.js", "/judge.css": "judge.css"}
