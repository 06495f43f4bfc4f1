"""The base of all shapes, and those of documents and of the service itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from sluice.encoders.foundation.errors import suggest
from sluice.retrieval.serving.faults import Fault, invalid

EXPECTED = {  # by pydantic's types of faults
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "string_type": "a text",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
    "literal_error": "{expected}",
    "too_short": "at least {min_length} in the list",
    "string_too_short": "at least {min_length} character",
}
OPTIONS = ("str", "int", "list[", "dict[", "function-")  # how options of a union begin, in places


class Shape(BaseModel):
    """A request or an answer: unknown keys are refused, and no text is read as a number."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


Read = TypeVar("Read", bound=Shape)


def read_json(kind: type[Read], body: bytes) -> Read:
    """Return a body as its shape; a ``Fault`` that names the first field that is wrong."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _fault(error.errors(include_url=False), kind) from None


def read_values(kind: type[Read], values: dict[str, Any]) -> Read:
    """Return values, such as those of a query string, as a shape; a ``Fault`` as above."""
    try:
        return kind.model_validate(values, strict=False)
    except ValidationError as error:
        raise _fault(error.errors(include_url=False), kind) from None


def _fault(details: list[ErrorDetails], kind: type[Shape]) -> Fault:
    if details[0]["type"] == "json_invalid":
        return invalid(f"body: not JSON ({details[0]['ctx']['error']}); expected an object")
    first_path = _path(details[0]["loc"])
    inside = [path for each in details if (path := _path(each["loc"])).startswith(first_path)]
    path = max(inside, key=len)  # of a union the option that fits best: its fault is deepest
    same = [item for item in details if _path(item["loc"]) == path]
    place = path or "body"
    known = [item for item in same if item["type"] in EXPECTED]
    first = same[0]
    if first["type"] == "missing":
        return invalid(f"{place}: missing; it is required", place)
    if first["type"] == "extra_forbidden":
        names = list(kind.model_fields)
        listing = f"known: {', '.join(names)}" if len(first["loc"]) == 1 else "not known here"
        near = suggest(str(first["loc"][-1]), names)
        return invalid(f"{place}: unknown field; {listing}{near}", place)
    if known:
        texts = dict.fromkeys(EXPECTED[i["type"]].format(**i.get("ctx", {})) for i in known)
        return invalid(f"{place}: {_shown(first['input'])}; expected {' or '.join(texts)}", place)
    message = first["msg"].removeprefix("Value error, ")
    return invalid(f"{place}: {message}", place)


def _path(parts: Iterable[Any]) -> str:
    """Return ``texts[2]`` for the place of a fault, without the options of a union."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not (str(part) in OPTIONS or str(part).startswith(OPTIONS[2:])):
            path += f".{part}" if path else str(part)
    return path


def _shown(value: Any) -> str:
    return f"{value!r:.60}"


def _on_one_line(doc_id: str) -> str:
    if "\n" in doc_id or "\r" in doc_id:
        raise ValueError(f"{doc_id!r:.60}: has a line break; expected an id on one line")
    return doc_id


class DocumentShape(Shape):
    """One document."""

    id: str
    title: str = ""
    text: str = ""
    metadata: dict[str, Any] = Field(default_factory=dict)


class NewDocument(DocumentShape):
    """A document to write; ``_id`` is read as ``id``."""

    id: Annotated[str, AfterValidator(_on_one_line)] = Field(
        validation_alias=AliasChoices("id", "_id"), min_length=1
    )


class DocumentsRequest(Shape):
    """Documents to add, or to replace by id."""

    documents: list[NewDocument] = Field(min_length=1)


class DeleteRequest(Shape):
    """Ids of documents to delete."""

    ids: list[str] = Field(min_length=1)


class ChangedShape(Shape):
    """What a change did to one retriever, and how many documents it has now."""

    retriever: str
    documents: int
    added: int
    replaced: int
    deleted: int


class WriteAnswer(Shape):
    """A change that is on disk, and the state that answers searches after it.

    ``served`` is false, with status 202, where searches do not see the change yet: ``note`` says
    why. It is served as soon as the state can be opened.
    """

    retrievers: list[ChangedShape]
    state: int
    served: bool = True
    note: str | None = None


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
