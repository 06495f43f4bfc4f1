"""The end points that HTTP has, as a table and as an OpenAPI document; those that ask models."""

from __future__ import annotations

import re
from typing import Any

from pydantic.json_schema import models_json_schema

import sluice
from sluice.encoders.foundation.build import resolve
from sluice.retrieval.serving.faults import invalid
from sluice.retrieval.serving.http import call as operations
from sluice.retrieval.serving.http.call import JSON, Call, EndPoint, Reply, unless_gone
from sluice.retrieval.serving.service import Service
from sluice.retrieval.serving.settings import TABLE
from sluice.retrieval.serving.shapes.base import (
    DeleteRequest,
    DocumentShape,
    DocumentsRequest,
    ErrorAnswer,
    Health,
    Info,
    Ready,
    Shape,
    WriteAnswer,
)
from sluice.retrieval.serving.shapes.search import (
    EmbedRequest,
    EmbedSparseRequest,
    ExplainRequest,
    Explanation,
    ModelList,
    ModelShape,
    OpenAIAnswer,
    OpenAIRequest,
    OpenAIVector,
    RankedDocument,
    RankedText,
    RerankAnswer,
    RerankRequest,
    SearchAnswer,
    SearchAnswers,
    SearchRequest,
    SparseValue,
    Usage,
)
from sluice.retrieval.serving.work.embedding import (
    as_relevance,
    best_first,
    dense_rows,
    in_base64,
    refuse_cut,
    side_of,
    sparse_values,
)


async def embed(service: Service, call: Call) -> Reply:
    """Return the dense vectors of texts, in TEI's shape."""
    request = call.read(EmbedRequest)
    texts = _texts(request.inputs)
    side = side_of(request.input_type, request.prompt_name)
    work = service.embed(request.model, side, texts, sparse=False, field="inputs")
    _, _, vectors = await unless_gone(work, call.gone())
    if not request.truncate:
        refuse_cut(vectors, "inputs")
    rows = dense_rows(vectors, normalize=request.normalize) if vectors else None
    return Reply([] if rows is None else rows.tolist())


async def embed_sparse(service: Service, call: Call) -> Reply:
    """Return the sparse vectors of texts, in TEI's shape."""
    request = call.read(EmbedSparseRequest)
    texts = _texts(request.inputs)
    side = side_of(request.input_type, request.prompt_name)
    work = service.embed(request.model, side, texts, sparse=True, field="inputs")
    _, encoder, vectors = await unless_gone(work, call.gone())
    if not request.truncate:
        refuse_cut(vectors, "inputs")
    return Reply([sparse_values(encoder, vector) for vector in vectors])


async def openai_embeddings(service: Service, call: Call) -> Reply:
    """Return the dense vectors of texts, in OpenAI's shape."""
    request = call.read(OpenAIRequest)
    texts = _openai_texts(request.input)
    side = side_of(request.input_type, None)
    work = service.embed(request.model, side, texts, sparse=False, field="input")
    name, _, vectors = await unless_gone(work, call.gone())
    if not request.truncate:
        refuse_cut(vectors, "input")
    rows = dense_rows(vectors, dimensions=request.dimensions)
    coded = request.encoding_format == "base64"
    data = [
        OpenAIVector(index=place, embedding=in_base64(row) if coded else row.tolist())
        for place, row in enumerate(rows)
    ]
    tokens = sum(vector.read for vector in vectors)
    usage = Usage(prompt_tokens=tokens, total_tokens=tokens)
    return Reply(OpenAIAnswer(data=data, model=name, usage=usage))


async def rerank(service: Service, call: Call) -> Reply:
    """Order texts for a query: a list for TEI's ``texts``, an object for ``documents``."""
    request = call.read(RerankRequest)
    texts = _ranked_texts(request)
    pairs = [(request.query, text) for text in texts]
    model, scored = await unless_gone(service.rerank(request.model, pairs), call.gone())
    # TEI's own server refuses a long text unless truncate is true, Cohere's cuts it.
    if not (request.texts is None if request.truncate is None else request.truncate):
        refuse_cut(scored, "documents" if request.texts is None else "texts", pairs=True)
    scores = [pair.values for pair in scored]
    shown = scores
    if not request.raw_scores:
        shown = as_relevance(scores, *service.content.probability(model))
    order = best_first(scores, request.top_n)
    if request.texts is not None:
        with_text = request.return_text
        return Reply(
            [
                RankedText(index=at, score=shown[at], text=texts[at] if with_text else None)
                for at in order
            ]
        )
    results = [
        RankedDocument(
            index=at,
            relevance_score=shown[at],
            document={"text": texts[at]} if request.return_documents else None,
        )
        for at in order
    ]
    return Reply(RerankAnswer(id=call.request_id, model=model, results=results))


async def models(service: Service, call: Call) -> Reply:
    """List the models that can be asked, in OpenAI's shape."""
    content = service.content
    names = [*content.encoders, *(name for name in content.scorers if name not in content.encoders)]
    return Reply(ModelList(data=[ModelShape(id=name) for name in names]))


def _texts(inputs: str | list[str]) -> list[str]:
    return [inputs] if isinstance(inputs, str) else inputs


def _openai_texts(inputs: str | list[str] | list[int] | list[list[int]]) -> list[str]:
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not texts:
        raise invalid("input: empty; expected a text or a list of them", "input")
    words = [text for text in texts if isinstance(text, str)]
    if len(words) < len(texts):
        raise invalid(
            "input: token ids, which only their own model can read; expected texts (LangChain: "
            "check_embedding_ctx_length=False)",
            "input",
        )
    return words


def _ranked_texts(request: RerankRequest) -> list[str]:
    """Return the texts of a request, of which it must name one kind; refuse what does nothing."""
    if (request.texts is None) == (request.documents is None):
        raise invalid("texts, documents: expected one of the two", "texts")
    if request.max_tokens_per_doc is not None:
        raise invalid(
            "max_tokens_per_doc: not supported; documents are cut at the reranker's length",
            "max_tokens_per_doc",
        )
    if request.priority:
        raise invalid("priority: not supported; leave it out", "priority")
    flag = request.return_documents if request.texts is not None else request.return_text
    if flag:
        wrong = "return_documents" if request.texts is not None else "return_text"
        raise invalid(f"{wrong}: goes with the other shape; return_text is of texts", wrong)
    if request.texts is not None:
        return request.texts
    texts = []
    for place, document in enumerate(request.documents or ()):
        if isinstance(document, dict) and set(document) != {"text"}:
            path = f"documents[{place}]"
            raise invalid(f"{path}: expected a text, or an object with a text alone", path)
        texts.append(document if isinstance(document, str) else document["text"])
    return texts


SEARCH, WRITE, ADMIN = "search", "write", "admin"

END_POINTS: tuple[EndPoint, ...] = (
    EndPoint(
        "POST", "/search", operations.search, SEARCH, [SearchAnswer, SearchAnswers], SearchRequest
    ),
    EndPoint("GET", "/search", operations.search_by_address, SEARCH, [SearchAnswer], SearchRequest),
    EndPoint("POST", "/explain", operations.explain, SEARCH, [Explanation], ExplainRequest),
    EndPoint("POST", "/rerank", rerank, SEARCH, [[RankedText], RerankAnswer], RerankRequest),
    EndPoint("POST", "/v1/rerank", rerank, SEARCH, [RerankAnswer], RerankRequest),
    EndPoint("POST", "/v2/rerank", rerank, SEARCH, [RerankAnswer], RerankRequest),
    EndPoint("POST", "/embed", embed, SEARCH, [], EmbedRequest),
    EndPoint("POST", "/embed_sparse", embed_sparse, SEARCH, [[SparseValue]], EmbedSparseRequest),
    EndPoint("POST", "/v1/embeddings", openai_embeddings, SEARCH, [OpenAIAnswer], OpenAIRequest),
    EndPoint("GET", "/v1/models", models, SEARCH, [ModelList]),
    EndPoint("GET", "/documents/{id:path}", operations.document, SEARCH, [DocumentShape]),
    EndPoint("POST", "/documents", operations.add, WRITE, [WriteAnswer], DocumentsRequest),
    EndPoint("PUT", "/documents", operations.update, WRITE, [WriteAnswer], DocumentsRequest),
    EndPoint("DELETE", "/documents", operations.delete, WRITE, [WriteAnswer], DeleteRequest),
    EndPoint("DELETE", "/documents/{id:path}", operations.delete_one, WRITE, [WriteAnswer]),
    *(point for part in TABLE.values() for point in resolve(part.end_points)),
    EndPoint("GET", "/info", operations.info, SEARCH, [Info]),
    EndPoint("GET", "/health", operations.health, None, [Health]),
    EndPoint("GET", "/ready", operations.ready, None, [Ready]),
    EndPoint("GET", "/metrics", operations.metrics, ADMIN, []),
)


REFERENCE = "#/components/schemas/{model}"
KEY = "key"
FAILURES = {
    "400": "A field is wrong; the message names it.",
    "401": "A key is needed.",
    "413": "Too much in the request.",
    "429": "The queue is full; Retry-After has the seconds.",
    "504": "The deadline passed.",
}


def openapi(*, keys: bool) -> dict[str, Any]:
    """Return the document (OpenAPI 3.1); ``keys`` says whether requests need one."""
    shapes: dict[type[Shape], None] = {ErrorAnswer: None}
    for point in END_POINTS:
        shapes |= dict.fromkeys([point.request] if point.request else [])
        shapes |= dict.fromkeys(_flat(point))
    named, definitions = models_json_schema(
        [(shape, "validation") for shape in shapes], ref_template=REFERENCE
    )
    schema_of = {shape: named[shape, "validation"] for shape in shapes}
    paths: dict[str, Any] = {}
    for point in END_POINTS:
        path = re.sub(r":\w+}", "}", point.path)
        paths.setdefault(path, {})[point.method.lower()] = _operation(point, schema_of, keys)
    components: dict[str, Any] = {"schemas": definitions.get("$defs", {})}
    if keys:
        components["securitySchemes"] = {KEY: {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sluice", "version": sluice.__version__},
        "paths": paths,
        "components": components,
    }


def _operation(
    point: EndPoint, schema_of: dict[type[Shape], dict[str, Any]], keys: bool
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": point.summary,
        "operationId": f"{point.method.lower()}{re.sub(r'[^a-z0-9]+', '_', point.path)}".rstrip(
            "_"
        ),
        "responses": {
            "200": {"description": "The answer.", **_content(_answer(point, schema_of))},
        },
    }
    if point.scope == WRITE:
        operation["responses"]["202"] = {
            "description": "The change is on disk, and not served yet; note says why.",
            **_content(_answer(point, schema_of)),
        }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)", point.path)
    ]
    if point.request is not None and point.method == "GET":
        parameters += _query(point.request)
    elif point.request is not None:
        operation["requestBody"] = {"required": True, **_content(schema_of[point.request])}
    if parameters:
        operation["parameters"] = parameters
    if point.scope is not None:
        for status, text in FAILURES.items():
            operation["responses"][status] = {
                "description": text,
                **_content(schema_of[ErrorAnswer]),
            }
        if keys:
            operation["security"] = [{KEY: []}]
            operation["description"] = f"The key needs the scope {point.scope}."
    return operation


def _query(shape: type[Shape]) -> list[dict[str, Any]]:
    """Return the fields of a query string: lists are written with commas, ``where`` as JSON."""
    return [
        {
            "name": name,
            "in": "query",
            "required": field.is_required(),
            "description": field.description or "",
            "schema": {"type": "string"},
        }
        for name, field in shape.model_fields.items()
    ]


def _content(schema: Any) -> dict[str, Any]:
    return {"content": {JSON: {"schema": schema}}} if schema is not None else {}


def _answer(point: EndPoint, schema_of: dict[type[Shape], dict[str, Any]]) -> Any:
    options = [
        {"type": "array", "items": schema_of[each[0]]}
        if isinstance(each, list)
        else schema_of[each]
        for each in point.response
    ]
    if not options:
        return None
    return options[0] if len(options) == 1 else {"anyOf": options}


def _flat(point: EndPoint) -> list[type[Shape]]:
    return [each[0] if isinstance(each, list) else each for each in point.response]
