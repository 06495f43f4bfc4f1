"""Asking models: vectors as TEI and OpenAI shape them, reranking as TEI and Cohere do."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sluice.retrieval.serving.shapes.base import Shape

InputType = Literal["query", "document", "search_query", "search_document"]
SIDE = "Which side of the encoder reads the texts: query (search_query) or document."
TRUNCATE = "Whether a longer text is cut at the model's length; otherwise it is refused with 413."
MODEL = "A name of /info; without it the first that fits."


class EmbedRequest(Shape):
    """Texts to turn into vectors, in TEI's shape."""

    inputs: str | list[str] = Field(description="A text, or a list of them.")
    model: str | None = Field(default=None, description=MODEL)
    truncate: bool = Field(default=False, description=TRUNCATE)
    normalize: bool | None = Field(
        default=None,
        description="Whether vectors have length 1; without it as the model makes them.",
    )
    input_type: InputType = Field(default="document", description=SIDE)
    prompt_name: Literal["query", "document"] | None = Field(
        default=None, description="TEI's name for input_type."
    )


class EmbedSparseRequest(Shape):
    """Texts to turn into sparse vectors, in TEI's shape."""

    inputs: str | list[str] = Field(description="A text, or a list of them.")
    model: str | None = Field(default=None, description=MODEL)
    truncate: bool = Field(default=False, description=TRUNCATE)
    input_type: InputType = Field(default="document", description=SIDE)
    prompt_name: Literal["query", "document"] | None = Field(
        default=None, description="TEI's name for input_type."
    )


class SparseValue(Shape):
    """One entry of a sparse vector; ``term`` is the word it stands for."""

    index: int
    value: float
    term: str | None = None


class OpenAIRequest(Shape):
    """Texts to turn into vectors, in OpenAI's shape."""

    input: str | list[str] | list[int] | list[list[int]] = Field(
        description="A text, or a list of them; token ids are refused."
    )
    model: str = Field(description="A name of /info.")
    encoding_format: Literal["float", "base64"] = Field(default="float")
    dimensions: int | None = Field(
        default=None,
        ge=1,
        description="The first so many numbers, scaled to length 1; up to all of them.",
    )
    user: str | None = Field(default=None, description="Not used.")
    input_type: InputType = Field(default="document", description=SIDE)
    truncate: bool = Field(default=False, description=TRUNCATE)


class OpenAIVector(Shape):
    """A vector: numbers, or their bytes (float32, little-endian) in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(Shape):
    """The tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class OpenAIAnswer(Shape):
    """The vectors in the order of the texts."""

    object: Literal["list"] = "list"
    data: list[OpenAIVector]
    model: str
    usage: Usage


class RerankRequest(Shape):
    """Texts to order for a query: ``texts`` in TEI's shape, ``documents`` in Cohere's."""

    query: str
    texts: list[str] | None = Field(default=None, description="TEI's name: the answer is a list.")
    documents: list[str | dict[str, str]] | None = Field(
        default=None, description="Cohere's name: the answer is an object. Objects have a text."
    )
    model: str | None = Field(
        default=None, description="A reranker of /info; without it the first."
    )
    top_n: int | None = Field(default=None, ge=1, description="The most results.")
    return_documents: bool = Field(
        default=False, description="Cohere: whether results have their text."
    )
    return_text: bool = Field(default=False, description="TEI: whether results have their text.")
    raw_scores: bool = Field(
        default=False,
        description="Whether scores are the model's own; otherwise its sigmoid, 0 to 1.",
    )
    truncate: bool | None = Field(
        default=None,
        description="Whether a text that is too long with the query is cut; otherwise it is "
        "refused with 413. Without it texts are refused, as TEI does, and documents cut, as "
        "Cohere does.",
    )
    max_tokens_per_doc: int | None = Field(default=None, description="Cohere's; refused.")
    priority: int | None = Field(default=None, description="Cohere's; refused unless 0.")


class RankedText(Shape):
    """A text's place in TEI's answer."""

    index: int
    score: float
    text: str | None = None


class RankedDocument(Shape):
    """A document's place in Cohere's answer."""

    index: int
    relevance_score: float
    document: dict[str, str] | None = None


class RerankAnswer(Shape):
    """Cohere's answer, best first."""

    id: str
    object: Literal["rerank"] = "rerank"
    model: str
    results: list[RankedDocument]


class ModelShape(Shape):
    """A model that can be asked."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "sluice"


class ModelList(Shape):
    """The models that can be asked, in OpenAI's shape."""

    object: Literal["list"] = "list"
    data: list[ModelShape]
