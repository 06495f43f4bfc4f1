"""What the service says of itself, and how it refuses."""

from __future__ import annotations

from pydantic import Field

from sluice.retrieval.serving.shapes.base import Shape


class PipelineFacts(Shape):
    """A pipeline or a retriever that can be searched."""

    name: str
    expression: str
    default: bool
    stops_early: bool = Field(description="Whether deadline_ms has an effect inside it.")


class ModelFacts(Shape):
    """A model that can be asked: dense, sparse or reranker."""

    name: str
    kind: str
    dim: int | None = None
    max_input_length: int | None = None
    fingerprint: str | None = None


class Limits(Shape):
    """What a request may have."""

    k: int
    inputs: int
    body_bytes: int
    batch_tokens: int
    queue_tokens: int


class FilterFacts(Shape):
    """A metadata field: the kinds of its values, and the values if they are few."""

    name: str
    kinds: list[str]
    values: list[str | int | float | bool] | None = None


class Info(Shape):
    """What is served."""

    name: str
    version: str
    documents: int | None
    state: int
    writable: bool
    keys: bool
    judging: bool
    pipelines: list[PipelineFacts]
    models: list[ModelFacts]
    filters: list[FilterFacts]
    limits: Limits


class Health(Shape):
    """The process answers."""

    status: str = "ok"


class Ready(Shape):
    """Whether requests can be answered, and ``fault``: why not, or why a newer state is not."""

    ready: bool
    state: int
    fault: str | None = None
    queue_tokens: int


class ErrorFacts(Shape):
    """What is wrong, where and what to do; ``param`` names the field."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(Shape):
    """The answer to a request that is not answered."""

    error: ErrorFacts
    request_id: str
