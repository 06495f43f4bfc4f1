"""The shapes of searching and explaining, and of asking models as TEI, OpenAI and Cohere do."""

from __future__ import annotations

from typing import Any, Literal

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
        description="Whether scores are the model's own; otherwise 0 to 1: the probability that a "
        "pipeline fitted to them, else their sigmoid.",
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


FieldName = Literal["title", "text", "metadata", "passage"]
FIELDS: tuple[FieldName, ...] = ("title", "text", "metadata", "passage")


class SearchRequest(Shape):
    """One query, or several that are searched together."""

    query: str | list[str] = Field(description="A query, or a list of them.")
    pipeline: str | None = Field(
        default=None, description="A name of /info; without it the last one."
    )
    k: int = Field(default=10, ge=1, description="The most hits of a query.")
    fuse: bool = Field(
        default=False,
        description="Whether the queries are one search, whose lists are fused by reciprocal rank.",
    )
    context: str | None = Field(
        default=None,
        description="The reasoning so far: read behind the query, by BM25 as a document.",
    )
    seen: list[str] = Field(
        default_factory=list,
        description="Ids of documents that are left out; others take their places.",
    )
    budget_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Fill about so many tokens with titles and passages of the best 50 documents, "
        "by rank and without repetition: as many as fit, unless k is given. Hits have no text, "
        "unless fields are given.",
    )
    where: dict[str, Any] | None = Field(
        default=None,
        description='A filter on metadata: {"lang": "en", "year": {"gte": 2020}}; conditions are '
        "gte, gt, lte, lt and not, and a list stands for any of its values. "
        '{"text": {"matches": PATTERN}} takes a regular expression.',
    )
    fields: list[FieldName] = Field(
        default_factory=lambda: list(FIELDS), description="What hits have beside id and score."
    )
    highlight: bool = Field(
        default=False,
        description="Whether hits have a snippet, and where words of the query stand in it.",
    )
    deadline_ms: float | None = Field(
        default=None,
        gt=0,
        description="Rerankers stop after so many milliseconds from the request's arrival; the "
        "answer then says complete: false. Over while waiting, it is refused with 504.",
    )


class PassageShape(Shape):
    """The part of a text by which a document was found: characters start to end (excluded)."""

    number: int
    start: int
    end: int
    text: str


class Snippet(Shape):
    """A part of a text, and where words of the query stand in it: [start, end (excluded)]."""

    text: str
    marks: list[tuple[int, int]]


class HitShape(Shape):
    """One document found; what was not asked for is null."""

    id: str
    rank: int
    score: float
    title: str | None = None
    text: str | None = None
    metadata: dict[str, Any] | None = None
    passage: PassageShape | None = None
    snippet: Snippet | None = None


class StageTime(Shape):
    """A stage that ran, with the milliseconds of its own of all queries searched together."""

    name: str
    milliseconds: float
    documents: int


class SearchAnswer(Shape):
    """The hits of one query, best first.

    ``answer`` is none where the pipeline abstains, as no document settles the question.
    ``complete`` is false where the deadline stopped a reranker or shards are missing, and ``note``
    says why or what was left out. ``together`` counts the queries, of other requests too, that
    ``stages`` are the times of. ``tokens`` fill the budget, and ``left_out`` counts the documents
    that did not fit or repeat another one.
    """

    query: str
    pipeline: str
    answer: Literal["none"] | None = None
    hits: list[HitShape]
    complete: bool = True
    note: str | None = None
    tokens: int | None = None
    left_out: int | None = None
    partial: list[str] = Field(
        default_factory=list, description="The shards whose documents were not searched."
    )
    stages: list[StageTime]
    together: int
    state: int = Field(description="The state of the documents that answered.")


class SearchAnswers(Shape):
    """The answers of several queries, in their order."""

    results: list[SearchAnswer]


class ExplainRequest(Shape):
    """A query whose best documents, or those named, are followed through a pipeline."""

    query: str
    pipeline: str | None = Field(
        default=None, description="A name of /info; without it the last one."
    )
    k: int = Field(default=10, ge=1, description="The most hits that are followed.")
    where: dict[str, Any] | None = Field(default=None, description="A filter, as in /search.")
    ids: list[str] | None = Field(default=None, description="Other documents to follow instead.")


class StepShape(Shape):
    """A stage that ran: whether it finds documents, its own time, and its facts."""

    name: str
    finds: bool
    milliseconds: float
    documents: int
    facts: dict[str, Any]


class PlaceShape(Shape):
    """A document's rank and score after a stage, null where it was not returned."""

    step: str
    rank: int | None
    score: float | None


class TermShape(Shape):
    """A term's part of a sparse score."""

    term: str
    query_weight: float
    impact: float
    contribution: float


class MatchShape(Shape):
    """A token of the query, the document's token that it met, and what this adds to the score.

    ``in_query`` is false for a token that is not of the query's text, such as a mask.
    """

    query_token: str
    document_token: str
    similarity: float
    in_query: bool


class MetWord(Shape):
    """A word that tokens of the query met: its characters [start, end (excluded)] of a snippet.

    ``adds`` is what it adds to the score by these tokens.
    """

    start: int
    end: int
    adds: float
    tokens: list[str]


class MetSnippet(Shape):
    """The part of a text with most words that tokens of the query met."""

    text: str
    words: list[MetWord]


class PathShape(Shape):
    """A document's way through a pipeline; ``decided`` is [stage, rank before, rank after].

    ``matches`` are the tokens that met, by stage; ``met`` shows them in the text, those of the last
    stage that compares tokens.
    """

    id: str
    rank: int | None
    score: float | None
    places: list[PlaceShape]
    found_by: list[str]
    decided: tuple[str, int, int] | None
    terms: dict[str, list[TermShape]]
    matches: dict[str, list[MatchShape]] = Field(default_factory=dict)
    met: MetSnippet | None = None


class Explanation(Shape):
    """What each stage did with a query and with its documents."""

    query: str
    pipeline: str
    milliseconds: float
    steps: list[StepShape]
    documents: list[PathShape]
    state: int
