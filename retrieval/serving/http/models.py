"""End points that ask models: vectors, sparse vectors and reranking."""

from __future__ import annotations

from sluice.retrieval.serving.faults import invalid
from sluice.retrieval.serving.http.call import Call, Reply, unless_gone
from sluice.retrieval.serving.service import Service
from sluice.retrieval.serving.shapes.search import (
    EmbedRequest,
    EmbedSparseRequest,
    ModelList,
    ModelShape,
    OpenAIAnswer,
    OpenAIRequest,
    OpenAIVector,
    RankedDocument,
    RankedText,
    RerankAnswer,
    RerankRequest,
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
    shown = scores if request.raw_scores else as_relevance(scores)
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
