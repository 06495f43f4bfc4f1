"""Judging: queries, candidates, what assessors say, and how they agree."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from sluice.retrieval.serving.judging.entries import LONGEST_COMMENT
from sluice.retrieval.serving.shapes.base import Shape

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
