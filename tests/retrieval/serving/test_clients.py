"""Real clients call a live service on the loopback; each is skipped where it is not installed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from sluice.retrieval.experiments.experiment import Experiment

TEXTS = ["gold in the river", "a stone in the water"]


@pytest.fixture
def vectors(library: Experiment) -> np.ndarray:
    return library.retriever("dense").encoder.encode_documents(TEXTS)


@pytest.mark.filterwarnings("ignore")
def test_openai(address: str, vectors: np.ndarray) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed")
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(input=TEXTS, model="dense")
        np.testing.assert_allclose([row.embedding for row in answer.data], vectors, atol=1e-5)
        assert answer.usage.prompt_tokens > 0
        assert [model.id for model in client.models.list()] == ["bm25", "dense", "cross"]
        with pytest.raises(openai.NotFoundError, match="did you mean 'dense'"):
            client.embeddings.create(input=TEXTS, model="dens")
        with pytest.raises(openai.BadRequestError, match="token ids"):
            client.embeddings.create(input=[1, 2, 3], model="dense")


@pytest.mark.filterwarnings("ignore")
def test_cohere(address: str, library: Experiment) -> None:
    cohere = pytest.importorskip("cohere", reason="cohere is not installed")
    httpx = pytest.importorskip("httpx", reason="httpx is not installed")
    with httpx.Client() as http:
        client = cohere.ClientV2(api_key="none", base_url=address, httpx_client=http)
        answer = client.rerank(model="cross", query="gold", documents=TEXTS, top_n=1)
    scores = library.scorer("cross").score([("gold", text) for text in TEXTS])
    (best,) = answer.results
    assert best.index == int(np.argmax(scores))
    assert best.relevance_score == pytest.approx(1 / (1 + np.exp(-float(max(scores)))), abs=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_langchain(address: str, vectors: np.ndarray) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    httpx = pytest.importorskip("httpx", reason="httpx is not installed")
    with httpx.Client() as http:
        embeddings = langchain.OpenAIEmbeddings(
            model="dense", base_url=f"{address}/v1", api_key="none",
            check_embedding_ctx_length=False, http_client=http,
        )  # fmt: skip
        np.testing.assert_allclose(embeddings.embed_documents(TEXTS), vectors, atol=1e-5)
        np.testing.assert_allclose(embeddings.embed_query(TEXTS[0]), vectors[0], atol=1e-5)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_llama_index(address: str, vectors: np.ndarray) -> None:
    module = pytest.importorskip(
        "llama_index.embeddings.openai_like", reason="the llama-index package is not installed"
    )
    httpx = pytest.importorskip("httpx", reason="httpx is not installed")
    with httpx.Client() as http:
        embedding = module.OpenAILikeEmbedding(
            model_name="dense", api_base=f"{address}/v1", api_key="none", http_client=http
        )
        answer = embedding.get_text_embedding_batch(TEXTS)
    np.testing.assert_allclose(answer, vectors, atol=1e-5)


def test_tei_clients(address: str, vectors: np.ndarray) -> None:
    """The calls of TEI's own clients: bodies as they send them."""
    httpx = pytest.importorskip("httpx", reason="httpx is not installed")
    with httpx.Client(base_url=address) as client:
        answer = client.post("/embed", json={"inputs": TEXTS, "truncate": True}).json()
        np.testing.assert_allclose(answer, vectors, atol=1e-5)
        body = {"query": "gold", "texts": TEXTS, "raw_scores": False, "return_text": False}
        assert {each["index"] for each in client.post("/rerank", json=body).json()} == {0, 1}
        (entries, _) = client.post("/embed_sparse", json={"inputs": TEXTS}).json()
        assert {"index", "value"} <= set(entries[0])


@pytest.mark.filterwarnings("ignore")
def test_mcp_over_http(address: str, library: Experiment) -> None:
    client_of = pytest.importorskip("mcp.client.client", reason="mcp is not installed")
    (best,) = library.stage("cascade").search("gold river", 1)

    async def call() -> tuple[Any, Any]:
        async with client_of.Client(f"{address}/mcp/") as client:
            found = await client.call_tool("search", {"query": "gold river", "limit": 1})
            return found, await client.call_tool("fetch", {"id": best.doc_id})

    found, fetched = asyncio.run(call())
    assert found.structured_content["results"][0]["id"] == best.doc_id
    assert json.loads(fetched.content[0].text)["text"] == best.text
