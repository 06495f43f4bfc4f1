"""The table of end points: requests, answers, and which key they need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from sluice.retrieval.serving.http import call as operations, judging, models
from sluice.retrieval.serving.http.call import Call, Reply
from sluice.retrieval.serving.service import Service
from sluice.retrieval.serving.shapes.base import (
    AgreementAnswer,
    AssessorRequest,
    DeleteRequest,
    DocumentShape,
    DocumentsRequest,
    Health,
    Info,
    JudgementAnswer,
    JudgementRequest,
    QrelsRequest,
    QueriesAnswer,
    Ready,
    Shape,
    TaskAnswer,
    TaskRequest,
    WriteAnswer,
)
from sluice.retrieval.serving.shapes.search import (
    EmbedRequest,
    EmbedSparseRequest,
    ExplainRequest,
    Explanation,
    ModelList,
    OpenAIAnswer,
    OpenAIRequest,
    RankedText,
    RerankAnswer,
    RerankRequest,
    SearchAnswer,
    SearchAnswers,
    SearchRequest,
    SparseValue,
)

SEARCH, WRITE, JUDGE, ADMIN = "search", "write", "judge", "admin"

Handler = Callable[[Service, Call], Awaitable[Reply]]


class EndPoint(NamedTuple):
    """One end point; ``scope`` is what a key needs, None where none is needed.

    ``request`` is the shape of the body, or of the query string of a GET. ``response`` are the
    shapes an answer may have; one in a list is a list of such.
    """

    method: str
    path: str
    handler: Handler
    scope: str | None
    response: list[type[Shape] | list[type[Shape]]]
    request: type[Shape] | None = None

    @property
    def summary(self) -> str:
        """The first sentence of what it does."""
        return (self.handler.__doc__ or "").strip().partition("\n")[0]


END_POINTS = (
    EndPoint(
        "POST", "/search", operations.search, SEARCH, [SearchAnswer, SearchAnswers], SearchRequest
    ),
    EndPoint("GET", "/search", operations.search_by_address, SEARCH, [SearchAnswer], SearchRequest),
    EndPoint("POST", "/explain", operations.explain, SEARCH, [Explanation], ExplainRequest),
    EndPoint("POST", "/rerank", models.rerank, SEARCH, [[RankedText], RerankAnswer], RerankRequest),
    EndPoint("POST", "/v1/rerank", models.rerank, SEARCH, [RerankAnswer], RerankRequest),
    EndPoint("POST", "/v2/rerank", models.rerank, SEARCH, [RerankAnswer], RerankRequest),
    EndPoint("POST", "/embed", models.embed, SEARCH, [], EmbedRequest),
    EndPoint(
        "POST", "/embed_sparse", models.embed_sparse, SEARCH, [[SparseValue]], EmbedSparseRequest
    ),
    EndPoint(
        "POST", "/v1/embeddings", models.openai_embeddings, SEARCH, [OpenAIAnswer], OpenAIRequest
    ),
    EndPoint("GET", "/v1/models", models.models, SEARCH, [ModelList]),
    EndPoint("GET", "/documents/{id:path}", operations.document, SEARCH, [DocumentShape]),
    EndPoint("POST", "/documents", operations.add, WRITE, [WriteAnswer], DocumentsRequest),
    EndPoint("PUT", "/documents", operations.update, WRITE, [WriteAnswer], DocumentsRequest),
    EndPoint("DELETE", "/documents", operations.delete, WRITE, [WriteAnswer], DeleteRequest),
    EndPoint("DELETE", "/documents/{id:path}", operations.delete_one, WRITE, [WriteAnswer]),
    EndPoint("GET", "/judge/queries", judging.queries, JUDGE, [QueriesAnswer], AssessorRequest),
    EndPoint("GET", "/judge/task", judging.task, JUDGE, [TaskAnswer], TaskRequest),
    EndPoint(
        "POST", "/judge/judgements", judging.judge, JUDGE, [JudgementAnswer], JudgementRequest
    ),
    EndPoint("POST", "/judge/undo", judging.undo, JUDGE, [JudgementAnswer], AssessorRequest),
    EndPoint("GET", "/judge/agreement", judging.agreement, JUDGE, [AgreementAnswer]),
    EndPoint("GET", "/judge/qrels", judging.qrels, JUDGE, [], QrelsRequest),
    EndPoint("GET", "/info", operations.info, SEARCH, [Info]),
    EndPoint("GET", "/health", operations.health, None, [Health]),
    EndPoint("GET", "/ready", operations.ready, None, [Ready]),
    EndPoint("GET", "/metrics", operations.metrics, ADMIN, []),
)
