"""The table of end points: requests, answers, which key they need; and the OpenAPI document."""

from __future__ import annotations

import re
from typing import Any

from pydantic.json_schema import models_json_schema

import sluice
from sluice.encoders.foundation.build import resolve
from sluice.retrieval.serving.http import call as operations, models
from sluice.retrieval.serving.http.call import JSON, EndPoint
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
from sluice.retrieval.serving.table import TABLE

SEARCH, WRITE, ADMIN = "search", "write", "admin"

END_POINTS: tuple[EndPoint, ...] = (
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
